"""Build of the package's native library, which uses only torch's stable C ABI: it loads under every torch >= 2.11 and
every Python >= 3.10. The libraries for one torch and one Python (csrc/aten) are built here in source trees only; wheels
have their sources, which torch_reformer/runtime/libraries.py compiles at first use. The GPU kernels for this machine
are compiled as well (csrc/hip/compile_kernels.py)."""

import importlib.util
import re
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).resolve().parent  # `python -m build` names this file without its folder
sys.path.insert(0, str(ROOT / "csrc/hip"))
import compile_kernels  # noqa: E402

PACKAGE = ROOT / "torch_reformer"
_spec = importlib.util.spec_from_file_location("compile_library", PACKAGE / "runtime/compile_library.py")
compile_library = importlib.util.module_from_spec(_spec)  # the package can't be imported before it is built
_spec.loader.exec_module(compile_library)


def of_csrc(*suffixes: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.suffix in suffixes)


SOURCES = [path for path in of_csrc(".cpp") if not path.startswith("csrc/aten/")]
EXPORTS = "csrc/exports.map"
KERNELS = [str(path.relative_to(ROOT)) for path in [Path(compile_kernels.__file__), *compile_kernels.sources()]]
DEPENDS = [*of_csrc(".cpp", ".h", ".def", ".inc"), *KERNELS, EXPORTS, "setup.py"]  # source distributions take them
SWITCH = "-Werror=switch"  # a switch over types has no default: a new type is an error wherever it is missing
CXX_FLAGS = [
    "-O3",
    "-g0",
    "-Wall",
    "-Wextra",
    SWITCH,
    "-Wno-maybe-uninitialized",  # GCC 12 warns about its own AVX-512 intrinsics
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    *(f"-isystem{path}" for path in include_paths()),  # torch's headers cause warnings
]
# With TORCH_TARGET_VERSION 2.11, any use of newer functions or of functions outside the stable ABI is a compile error.
STABLE_FLAGS = [*CXX_FLAGS, "-std=c++17", "-DTORCH_TARGET_VERSION=0x020b000000000000"]


class Build(BuildExtension):
    def run(self):
        super().run()
        in_place = self.inplace or getattr(self, "editable_mode", False)
        package = PACKAGE if in_place else Path(self.build_lib) / PACKAGE.name
        compile_kernels.build(package / "kernels")
        if in_place:
            for library in compile_library.LIBRARIES:
                build_for_this_torch(library)
        else:
            compile_library.copy_sources(package / "csrc")


def for_readers_elsewhere(text: str) -> str:
    """The README for package indexes, where links to the repository's files and its pictures lead nowhere: the links'
    text stays, and pictures go with their captions, the paragraphs in italics behind them."""
    text = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*(\*[^*]+\*\n+)?", "", text)
    return re.sub(r"\[(`?[^][]*`?)\]\((?!https?:)[^)]*\)", r"\1", text)


def build_for_this_torch(library: str) -> None:
    result = PACKAGE / compile_library.file_name(library)
    sources = [Path(compile_library.__file__), *compile_library.sources(library)]
    if not result.exists() or result.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        print(compile_library.compile_library(library, result, [SWITCH]), end="")


setup(
    ext_modules=[
        CppExtension(
            "torch_reformer._C",
            SOURCES,
            depends=DEPENDS,
            include_dirs=[str(ROOT / "csrc")],
            py_limited_api=True,
            extra_compile_args={"cxx": STABLE_FLAGS},
            extra_link_args=[f"-Wl,--version-script={EXPORTS}"],
        )
    ],
    long_description=for_readers_elsewhere((ROOT / "README.md").read_text()),
    long_description_content_type="text/markdown",
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
