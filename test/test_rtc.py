"""Run-time compilation of kernels and its cache. NVRTC needs no GPU."""

import ctypes
import functools
import os
import re
import subprocess
import sys
import time

import kernel_folders
import pytest
from kernel_folders import SCALE

from torch_reformer.__main__ import main
from torch_reformer.runtime import cache, compile_ahead, gpu

HAS_NVRTC = kernel_folders.load_nvrtc()
pytestmark = pytest.mark.skipif(
    not HAS_NVRTC and not os.environ.get("CI"), reason="NVRTC is not installed: pip install nvidia-cuda-nvrtc"
)


@pytest.fixture(autouse=True)
def kernels(tmp_path):
    assert HAS_NVRTC, "NVRTC is missing: pip install nvidia-cuda-nvrtc"
    with kernel_folders.used(kernel_folders.make(tmp_path / "kernels")) as folder:
        yield folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_REFORMER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_wheel_is_found(tmp_path):
    """NVRTC is found in a process that has not loaded it."""
    key = "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-FP16-F"
    command = [sys.executable, "-m", "torch_reformer", "explain", key, "--device", "sm_90"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "NVRTC" not in done.stdout and "gpu_gemm" in done.stdout


def compile_scale(arch="sm_90") -> gpu.Compiled:
    return gpu.compile_entry(SCALE, arch)


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_compiles_one_entry(arch):
    code = compile_scale(arch).code
    assert code.startswith(b"\x7fELF")
    assert b"scale_fp32_3\0" in code and b"scale_fp32_2\0" not in code


def test_is_quick():
    assert seconds(compile_scale) < 2
    assert min(seconds(compile_scale) for _ in range(10)) < 5e-3


def test_is_cached():
    first = compile_scale()
    assert not first.from_cache
    assert compile_scale() == (first.code, True)
    assert not compile_scale("sm_80").from_cache
    other = gpu.compile_entry(gpu.Entry("test/scale", "scale_fp32_4", "fp32, 4"), "sm_90")
    assert not other.from_cache and b"scale_fp32_4\0" in other.code


def test_the_key_knows_every_source_and_no_folder(kernels, tmp_path):
    compile_scale()
    with kernel_folders.used(kernels.rename(tmp_path / "elsewhere")) as moved:
        assert compile_scale().from_cache
        header = moved / "src/device/types.h"
        header.write_text(header.read_text() + "// changed\n")
        assert not compile_scale().from_cache


def test_the_log_names_file_and_line(kernels):
    path = kernels / "src/test/scale.h"
    path.write_text(path.read_text().replace("int count;", "int count;\n  Nonsense more;"))
    line = path.read_text().splitlines().index("  Nonsense more;") + 1
    sentence = rf'test/scale scale_fp32_3 can\'t be compiled for sm_90: NVRTC .*scale\.h\({line}\): error.*"Nonsense"'
    with pytest.raises(ValueError, match=re.compile(sentence, re.S)):
        compile_scale()


def test_wrong_architecture_and_missing_source():
    with pytest.raises(ValueError, match="(?s)be compiled for sm_11: NVRTC .*invalid value for --gpu-architecture"):
        compile_scale("sm_11")
    with pytest.raises(ValueError, match="nothing.hip can't be read"):
        gpu.compile_entry(gpu.Entry("nothing", "x", ""), "sm_90")


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "empty"])
def test_damaged_files_count_as_none(damage):
    code = compile_scale().code
    (entry,) = cache.cached()
    data = bytearray(entry.path.read_bytes())
    if damage == "cut":
        data = data[:-100]
    elif damage == "flip":
        data[-100] ^= 1
    elif damage == "other":
        compile_scale("sm_80")
        (other,) = (each for each in cache.cached() if each.path != entry.path)
        data = other.path.read_bytes()
    else:
        data = b""
    entry.path.write_bytes(data)
    again = compile_scale()
    assert not again.from_cache and again.code == code
    assert compile_scale().from_cache


def test_processes_may_race(folder):
    children = []
    for _ in range(8):
        if (child := os.fork()) == 0:
            try:
                code = compile_scale().code
                os._exit(0 if b"scale_fp32_3\0" in code else 1)
            finally:
                os._exit(2)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
    assert len(list(folder.iterdir())) == 1
    assert compile_scale().from_cache


