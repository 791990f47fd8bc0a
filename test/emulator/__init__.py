"""Runs the package's `.hip` kernels on the CPU.

    emulator.launch("csrc/hip/kernels/depthwise.hip", "depthwise_forward_...", grid=(4, 1, 1), threads=128,
                    arguments=bytes_or_ctypes_structure, shared_bytes=0, seed=0, warp=32)

The file is compiled with g++ (or $CXX) for warps of 32 threads (NVIDIA's instructions) or 64 (AMD's), once, into
build/emulator. emulator.cpp says how blocks run and what is an error, which is raised as KernelError. Memory is the
process's own: an address is `tensor.data_ptr()` or `array.ctypes.data`.

With REFORMER_EMULATOR_SANITIZE=1 kernels are compiled with AddressSanitizer and UndefinedBehaviorSanitizer, which need
a process that was started for them: `sanitized(arguments)` runs such a Python. This package does not import torch.
"""

import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "emulator"
SOURCES = [HERE / "emulator.cpp", HERE / "emulated_tma.cpp", HERE / "fiber.cpp"]
WARPS = (32, 64)
SANITIZE = os.environ.get("REFORMER_EMULATOR_SANITIZE") == "1"
COMPILER = shlex.split(os.environ.get("CXX") or "g++")

# No unique symbols: the libraries of several kernels must not share their shared memory.
FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-w", "-fmax-errors=3", f"-I{HERE}"]
FLAGS += [f"-I{ROOT / 'csrc/hip/device'}", "-fno-gnu-unique", "-ffp-contract=fast"]
FLAGS += ["-fno-strict-aliasing"]  # kernels move numbers of all types as words
SANITIZER_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]

# Of a block, in bytes: that the launches of kernels may ask for.
MOST_SHARED = {32: 227 << 10, 64: 64 << 10}


class KernelError(RuntimeError):
    """The kernel did what real GPUs leave undefined, or the launch does not fit it."""


def missing() -> str | None:
    """A sentence that says why kernels can't be run here, or None."""
    if shutil.which(COMPILER[0]) is None:
        return f"the emulator needs a C++ compiler: there is no {COMPILER[0]}"
    return None


# In CI a missing compiler is a failure, not a reason to skip.
needed = pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))


def _compile(arguments: list) -> str:
    environment = {**os.environ, "LD_PRELOAD": ""}  # the compiler itself needs no sanitizers
    done = subprocess.run([*COMPILER, *map(str, arguments)], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{shlex.join([*COMPILER, *map(str, arguments)])}\n{done.stderr}")
    return done.stdout


def _list_of_kernels(file: Path, flags: list[str]) -> str:
    """C++ that includes the file and lists its kernels, which are found by the word KERNEL that is left unexpanded."""
    text = _compile(["-E", "-P", "-x", "c++", *flags, "-DREFORMER_EMULATOR_LIST", file])
    kernels = re.findall(r"\bKERNEL\s*\(((?:[^()]|\([^()]*\))*)\)\s*(\w+)\s*\(", text)
    lines = [f'  make_kernel<&{name}>("{name}", unsigned({threads})),' for threads, name in kernels]
    return "\n".join(
        [
            f'#include "{file}"',
            '#include "kernel_list.h"',
            "namespace reformer::emulator {",
            "const std::vector<Kernel>& kernels() {",
            "  static const std::vector<Kernel> list = {",
            *lines,
            "  };",
            "  return list;",
            "}",
            "}  // namespace reformer::emulator",
            "",
        ]
    )


@functools.cache
def _version() -> str:
    return _compile(["--version"])


def _cached(name: str, source: Path, flags: Iterable[str], *more: Path) -> Path:
    """What the compiler makes of a source (and of objects), kept under a key of all that it is made of."""
    key = hashlib.sha256(repr([_version(), flags, more]).encode())
    key.update(_compile(["-E", "-P", *flags, source]).encode())
    result = CACHE / f"{Path(name).stem}-{key.hexdigest()[:16]}{Path(name).suffix}"
    if not result.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = Path(folder, result.name)
            _compile([*flags, "-c" if result.suffix == ".o" else "-shared", source, *more, "-o", made])
            made.rename(result)
    return result


@functools.cache
def _machine(warp: int, flags: tuple[str, ...], ucontext: bool) -> tuple[Path, ...]:
    flags += ("-DREFORMER_EMULATOR_UCONTEXT",) if ucontext else ()
    return tuple(_cached(f"{source.stem}-{warp}.o", source, flags) for source in SOURCES)


def build(file: Path, warp: int, defines: tuple[str, ...] = ()) -> Path:
    """The library with that file's kernels; compiled unless the same text was before."""
    CACHE.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, f"-DREFORMER_EMULATOR={warp}", *(SANITIZER_FLAGS if SANITIZE else [])]
    objects = _machine(warp, tuple(flags), "REFORMER_EMULATOR_UCONTEXT" in defines)
    flags += [f"-D{define}" for define in defines]
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        source = Path(folder, file.stem + ".cpp")
        source.write_text(_list_of_kernels(file, flags))
        return _cached(f"{file.stem}-{warp}.so", source, flags, *objects)


