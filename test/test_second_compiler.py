"""The CPU code is C++17 for clang too, not only for the compiler that built the library."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

CSRC = Path(__file__).parent.parent / "csrc"
SOURCES = sorted(CSRC.glob("cpu/**/*.cpp"))
CLANG = shutil.which("clang++")
FLAGS = ["-std=c++17", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unknown-warning-option"]


# In CI (CI=1) a missing clang++ is a failure: .ci/run installs it.
@pytest.mark.skipif(CLANG is None and not os.environ.get("CI"), reason="there is no clang++ on this machine")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_clang_accepts(source):
    assert CLANG, "clang++ is missing: apt install clang"
    includes = [f"-isystem{path}" for path in include_paths()]
    defines = ["-DTORCH_TARGET_VERSION=0x020b000000000000"]
    done = subprocess.run([CLANG, *FLAGS, *defines, *includes, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
