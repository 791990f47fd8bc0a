"""Libraries for the installed torch are compiled once, at first use, or one sentence says why not."""

import re
import subprocess
import sys

import pytest
from marks import needs_aten

from torch_reformer.runtime import aten, compile_library, libraries
from torch_reformer.runtime.compile_library import CannotCompile

FIND = """
from torch_reformer.runtime import libraries
print("path:", libraries._cached("aten"))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_REFORMER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache/libraries"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that notes its calls, and gives the library of this process after a while; or fails."""

    def set_compiler(command: str):
        script = tmp_path / "compiler"
        script.write_text(
            f'#!/bin/sh\necho called >>{tmp_path}/calls\nwhile [ "$1" != -o ]; do shift; done\n{command}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return lambda: (tmp_path / "calls").read_text().count("called")

    return set_compiler


COPY = f'sleep 1; cp "{getattr(aten.library, "__file__", None)}" "$2"'


@needs_aten
def test_many_processes_compile_once(compiler, cache):
    calls = compiler(COPY)
    command = [sys.executable, "-c", FIND]
    both = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert calls() == 1
    assert sum("compiling its library for torch" in error for _, error in outputs) == 1, "one line, by the one process"
    (path,) = cache.glob("*.so")
    assert all(f"path: {path}" in output for output, _ in outputs)
    assert libraries._cached("aten") == path and calls() == 1, "found again"


def test_failure_is_remembered(compiler, cache):
    calls = compiler("echo 'error: no such word'; exit 1")
    for _ in range(2):
        with pytest.raises(CannotCompile, match="did not compile; .*log says why") as raised:
            libraries._cached("aten")
    assert calls() == 1
    (log,) = cache.glob("*.log")
    assert str(log) in str(raised.value) and "no such word" in log.read_text()
    log.unlink()
    with pytest.raises(CannotCompile):
        libraries._cached("aten")
    assert calls() == 2


def test_without_a_compiler(monkeypatch, cache):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CannotCompile, match=re.escape("needs a C++ compiler (no-such-compiler is missing; ")):
        libraries._cached("aten")
    assert not list(cache.glob("*.log")), "once there is one, it is used"


@pytest.mark.parametrize("compiler, packages", [("true", ""), ("no-such-compiler", r"g\+\+ ")])
def test_without_python_headers(monkeypatch, tmp_path, compiler, packages):
    """One message names all that is missing."""
    monkeypatch.setattr(compile_library.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(
        CannotCompile, match=rf"Python's headers \(.*: apt install {packages}python3\.\d+-dev on Debian"
    ):
        libraries._cached("aten")


@needs_aten
def test_files_of_others_are_refused(compiler, cache):
    compiler(COPY)
    path = libraries._cached("aten")
    path.chmod(0o666)
    with pytest.raises(CannotCompile, match="others may have written"):
        libraries._cached("aten")
    path.chmod(0o600)
    cache.chmod(0o777)
    with pytest.raises(CannotCompile, match="others may have written"):
        libraries._cached("aten")


def test_a_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_REFORMER_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CannotCompile, match="set TORCH_REFORMER_CACHE_DIR to a folder that you can write to"):
        libraries._cached("aten")


def test_sources_are_complete(tmp_path):
    """A wheel's folder holds every file that the libraries include."""
    compile_library.copy_sources(tmp_path)
    copied = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(copied) > 30
    for path in copied:
        for name in re.findall(r'^\s*#\s*include "(.+)"', path.read_text(), re.M):
            assert (path.parent / name).exists() or (tmp_path / name).exists(), f"{path} includes {name}"