def test_the_limit_removes_what_was_used_longest_ago(monkeypatch):
    archs = ["sm_80", "sm_86", "sm_89", "sm_90"]
    for age, arch in enumerate(archs[:3]):
        compile_scale(arch)
        path = next(each.path for each in cache.cached() if each.words["architecture"] == arch)
        os.utime(path, (1e9 + age, 1e9 + age))
    assert compile_scale("sm_80").from_cache  # sm_86 is now the least recently used
    size = max(each.bytes for each in cache.cached())
    monkeypatch.setenv("TORCH_REFORMER_CACHE_LIMIT", str(3 * size + size // 2))
    compile_scale("sm_90")
    assert [each.words["architecture"] for each in cache.cached()] == ["sm_90", "sm_80", "sm_89"]


def test_limit_of_nothing(monkeypatch, folder):
    monkeypatch.setenv("TORCH_REFORMER_CACHE_LIMIT", "0")
    assert not compile_scale().from_cache
    assert not compile_scale().from_cache
    assert not folder.exists()


def test_unwritable_folders_warn_once(monkeypatch, folder, capfd):
    folder.write_text("a file is in the way")
    assert not compile_scale().from_cache
    assert not compile_scale().from_cache
    assert capfd.readouterr().err.count("can't be cached") <= 1


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_REFORMER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert str(gpu.cache_folder()) == "/x/torch_reformer"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(gpu.cache_folder()) == f"{tmp_path}/.cache/torch_reformer"
    monkeypatch.delenv("HOME")
    assert gpu.cache_folder() is None


def test_command_line(capsys, folder):
    compile_scale()
    (folder / "mine.txt").write_text("not the cache's")
    (folder / "damaged.code").write_text("?")
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "test/scale scale_fp32_3  sm_90  NVRTC" in shown and "damaged" in shown and "2 kernels, " in shown
    assert main(["cache", "--clear"]) == 0
    assert "removed 2 kernels" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


# --- files of other users
# -----------------------------------------------------------------------------------------------
# Each in a separate process: a warning is given once per process.


def in_a_process(kernels, folder, **environment) -> subprocess.CompletedProcess:
    """Compile twice and report whether each kernel came from the cache."""
    script = """
import sys
import kernel_folders
from torch_reformer.runtime import gpu
kernel_folders.load_nvrtc()
gpu.set_kernels_folder(sys.argv[1])
print([gpu.compile_entry(kernel_folders.SCALE, "sm_90").from_cache for _ in range(2)])
"""
    environment = {**os.environ, "TORCH_REFORMER_CACHE_DIR": str(folder), **environment}
    options = dict(cwd=kernel_folders.TEST, env=environment, capture_output=True, text=True, timeout=120)
    return subprocess.run([sys.executable, "-c", script, kernels], **options)


def warnings_of(done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("torch_reformer: ")]


@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_loaded(what, mode, folder, kernels):
    compile_scale()
    (entry,) = cache.cached()
    path = folder if what == "folder" else entry.path
    path.chmod(path.stat().st_mode | mode)
    done = in_a_process(kernels, folder)
    (warning,) = warnings_of(done)
    assert f'"{path}", since others may write to it (chmod go-w)' in warning
    # A file is replaced by one of this user.
    assert done.stdout == ("[False, False]\n" if what == "folder" else "[False, True]\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_loaded(what, folder, kernels):
    compile_scale()
    (entry,) = cache.cached()
    path = folder if what == "folder" else entry.path
    os.chown(path, 12345, 12345)
    done = in_a_process(kernels, folder)
    (warning,) = warnings_of(done)
    assert f'"{path}", since it belongs to another user' in warning
    assert done.stdout.startswith("[False, ")


def test_only_the_user_may_write_to_what_is_made(folder):
    mask = os.umask(0)
    try:
        compile_scale()
    finally:
        os.umask(mask)
    (entry,) = cache.cached()
    assert folder.stat().st_mode & 0o777 == 0o700 and entry.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["fifo", "device", "link", "folder"])
def test_what_is_no_regular_file_counts_as_none(kind, folder, tmp_path):
    code = compile_scale().code
    (entry,) = cache.cached()
    original = entry.path.rename(tmp_path / "original")
    if kind == "fifo":
        os.mkfifo(entry.path)
    elif kind == "device":
        entry.path.symlink_to("/dev/zero")
    elif kind == "link":
        entry.path.symlink_to(original)
    else:
        entry.path.mkdir()
        (entry.path / "mine").write_text("")
    assert cache.cached() == [] and cache.clear() == 0
    before = original.read_bytes()
    assert compile_scale() == (code, False)
    assert original.read_bytes() == before
    assert compile_scale().from_cache == (kind != "folder")
    assert main(["cache"]) == 0


def test_no_link_is_written_through(folder, tmp_path, monkeypatch):
    """Names of temporary files were predictable once: the process id and a count."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    compile_scale()
    (entry,) = cache.cached()
    entry.path.unlink()
    for count in range(100):
        (folder / f"{entry.path.name}.{os.getpid()}.{count}.tmp").symlink_to(victim)
    assert not compile_scale().from_cache
    assert victim.read_text() == "precious" and compile_scale().from_cache


@pytest.mark.parametrize("value", ["abc", pytest.param("-1", marks=pytest.mark.slow)])
def test_a_limit_that_is_no_number(value, folder, kernels):
    done = in_a_process(kernels, folder, TORCH_REFORMER_CACHE_LIMIT=value)
    sentence = f'TORCH_REFORMER_CACHE_LIMIT must be a number of bytes, got "{value}": it is 268435456 instead'
    assert warnings_of(done) == [f"torch_reformer: {sentence}"]


class Arguments(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte)]


def scales(*counts) -> list[gpu.Entry]:
    return [gpu.Entry("test/scale", f"scale_fp32_{count}", f"fp32, {count}") for count in counts]


def launch_all(entries):
    for entry in entries:
        gpu.launch(entry, Arguments())


def compiled(run, architecture="sm_90") -> int:
    ahead = compile_ahead.compile_ahead(architecture, run)
    return ahead.result() if ahead else 0


def test_two_batches_one_after_the_other():
    """A batch begins at once, and those that come meanwhile have to wait for it."""
    batches = [scales(*range(20, 24)), scales(*range(30, 34))]
    ahead = [compile_ahead.compile_ahead("sm_90", functools.partial(launch_all, each)) for each in batches]
    assert ahead[1].result() == 4
    assert ahead[0].done() and ahead[0].result() == 4
    assert gpu.note_launches("sm_90", lambda: launch_all(sum(batches, []))) == []


def test_a_kernel_that_is_launched_before_it_is_compiled():
    entries = scales(*range(40, 44))
    ahead = compile_ahead.compile_ahead("sm_90", lambda: launch_all(entries))
    code = gpu.compile_entry(entries[-1], "sm_90").code
    ahead.result()
    assert gpu.compile_entry(entries[-1], "sm_90").code == code


def test_many_are_compiled_ahead():
    """Worker processes compile; then the kernels are in this process and in the cache."""
    entries = scales(2, 3, 5)
    assert compiled(lambda: launch_all(entries + entries)) == 3
    assert gpu.note_launches("sm_90", lambda: launch_all(entries)) == []
    assert all(gpu.compile_entry(entry, "sm_90").from_cache for entry in entries)
    assert [each.entry for each in gpu.note_launches("sm_80", lambda: launch_all(entries))] == entries


def test_of_another_process_they_are_in_the_cache():
    (entry,) = scales(7)
    gpu.compile_entry(entry, "sm_86")
    assert compiled(lambda: launch_all([entry]), "sm_86") == 0


def test_what_can_not_be_compiled_ahead_fails_when_it_is_launched():
    broken = gpu.Entry("test/scale", "broken", "fp32, not a number")
    assert compiled(lambda: launch_all([*scales(8), broken])) == 2
    assert [each.entry for each in gpu.note_launches("sm_90", lambda: launch_all([*scales(8), broken]))] == [broken]
    with pytest.raises(ValueError, match="the kernel test/scale broken can't be compiled"):
        gpu.compile_entry(broken, "sm_90")


def test_processes_that_die(tmp_path, monkeypatch):
    """Nothing waits for them; the first launch compiles."""
    (tmp_path / "worker.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(compile_ahead, "_WORKER", tmp_path / "worker.py")
    assert compiled(lambda: launch_all(scales(9, 10, 11))) == 3
    assert len(gpu.note_launches("sm_90", lambda: launch_all(scales(9, 10, 11)))) == 3


def test_an_error_ends_the_noting():
    def fail():
        launch_all(scales(12))
        raise KeyError("now")

    with pytest.raises(KeyError, match="now"):
        compile_ahead.compile_ahead("sm_90", fail)
    assert gpu.note_launches("sm_90", lambda: None) == []
