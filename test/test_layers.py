"""Folders are layers: each may import its own files and the layers that its line below names (docs/design.md)."""

import ast
import os
import re
from pathlib import Path

import pytest
from compiled import compile_kernels

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torch_reformer"
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
    "training": "runtime compiler",
    "selector": "version runtime program problem",
    "tuning": "version runtime program problem operators selector",
    "demo": "runtime problem selector",
    "__main__": "runtime compiler selector tuning",
    "__init__": "version runtime program problem functional nn override fuse training selector tuning",
}
# The compiler's folders. Only the files beside them, which put the stages in order, may import every folder.
COMPILER = {
    "ir": "",
    "pre_grad": "ir",
    "decompositions": "ir",
    "joint_graph": "ir",
    "lowering": "ir",
    "passes": "ir",
    "fusion": "ir",
    "codegen": "ir fusion",
    "analysis": "ir fusion",
    "runtime": "ir lowering fusion codegen analysis",
}
COMPILER_ROOT = {"__init__.py", "backend.py", "cli.py", "pipeline.py"}
# From the bottom to the top. A name is a folder or the stem of several files; it may include what the lines above name.
CPP = [
    "types hip/devices",
    "device planned set_cache numbered hip/device",
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
PRIVATE_TORCH = {
    "operators/dispatch.py",
    "compiler/backend.py",
    "compiler/pipeline.py",
    "compiler/analysis/fake_gpu.py",
    "compiler/analysis/record.py",
    "compiler/analysis/trace.py",
    "compiler/decompositions/group_norm.py",
    "compiler/decompositions/table.py",
    "compiler/decompositions/roll.py",
    "compiler/decompositions/tracing.py",
    "compiler/ir/fake_tensors.py",
    "compiler/ir/fx_utils.py",
    "compiler/ir/sized_results.py",
    "compiler/joint_graph/fold_constants.py",
    "compiler/joint_graph/memory_budget.py",
    "compiler/joint_graph/mutated_inputs.py",
    "compiler/joint_graph/propagate_memory_format.py",
    "compiler/joint_graph/share_equal_nodes.py",
    "compiler/lowering/from_fx.py",
    "compiler/pre_grad/attention_masks.py",
    "compiler/pre_grad/writes.py",
    "compiler/runtime/compiled.py",
    "compiler/runtime/cuda_graphs.py",
    "compiler/runtime/dynamic.py",
    "compiler/runtime/executable.py",
    "compiler/runtime/measure.py",
    "compiler/runtime/partial_plan.py",
    "compiler/runtime/pickled_graph.py",
    "compiler/runtime/sized_graph.py",
    "compiler/runtime/static_sizes.py",
    "compiler/runtime/stored_templates.py",
    "training/capture.py",
    "training/logged.py",
    "training/recording.py",
    "training/step.py",
    "training/tracing.py",
}
MOST_LINES = 475


def python_files(folder: Path = PACKAGE) -> list[Path]:
    """The folder's Python files, without those that the build writes beside the kernels."""
    return sorted(path for path in folder.rglob("*.py") if "kernels" not in path.relative_to(PACKAGE).parts)


def relative_to_package(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported(path: Path):
    """The package's modules that a file imports, as tuples of names below torch_reformer."""
    package = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + tuple(node.module.split(".") if node.module else ())
            yield from (base + (alias.name,) for alias in node.names)


def not_allowed(files: list[Path], layers: dict[str, str], depth: int) -> set[str]:
    """Imports that the layers forbid; a layer is the name at this depth of a file's path and of a module's."""
    errors = set()
    for path in files:
        layer = path.relative_to(PACKAGE).parts[depth].removesuffix(".py")
        allowed = {layer, *layers[layer].split()}
        for module in imported(path):
            if module[:depth] == path.relative_to(PACKAGE).parts[:depth]:
                other = module[depth] if len(module) > depth else "__init__"
                if other not in allowed:
                    errors.add(f"{relative_to_package(path)} imports {'.'.join(module)}")
    return errors


def test_python_layers():
    assert not not_allowed(python_files(), PYTHON, depth=0)


def test_layers_of_the_compiler():
    files = [path for folder in COMPILER for path in python_files(PACKAGE / "compiler" / folder)]
    assert not not_allowed(files, COMPILER, depth=1)


def test_files_of_the_compiler():
    """Each folder has a layer; the root has no more files than those that put the stages in order."""
    root = PACKAGE / "compiler"
    assert {path.name for path in root.glob("*.py")} <= COMPILER_ROOT
    assert {path.relative_to(root).parts[0] for path in python_files(root)} - COMPILER_ROOT == set(COMPILER)


@pytest.mark.parametrize("name", PYTHON)
def test_python_layers_exist(name):
    assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


@pytest.mark.parametrize("layers", [PYTHON, COMPILER], ids=["package", "compiler"])
def test_python_layers_have_no_circles(layers):
    """The rules themselves are a hierarchy: no layer is below itself."""

    def below(name, seen=()):
        assert name not in seen, f"{name} is below itself"
        for other in layers[name].split():
            below(other, (*seen, name))

    for name in layers:
        below(name)


def test_files_of_the_compiler_have_no_circles():
    paths = {}
    for path in python_files(PACKAGE / "compiler"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        paths[parts[:-1] if parts[-1] == "__init__" else parts] = path
    done = set()

    def visit(file, seen=()):
        assert file not in seen, " imports ".join(".".join(other) for other in (*seen[seen.index(file) :], file))
        if file in done:
            return
        for module in imported(paths[file]):
            other = module if module in paths else module[:-1]  # without the name that is imported from it
            if other in paths:
                visit(other, (*seen, file))
        done.add(file)

    for file in paths:
        visit(file)


def test_files_are_short():
    lines = {relative_to_package(path): len(path.read_text().splitlines()) for path in python_files()}
    long = {file: count for file, count in lines.items() if count > MOST_LINES}
    assert not long


def cpp_layer(file: str) -> tuple[int, str]:
    """The number of the line of CPP, and the name on it, that a file below csrc belongs to."""
    matches = [
        (len(name), number, name)
        for number, line in enumerate(CPP)
        for name in line.split()
        if file.startswith((f"{name}/", f"{name}.", f"{name}_"))
    ]
    _, number, name = max(matches)
    return number, name


def included(root: Path, path: Path):
    """The files below csrc that one includes."""
    for name in re.findall(r'^\s*#\s*(?:include|define REFORMER_ISA_BODY) "(.+)"', path.read_text(), re.MULTILINE):
        beside = Path(os.path.normpath(path.parent / name))
        file = beside if beside.exists() else root / name
        if file.exists():  # the emulator's headers are not below csrc
            yield file.relative_to(root).as_posix()


def cpp_files(root: Path):
    return sorted(path for path in root.rglob("*") if path.suffix in (".h", ".cpp", ".hip", ".inc"))


def test_cpp_layers():
    root, errors = ROOT / "csrc", set()
    for path in cpp_files(root):
        file = path.relative_to(root).as_posix()
        number, name = cpp_layer(file)
        for other in included(root, path):
            other_number, other_name = cpp_layer(other)
            if other_name != name and other_number >= number:
                errors.add(f"{file} includes {other}")
    assert not errors


def test_device_code_includes_only_device_code():
    """Kernels are also compiled at run time, from one source text, without the package's other headers."""
    root, device = ROOT / "csrc", compile_kernels.sources()
    names = {path.relative_to(root).as_posix() for path in device}
    assert names >= {path.relative_to(root).as_posix() for path in cpp_files(root / "hip/device")}
    assert not {f"{path.name} includes {other}" for path in device for other in included(root, path)} - {
        f"{path.name} includes {other}" for path in device for other in names
    }


def test_torch_is_known_to_operators_only():
    root = ROOT / "csrc"
    users = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.[hc]*")
        if path.suffix in (".h", ".cpp") and re.search(r"#include <(ATen|c10|torch/(?!headeronly))", path.read_text())
    }
    assert users and all(file.startswith(TORCH) for file in users)


def test_private_names_of_torch():
    """Names that PyTorch may change at any time are used only in the files of PRIVATE_TORCH."""
    private = re.compile(r"torch\.(?!ops\.)(?:\w+\.)*_(?!check\b|_)\w+|forward_ad\._\w+")
    texts = {relative_to_package(path): path.read_text() for path in python_files()}
    names = {file: set(private.findall(text)) for file, text in texts.items() if file not in PRIVATE_TORCH}
    assert not {file: private_names for file, private_names in names.items() if private_names}
    assert texts.keys() >= PRIVATE_TORCH
