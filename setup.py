"""Builds the native library of the package: torch's stable C ABI only, so it loads under every torch >= 2.11; and
csrc/aten, a small one for the torch at hand, which makes calls cheap, and one file of it by itself, which stands in for
a GPU (torch_reformer/compiler/fake_gpu.py). The kernels of this machine's GPUs are compiled beside them
(csrc/hip/compile_kernels.py).
"""

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
HEADERS = sorted(  # what is included, which source distributions take by `depends`
    str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".def", ".inc")
)
EXPORTS = "csrc/exports.map"
KERNELS = [str(path.relative_to(ROOT)) for path in [Path(compile_kernels.__file__), *compile_kernels.sources()]]

CXX_FLAGS = [
    "-O3",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror=switch",  # a switch over types has no default: a new type is an error wherever it is missing
    "-Wno-maybe-uninitialized",  # GCC 12 reports its own AVX-512 intrinsics
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    *(f"-isystem{path}" for path in include_paths()),  # torch's headers have warnings of their own
]
# TORCH_TARGET_VERSION 2.11 makes anything newer, and everything outside the stable ABI, a compile error.
STABLE_FLAGS = [*CXX_FLAGS, "-std=c++17", "-DTORCH_TARGET_VERSION=0x020b000000000000"]
# The name of the library for the torch at hand says which that is: one for another torch is not even tried.
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
        Extension(  # without Python's part of torch: it is loaded before Python begins
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
