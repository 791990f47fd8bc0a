"""Programs inside the TMA GEMM kernels, emulated."""

import ctypes
import hashlib
from pathlib import Path

import torch

import emulator
from emulator.stitching import STORED
from emulator.tma_gemm import NOTHING, gemm_kernels, kernel_of
from emulator.tma_gemm import planner as gemm_planner

GUARD = 7  # elements behind each output, which nobody may write


def planner() -> ctypes.CDLL:
    loaded = gemm_planner()
    for name in ("plan_program", "started_name", "started_text"):
        getattr(loaded, name).restype = ctypes.c_char_p
    loaded.started_bytes.restype, loaded.started_arguments.restype = ctypes.c_int64, ctypes.c_void_p
    return loaded


def _pointers(tensors):
    return (ctypes.c_void_p * 16)(*(tensor.data_ptr() for tensor in tensors))


def _guarded(size, dtype):
    """A result's tensor in NHWC, and all of its memory."""
    n, k, h, w = size
    memory = torch.full([n * h * w * k + GUARD], True if dtype == torch.bool else torch.nan, dtype=dtype)
    return memory[:-GUARD].view(n, h, w, k).permute(0, 3, 1, 2), memory


def prepare(problem, tile, program, tensors, outputs, *, shared=NOTHING, row_blocks=1000):
    """A file with the program in the kernel, and what launch() takes of the rest."""
    kernel = kernel_of(problem, tile)
    index = gemm_kernels()[kernel]
    n, k, h, w = problem.expected.shape
    operands = [problem.tensor(problem.x), problem.tensor(problem.filter)]
    code = (ctypes.c_int64 * len(program.code))(*program.code)
    types = (ctypes.c_int8 * 16)(*(STORED[tensor.dtype] for tensor in tensors))
    numbers, shape = (ctypes.c_int64 * 6)(), (ctypes.c_int64 * 3)(n, k, h * w)
    sentence = planner().plan_program(
        problem.numbers, index, shared, row_blocks, code, ctypes.c_int64(len(code)), shape, types,
        *map(_pointers, (operands, tensors, outputs)), numbers,
    )  # fmt: skip
    assert sentence is None, sentence
    source = emulator.ROOT / f"csrc/hip/kernels/{gemm_planner().gemm_kernel_file(index).decode()}.hip"
    text = f'#define REFORMER_TEXT_FOLLOWS\n#include "{source}"\n' + planner().started_text().decode()
    emulator.CACHE.mkdir(parents=True, exist_ok=True)
    file = emulator.CACHE / f"tma-program-{hashlib.sha256(text.encode()).hexdigest()[:16]}.hip"
    file.write_text(text)
    *grid, threads, shared_bytes, cluster = numbers
    launch = dict(grid=tuple(grid), threads=threads, shared_bytes=shared_bytes, cluster=cluster)
    launch["arguments"] = ctypes.string_at(planner().started_arguments(), planner().started_bytes())
    return file, planner().started_name().decode(), launch, operands


def source(problem, tile, program, tensors) -> Path:
    outputs = [_guarded(problem.expected.shape, output.dtype or problem.type[0])[0] for output in program.outputs]
    return prepare(problem, tile, program, tensors, outputs)[0]


def run(problem, tile, program, tensors, *, seed=0, **cut):
    """The program's outputs, on the convolution without a bias."""
    made = [_guarded(problem.expected.shape, output.dtype or problem.type[0]) for output in program.outputs]
    outputs = [output for output, _ in made]
    file, name, launch, operands = prepare(problem, tile, program, tensors, outputs, **cut)
    emulator.launch(file, name, seed=seed, **launch)
    del operands  # alive until here
    for _, memory in made:
        behind = memory[-GUARD:]
        assert (behind if behind.dtype == torch.bool else behind.isnan()).all()
    return outputs
