"""Runs one of the kernels of planted_bugs.hip: `python -m emulator.planted_bugs past_global 32`."""

import ctypes
import sys

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


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
