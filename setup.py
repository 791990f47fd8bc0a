"""Builds the one native library of the package: torch's stable C ABI only, so it loads under every torch >= 2.11."""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp"))
HEADERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.h"))

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

setup(
    ext_modules=[
        CppExtension(
            "torch_reformer._C",
            SOURCES,
            depends=[*HEADERS, "setup.py"],
            py_limited_api=True,
            extra_compile_args={"cxx": CXX_FLAGS},
        )
    ],
    cmdclass={"build_ext": BuildExtension},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
