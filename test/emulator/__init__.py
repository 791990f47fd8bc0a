"""Run the package's `.hip` kernels on the CPU.

    emulator.launch("csrc/hip/depthwise/depthwise.hip", "depthwise_forward_...", grid=(4, 1, 1), threads=128,
                    arguments=bytes_or_ctypes_structure, shared_bytes=0, seed=0, warp=32)

The file is compiled once (compiled.py) with g++ (or $CXX) for warps of 32 threads (NVIDIA's instructions) or 64
(AMD's). emulator.cpp describes how blocks run and which errors it finds; they are raised as KernelError. Memory is the
process's own: an address is `tensor.data_ptr()` or `array.ctypes.data`.

With REFORMER_EMULATOR_SANITIZE=1 kernels are compiled with AddressSanitizer and UndefinedBehaviorSanitizer, which need
a process that was started for them: `sanitized(arguments)` runs such a Python. This package does not import torch.
"""

import ctypes
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import SANITIZERS, made, output_of, sanitizer_environment, written

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCES = [HERE / "emulator.cpp", HERE / "emulated_tma.cpp", HERE / "fiber.cpp"]
WARPS = (32, 64)
SANITIZE = os.environ.get("REFORMER_EMULATOR_SANITIZE") == "1"
COMPILER = shlex.split(os.environ.get("CXX") or "g++")

# No unique symbols: each kernel's library needs shared memory of its own.
FLAGS = ["-std=c++17", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-w", "-fmax-errors=3", f"-I{HERE}"]
FLAGS += [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/hip/device'}", "-fno-gnu-unique", "-ffp-contract=fast"]
FLAGS += ["-fno-strict-aliasing"]  # kernels copy elements of all types as words
FLAGS += ["-Wno-psabi"]  # despite -w GCC prints notes on how structures are passed

# Most bytes of shared memory that a launch may ask for, per block.
MOST_SHARED = {32: 227 << 10, 64: 64 << 10}


class KernelError(RuntimeError):
    """The kernel does something undefined on real GPUs, or the launch does not fit it."""


def missing() -> str | None:
    """Reason why kernels can't be run here, or None."""
    if shutil.which(COMPILER[0]) is None:
        return f"the emulator needs a C++ compiler: there is no {COMPILER[0]}"
    return None


# In CI a missing compiler is a failure, not a reason to skip.
needed = pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))
without_sanitizers = pytest.mark.skipif(SANITIZE, reason="is run without sanitizers, which would take too long")


def _list_of_kernels(file: Path, flags: list[str]) -> str:
    """C++ that includes the file and lists its kernels, found by the word KERNEL, which is left unexpanded."""
    text = output_of(*COMPILER, "-E", "-P", "-x", "c++", *flags, "-DREFORMER_EMULATOR_LIST", file)
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
def _machine(warp: int, flags: tuple[str, ...], ucontext: bool) -> tuple[Path, ...]:
    flags += ("-DREFORMER_EMULATOR_UCONTEXT",) if ucontext else ()
    return tuple(made(f"{source.stem}-{warp}.o", [*COMPILER, *flags, "-c"], source) for source in SOURCES)


def build(file: Path, warp: int, defines: tuple[str, ...] = ()) -> Path:
    """The library of the file's kernels."""
    flags = [*FLAGS, f"-DREFORMER_EMULATOR={warp}", *(SANITIZERS if SANITIZE else [])]
    objects = _machine(warp, tuple(flags), "REFORMER_EMULATOR_UCONTEXT" in defines)
    flags += [f"-D{define}" for define in defines]

    def with_list() -> Path:
        return written(f"{file.stem}.cpp", _list_of_kernels(file, flags))

    return made(f"{file.stem}-{warp}.so", [*COMPILER, *flags, "-shared", *objects], file, with_list)


def _static_memory(library: Path) -> list[tuple[int, int]]:
    """Static shared memory of the kernels as (address, bytes): the functions' variables without an initial value."""
    listing = output_of("nm", "--format=sysv", "--defined-only", library)
    # columns: name | address | kind | type | bytes | line | section
    rows = [[cell.strip() for cell in line.split("|")] for line in listing.splitlines() if line.count("|") == 6]
    rows = [row for row in rows if row[0].startswith("_ZZ") and row[6] == ".bss" and "8emulator" not in row[0]]
    return [(int(row[1], 16), int(row[4], 16)) for row in rows]


@functools.cache
def _library(file: str, warp: int, defines: tuple[str, ...]) -> ctypes.CDLL:
    path = build(Path(file), warp, defines)
    library = ctypes.PyDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)  # keeps the GIL: one launch at a time
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
    """Run kernel `name` of `file` and return when it has ended.

    Args:
        file: a path, absolute or relative to the repository.
        arguments: the one structure that the kernel takes, by value.
        defines: macros for the compiler; `REFORMER_ENTRY=...` compiles one kernel of many.
        seed: each value gives another order of the threads.
        cluster: number of blocks along z that form a cluster and run concurrently.
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
    """Run Python with these arguments in a process whose kernels are checked by sanitizers; `test` is in its path."""
    environment = os.environ | sanitizer_environment(*COMPILER)
    environment |= {"REFORMER_EMULATOR_SANITIZE": "1", "PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