def _static_memory(library: Path) -> list[tuple[int, int]]:
    """Where the kernels' static shared memory lies, (address, bytes): the variables without a value in functions."""
    command, environment = ["nm", "--format=sysv", "--defined-only", str(library)], {**os.environ, "LD_PRELOAD": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    # name | address | kind | type | bytes | line | section
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if line.count("|") == 6]
    rows = [row for row in rows if row[0].startswith("_ZZ") and row[6] == ".bss" and "8emulator" not in row[0]]
    return [(int(row[1], 16), int(row[4], 16)) for row in rows]


@functools.cache
def _library(file: str, warp: int, defines: tuple[str, ...]) -> ctypes.CDLL:
    path = build(Path(file), warp, defines)
    library = ctypes.PyDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)  # which keeps the lock: one launch at a time
    library.emulator_launch.restype = ctypes.c_char_p
    library.emulator_launch.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint32)] + 2 * [ctypes.c_uint32]
    library.emulator_launch.argtypes += [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
    library.emulator_static_memory.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.emulator_static_memory.restype = None
    for address, size in _static_memory(path):
        library.emulator_static_memory(address, size)
    return library


def launch(
    file: str | Path,
    name: str,
    *,
    grid: tuple[int, int, int],
    threads: int,
    arguments: bytes | ctypes.Structure,
    shared_bytes: int = 0,
    seed: int = 0,
    warp: int = 32,
    cluster: int = 1,
    defines: tuple[str, ...] = (),
) -> None:
    """Runs kernel `name` of `file` (a path, or one below the repository) and returns when it has ended.

    `arguments` is the one structure that it takes, by value. `defines` are macros for the compiler, such as
    `REFORMER_ENTRY=...`, which has one kernel of many compiled. Every `seed` has another order of threads. `cluster`:
    how many blocks along z are one, and run at the same time.
    """
    if not 0 <= shared_bytes <= MOST_SHARED[warp]:
        raise KernelError(f"a block has at most {MOST_SHARED[warp]} bytes of shared memory, not {shared_bytes}")
    library = _library(str(ROOT / file), warp, tuple(defines))
    data = bytes(arguments)
    sentence = library.emulator_launch(
        name.encode(), (ctypes.c_uint32 * 3)(*grid), cluster, threads, shared_bytes, data, len(data), seed
    )
    if sentence is not None:
        raise KernelError(sentence.decode())


def sanitized(arguments: list[str], timeout: float = 900) -> subprocess.CompletedProcess:
    """Runs Python with these arguments in a process whose kernels are checked by sanitizers; `test` is in its path."""
    libraries = [_compile([f"-print-file-name={name}"]).strip() for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "REFORMER_EMULATOR_SANITIZE": "1",
        "PYTHONPATH": str(HERE.parent),
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
