"""Code objects for the package (csrc/hip/compile_kernels.py), with a compiler that only records its arguments."""

import os
import shutil
import sys
import time
from pathlib import Path

import kernel_folders
import pytest

sys.path.insert(0, str(kernel_folders.HIP))
import compile_kernels  # noqa: E402

COMPILER = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; all="$all $1"; shift; done
case "$all" in *FAIL*) echo "no such thing" >&2; exit 1;; esac
echo "$all" >$out
"""


in_sight = compile_kernels.in_sight


@pytest.fixture(autouse=True)
def tree(tmp_path, monkeypatch):
    """The kernel of test/hip in place of those of csrc/hip, and a compiler for AMD's GPUs only."""
    kernel_folders.make(tmp_path)
    monkeypatch.setattr(compile_kernels, "HERE", tmp_path / "src")
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setattr(compile_kernels, "find_clang", lambda: str(compiler))
    monkeypatch.setattr(compile_kernels, "find_nvcc", lambda: None)
    monkeypatch.delenv("REFORMER_ARCHS", raising=False)
    monkeypatch.setattr(compile_kernels, "in_sight", lambda: compile_kernels.ARCHITECTURES)
    return tmp_path / "src"


@pytest.fixture
def package(tmp_path):
    return tmp_path / "package"


def names(package: Path) -> list[str]:
    return sorted(path.name for path in package.iterdir() if path.is_file())


def change(path: Path) -> None:
    later = time.time() + 10
    os.utime(path, (later, later))


def test_what_there_is_a_compiler_for(package, capsys):
    compile_kernels.build(package)
    assert names(package) == ["scale.gfx908.co", "scale.gfx90a.co", "scale.gfx942.co"]
    line = "GPU kernels: gfx908, gfx90a, gfx942 (3 compiled, 0 up to date); no compiler for sm_80, sm_90a: compiled at"
    assert line in capsys.readouterr().out
    assert (package / "src/test/scale.hip").exists() and (package / "src/device/types.h").exists()


def test_everything_is_packaged(package, tree, monkeypatch):
    """All kernels that exist, for each architecture with the instructions that they need."""
    monkeypatch.setattr(compile_kernels, "HERE", kernel_folders.HIP)
    monkeypatch.setattr(compile_kernels, "find_nvcc", compile_kernels.find_clang)
    monkeypatch.setenv("REFORMER_ARCHS", " ".join(compile_kernels.ARCHITECTURES))
    compile_kernels.build(package)
    assert names(package) == sorted(
        f"{file.stem}.{arch}.{'co' if arch.startswith('gfx') else 'cubin'}"
        for file in kernel_folders.HIP.glob("*/*.hip")
        for arch in compile_kernels.ARCHITECTURES
        if compile_kernels.is_packaged(file.stem, arch)
    )


@pytest.mark.parametrize("changed", ["test/scale.hip", "test/scale.inc", "device/types.h"])
def test_only_what_changed(package, tree, capsys, changed):
    shutil.copy(tree / "test/scale.hip", tree / "test/other.hip")
    compile_kernels.build(package)
    compile_kernels.build(package)
    assert "(6 compiled, 0 up to date)" in (shown := capsys.readouterr().out) and "(0 compiled, 6 up to date)" in shown
    change(tree / changed)
    compile_kernels.build(package)
    assert f"({3 if changed.endswith('.hip') else 6} compiled, " in capsys.readouterr().out
    (tree / "test/other.hip").unlink()
    compile_kernels.build(package)
    assert not any(name.startswith("other") for name in names(package))
    assert not (package / "src/test/other.hip").exists()


def test_architectures_asked_for(package, monkeypatch):
    monkeypatch.setenv("REFORMER_ARCHS", "gfx942, gfx1100")
    compile_kernels.build(package)
    assert names(package) == ["scale.gfx1100.co", "scale.gfx942.co"]
    monkeypatch.setenv("REFORMER_ARCHS", "")
    compile_kernels.build(package)
    assert names(package) == []
    monkeypatch.setenv("REFORMER_ARCHS", "sm_86")
    with pytest.raises(SystemExit, match="REFORMER_ARCHS asks for sm_86, and there is no compiler for that"):
        compile_kernels.build(package)


def test_nothing_without_a_gpu(package, monkeypatch, capsys):
    compile_kernels.build(package)
    monkeypatch.setattr(compile_kernels, "in_sight", lambda: ())
    compile_kernels.build(package)  # files that are up to date stay
    change(compile_kernels.HERE / "test/scale.hip")
    compile_kernels.build(package)
    assert names(package) == []
    line = "GPU kernels: none (0 compiled, 0 up to date); no GPU in sight: compiled at first use on a machine with one"
    shown = capsys.readouterr().out.splitlines()
    assert "(0 compiled, 3 up to date)" in shown[1] and shown[2].startswith(line)


@pytest.mark.parametrize(
    ("tools", "device_files", "expected"),
    [
        ({}, [], []),
        ({"nvidia-smi": "echo 9.0; echo 9.0"}, ["sm_"], ["sm_90a"]),
        ({"nvidia-smi": "echo 8.6"}, ["sm_"], ["sm_80"]),
        ({"nvidia-smi": "echo 12.0"}, ["sm_"], []),  # newer than the packaged architectures
        ({"nvidia-smi": "echo no driver; exit 9"}, [], []),
        ({"rocm_agent_enumerator": "echo gfx000; echo gfx90a"}, ["gfx"], ["gfx90a"]),
        ({"rocm_agent_enumerator": "echo gfx000; echo gfx1100"}, ["gfx"], []),
        ({}, ["sm_"], ["sm_80", "sm_90a"]),
        ({"nvidia-smi": "echo 9.0"}, ["sm_", "gfx"], ["gfx908", "gfx90a", "gfx942", "sm_90a"]),
    ],
)
def test_gpus_in_sight(tools, device_files, expected, tmp_path, monkeypatch):
    bin = tmp_path / "bin"
    bin.mkdir()
    for name, script in tools.items():
        (bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    files = {vendor: bin if vendor in device_files else tmp_path / "nothing" for vendor in ("gfx", "sm_")}
    monkeypatch.setattr(compile_kernels, "DEVICE_FILES", files)
    assert list(in_sight()) == expected


def test_what_was_made_elsewhere_stays_while_it_is_new(package, tree):
    package.mkdir()
    cubin = package / "scale.sm_90a.cubin"
    cubin.write_text("carried here")
    change(cubin)
    compile_kernels.build(package)
    assert cubin.exists()
    os.utime(cubin, (1, 1))
    compile_kernels.build(package)
    assert not cubin.exists()


def test_errors_show_the_compilers_words(package, tree):
    (tree / "test/FAIL.hip").write_text("")
    with pytest.raises(SystemExit, match="compiler can't compile FAIL.hip for gfx908 .*\n.*no such thing"):
        compile_kernels.build(package)
    assert not any("FAIL" in name for name in names(package))
