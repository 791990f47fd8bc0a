"""Build of the package's native libraries. The main library uses only torch's stable C ABI, so it loads under every
torch >= 2.11. csrc/aten is a small library for the installed version of torch, which makes calls cheap; one file of it
is a library of its own that stands in for a GPU (torch_reformer/compiler/analysis/fake_gpu.py). The GPU kernels for
this machine are compiled as well (csrc/hip/compile_kernels.py)."""

import sys
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths, library_paths

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "csrc/hip"))
import compile_kernels  # noqa: E402

ATEN = ROOT / "csrc/aten"
FAKE_GPU = "csrc/aten/fake_gpu.cpp"
SOURCES, ATEN_SOURCES = (
    sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp") if path.is_relative_to(ATEN) == aten)
    for aten in (False, True)
)
ATEN_SOURCES.remove(FAKE_GPU)
HEADERS = sorted(  # included files, which source distributions take from `depends`
    str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".def", ".inc")
)
EXPORTS = "csrc/exports.map"
KERNELS = [str(path.relative_to(ROOT)) for path in [Path(compile_kernels.__file__), *compile_kernels.sources()]]

CXX_FLAGS = [
    "-O3",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror=switch",  # a switch over types has no default, so that a new type is an error wherever it is missing
    "-Wno-maybe-uninitialized",  # GCC 12 warns about its own AVX-512 intrinsics
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    *(f"-isystem{path}" for path in include_paths()),  # torch's headers cause warnings
]
# With TORCH_TARGET_VERSION 2.11, any use of newer functions or of functions outside the stable ABI is a compile error.
STABLE_FLAGS = [*CXX_FLAGS, "-std=c++17", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
# The library's name contains the torch version it was built for, so a library for another torch is never loaded.
TORCH = "_".join(torch.__version__.split(".")[:2])


class Build(BuildExtension):
    def run(self):
        super().run()
        in_place = self.inplace or getattr(self, "editable_mode", False)
        compile_kernels.build((ROOT if in_place else Path(self.build_lib)) / "torch_reformer/kernels")


setup(
    ext_modules=[
        CppExtension(
            "torch_reformer._C",
            SOURCES,
            depends=[*HEADERS, *KERNELS, EXPORTS, "setup.py"],
            include_dirs=[str(ROOT / "csrc")],
            py_limited_api=True,
            extra_compile_args={"cxx": STABLE_FLAGS},
            extra_link_args=[f"-Wl,--version-script={EXPORTS}"],
        ),
        CppExtension(
            f"torch_reformer._aten_{TORCH}",
            ATEN_SOURCES,
            depends=[*HEADERS, "setup.py"],
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args={"cxx": [*CXX_FLAGS, "-std=c++20"]},
        ),
        Extension(  # not linked with torch's Python part, since it is loaded before Python starts
            f"torch_reformer._fake_gpu_{TORCH}",
            [FAKE_GPU],
            depends=["setup.py"],
            library_dirs=library_paths(),
            libraries=["c10", "torch_cpu"],
            extra_compile_args={"cxx": [*CXX_FLAGS, "-std=c++20"]},
        ),
    ],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
