"""The host code is C++17 for other compilers and standard libraries, too, not only for those that built the library."""

import os
import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parent.parent
CSRC, BENCHMARKS = ROOT / "csrc", ROOT / "benchmarks"
SOURCES = sorted([*CSRC.glob("cpu/**/*.cpp"), *CSRC.glob("selector/*.cpp"), *BENCHMARKS.rglob("*.cpp")])
FOLDERS = [CSRC, BENCHMARKS / "gamma_block/sequence_classifier"]
CLANG = shutil.which("clang++")
CLANG_19 = shutil.which("clang++-19")
FLAGS = ["-fsyntax-only", "-Wall", "-Werror", "-Wno-unknown-warning-option", "-DTORCH_EXTENSION_NAME=extension"]
FLAGS += [f"-I{folder}" for folder in FOLDERS]
FLAGS += [f"-isystem{folder}" for folder in (*include_paths(), sysconfig.get_path("include"))]


def flags_of(path: Path) -> list[str]:
    """The flags of setup.py: csrc/aten is for one torch, whose headers want C++20, all else for its stable ABI."""
    of_aten = path.is_relative_to(CSRC / "aten")
    return [*FLAGS, *(["-std=c++20"] if of_aten else ["-std=c++17", "-DTORCH_TARGET_VERSION=0x020b000000000000"])]


@cache
def files_of(path: Path) -> frozenset[Path]:
    """The file and every file of this repository that it includes, also indirectly."""
    names = re.findall(r'"([\w./]+)"', "".join(re.findall(r"^#(?:include|define) .*$", path.read_text(), re.MULTILINE)))
    included = {(folder / name).resolve() for name in names for folder in (path.parent, *FOLDERS)}
    return frozenset([path]).union(*(files_of(file) for file in included if file.is_file()))


# Headers of host code with `#pragma once`. Headers without it are parts of another file, of an ISA body for example;
# headers that no .cpp includes are for the compilers of device code.
HEADERS = sorted(
    path
    for path in frozenset().union(*(files_of(source) for folder in FOLDERS for source in folder.rglob("*.cpp")))
    if path.suffix == ".h" and "#pragma once" in path.read_text()
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def finds_libcxx() -> bool:
    command = [CLANG_19, "-stdlib=libc++", "-fsyntax-only", "-x", "c++", "-"]
    return subprocess.run(command, input="#include <string>", capture_output=True, text=True).returncode == 0


# In CI (CI=1) a missing compiler or library is a failure: .ci/run installs it.
@pytest.mark.skipif(CLANG is None and not os.environ.get("CI"), reason="there is no clang++ on this machine")
@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_clang_accepts(source):
    assert CLANG, "clang++ is missing: apt install clang"
    done = subprocess.run([CLANG, *flags_of(source), source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("header", HEADERS, ids=name_of)
def test_header_stands_alone(header):
    if not os.environ.get("CI") and not (CLANG_19 and finds_libcxx()):
        pytest.skip("there is no clang++-19 with libc++ on this machine: apt install clang-19 libc++-19-dev")
    assert CLANG_19, "clang++-19 is missing: apt install clang-19"
    command = [CLANG_19, "-stdlib=libc++", *flags_of(header), "-x", "c++-header", header]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# GCC 13's <string> no longer includes <cstdint>; that of GCC 12 does, and libc++'s.
@pytest.mark.parametrize("header", HEADERS, ids=name_of)
def test_header_includes_fixed_width_integers(header):
    text = "".join(path.read_text() for path in files_of(header))
    if re.search(r"\bu?int(8|16|32|64)_t\b", header.read_text()):
        assert "#include <cstdint>" in text, f"{name_of(header)} names fixed-width integers without <cstdint>"
