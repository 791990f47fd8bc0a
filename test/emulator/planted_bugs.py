"""Run kernels of planted_bugs.hip, each in its own process: `python -m emulator.planted_bugs past_global:32 ...`.

A sanitizer ends the process that it complains about, so this one is forked for each kernel.
"""

import ctypes
import json
import os
import sys
import tempfile

import numpy

import emulator

FILE = "test/hip/planted_bugs.hip"
THREADS = 128


class Arguments(ctypes.Structure):
    _fields_ = [("numbers", ctypes.c_void_p)]


def run(name: str, warp: int, seed: int = 0) -> numpy.ndarray:
    numbers = numpy.arange(THREADS, dtype=numpy.float32)
    arguments = Arguments(numbers.ctypes.data)
    shared_bytes = THREADS * 16 if name == "crooked_copy" else THREADS * 4
    emulator.launch(
        FILE,
        name,
        grid=(1, 1, 1),
        threads=THREADS,
        arguments=arguments,
        shared_bytes=shared_bytes,
        seed=seed,
        warp=warp,
    )
    return numbers


def complaint(name: str, warp: int) -> str | None:
    """Output of the process before it failed; None if it did not fail."""
    with tempfile.TemporaryFile() as errors:
        if (child := os.fork()) == 0:
            os.dup2(errors.fileno(), 2)
            try:
                run(name, warp)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        return errors.read().decode() if status else None


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, warp = argument.split(":")
        print(json.dumps(complaint(name, int(warp))))
