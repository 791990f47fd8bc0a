"""Builds the one native library of the package: torch's stable C ABI only, so it loads under every torch >= 2.11.
The kernels of this machine's GPUs are compiled beside it (csrc/hip/compile_kernels.py).
"""

import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "csrc/hip"))
import compile_kernels  # noqa: E402

SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp"))
HEADERS = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.[hd]*") if path.suffix in (".h", ".def")
)
EXPORTS = "csrc/exports.map"
KERNELS = [str(path.relative_to(ROOT)) for path in [Path(compile_kernels.__file__), *compile_kernels.sources()]]

# TORCH_TARGET_VERSION 2.11 makes anything newer, and everything outside the stable ABI, a compile error.
CXX_FLAGS = [
    "-O3",
    "-g0",
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",  # GCC 12 reports its own AVX-512 intrinsics
    "-ffp-contract=fast",
    "-fvisibility=hidden",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
    *(f"-isystem{path}" for path in include_paths()),  # torch's headers have warnings of their own
]


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
            extra_compile_args={"cxx": CXX_FLAGS},
            extra_link_args=[f"-Wl,--version-script={EXPORTS}"],
        )
    ],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
