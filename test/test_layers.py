"""Folders are layers: each may use those that its line names, and its own files. docs/design.md says why."""

import ast
import os
import re
from pathlib import Path

import pytest
from compiled import compile_kernels

ROOT = Path(__file__).parent.parent
PYTHON = {
    "version": "",
    "runtime": "",
    "program": "runtime",
    "problem": "runtime",
    "operators": "runtime program problem",
    "functional": "runtime program operators",
    "nn": "runtime problem operators functional",
    "override": "runtime",
    "compiler": "runtime program operators",
    "fuse": "runtime nn compiler",
    "selector": "version runtime program problem",
    "tuning": "version runtime program problem operators selector",
    "demo": "runtime problem selector",
    "__main__": "runtime compiler selector tuning",
    "__init__": "version runtime program problem functional nn override fuse selector tuning",
}
# From the bottom to the top: a folder, or the files of a stem, uses what stands on lines above its own.
CPP = [
    "types device planned set_cache numbered hip/device hip/devices",
    "program jit torch_types",
    "conv hip/typed_kernel",
    "cpu hip/programs hip/gpu_cost hip/gpu_solver",
    "selector hip/gemm hip/depthwise hip/pointwise hip/pooling hip/embedding hip/segment_reduce hip/copy hip/miopen",
    "hip/tma_gemm hip/packed_gemm",
    "dispatch",
    "plan",
    "operators",
    "c_api library",
    "aten",
]
TORCH = ("aten/", "operators/", "library.cpp", "c_api_tensors.cpp", "cpu/parallel.cpp")
COMPILER = (
    "attention backend cached capture cuda_graphs decompositions execute fake_gpu fakes memory_budget memory_formats"
)
COMPILER += " measure mutated_inputs partition plan"
PRIVATE_TORCH = ["operators/dispatch.py", *(f"compiler/{name}.py" for name in COMPILER.split())]


def python_files():
    package = ROOT / "torch_reformer"
    return sorted(path for path in package.rglob("*.py") if "kernels" not in path.relative_to(package).parts)


def layer_of(module: tuple[str, ...]) -> str:
    return module[0] if module else "__init__"


def imported(path: Path):
    """The package's modules that a file imports, as tuples of names below torch_reformer."""
    package = path.relative_to(ROOT / "torch_reformer").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + tuple(node.module.split(".") if node.module else ())
            yield from (base + (alias.name,) for alias in node.names)


def test_python_layers():
    found = set()
    for path in python_files():
        relative = path.relative_to(ROOT / "torch_reformer")
        own = relative.parts[0].removesuffix(".py")
        allowed = {own, *PYTHON[own].split()}
        found |= {
            f"{relative} imports {'.'.join(module)}" for module in imported(path) if layer_of(module) not in allowed
        }
    assert not found


@pytest.mark.parametrize("name", PYTHON)
def test_python_layers_exist(name):
    assert (ROOT / "torch_reformer" / name).is_dir() or (ROOT / "torch_reformer" / f"{name}.py").is_file()


def test_python_layers_have_no_circles():
    """The rules themselves: going down from any layer never leads back to it."""

    def below(name, seen=()):
        assert name not in seen, f"{name} is below itself"
        for other in PYTHON[name].split():
            below(other, (*seen, name))

    for name in PYTHON:
        below(name)


def cpp_layer(file: str) -> tuple[int, str]:
    """The number of the line, and the name on it, that a file below csrc belongs to."""
    found = [
        (len(name), number, name)
        for number, line in enumerate(CPP)
        for name in line.split()
        if file.startswith((f"{name}/", f"{name}.", f"{name}_"))
    ]
    _, number, name = max(found)
    return number, name


def included(root: Path, path: Path):
    """The files below csrc that one includes."""
    for name in re.findall(r'^\s*#\s*(?:include|define REFORMER_ISA_BODY) "(.+)"', path.read_text(), re.MULTILINE):
        beside = Path(os.path.normpath(path.parent / name))
        found = beside if beside.exists() else root / name
        if found.exists():  # the emulator's is not there
            yield found.relative_to(root).as_posix()


def cpp_files(root: Path):
    return sorted(path for path in root.rglob("*") if path.suffix in (".h", ".cpp", ".hip", ".inc"))


def test_cpp_layers():
    root, found = ROOT / "csrc", set()
    for path in cpp_files(root):
        file = path.relative_to(root).as_posix()
        number, name = cpp_layer(file)
        for other in included(root, path):
            other_number, other_name = cpp_layer(other)
            if other_name != name and other_number >= number:
                found.add(f"{file} includes {other}")
    assert not found


def test_device_code_is_alone():
    """Kernels are compiled where nothing else of the package is: at run time, from one text."""
    root, device = ROOT / "csrc", compile_kernels.sources()
    names = {path.relative_to(root).as_posix() for path in device}
    assert names >= {path.relative_to(root).as_posix() for path in cpp_files(root / "hip/device")}
    assert not {f"{path.name} includes {other}" for path in device for other in included(root, path)} - {
        f"{path.name} includes {other}" for path in device for other in names
    }


def test_torch_is_known_to_operators_only():
    root = ROOT / "csrc"
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.[hc]*")
        if path.suffix in (".h", ".cpp") and re.search(r"#include <(ATen|c10|torch/(?!headeronly))", path.read_text())
    }
    assert found and all(file.startswith(TORCH) for file in found)


def test_private_names_of_torch():
    """What PyTorch may rename at any time is used in one file."""
    private = re.compile(r"torch\.(?!ops\.)(?:\w+\.)*_(?!check\b|_)\w+|forward_ad\._\w+")
    found = {}
    for path in python_files():
        relative = path.relative_to(ROOT / "torch_reformer").as_posix()
        if relative not in PRIVATE_TORCH and (names := set(private.findall(path.read_text()))):
            found[relative] = names
    assert not found
