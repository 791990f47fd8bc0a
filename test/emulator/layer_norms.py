"""Layer norm by its kernels, emulated."""

import ctypes
import functools
from pathlib import Path

import torch
from compiled import written

import emulator
from emulator import plans

TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}


@functools.cache
def planner() -> ctypes.CDLL:
    loaded = plans.library("layer_norm_plan")
    loaded.prepare.restype = loaded.source.restype = ctypes.c_char_p
    loaded.prepare.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p, *3 * [ctypes.c_bool], ctypes.c_int]
    loaded.workspace_floats.restype = loaded.arguments.restype = ctypes.c_int64
    loaded.arguments.argtypes = [ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p]
    return loaded


def source(rows, width, types, *, backward=False, wanted=(True, True), multiprocessors=2) -> Path:
    """A file with the kernels layer_norm_test and, of sums, layer_norm_test_finish; their launches are planned, too.
    types: of input, result and parameters; wanted: the gradients of the input, and of the parameters."""
    numbers = bytes(TYPES[dtype] for dtype in types)
    wanted = wanted if backward else (False, False)
    sentence = planner().prepare(rows, width, numbers, backward, *wanted, multiprocessors)
    if sentence is not None:
        raise ValueError(sentence.decode())
    text = f'#include "{emulator.ROOT}/csrc/hip/kernels/layer_norm.hip"\n' + planner().source().decode()
    return written("layer-norm.hip", text)


def _launch(file, tensors, eps, seed, warp):
    pointers = (ctypes.c_void_p * 9)(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))
    room = (ctypes.c_char * 256)()
    size = planner().arguments(ctypes.addressof(pointers), eps, ctypes.addressof(room))
    arguments = room.raw[:size]
    shapes = [(ctypes.c_uint32 * 4)() for _ in range(2)]
    planner().launches(*shapes)
    for name, (*grid, threads) in zip(["layer_norm_test", "layer_norm_test_finish"], shapes, strict=True):
        if name == "layer_norm_test" or planner().workspace_floats():
            emulator.launch(file, name, grid=tuple(grid), threads=threads, arguments=arguments, seed=seed, warp=warp)


def forward(x, weight, bias, eps, dtype, *, warp=32, seed=0, multiprocessors=2):
    """The result and the statistics."""
    rows, width = x.shape
    parameters = next((each.dtype for each in (weight, bias) if each is not None), torch.float32)
    file = source(rows, width, (x.dtype, dtype, parameters), multiprocessors=multiprocessors)
    result, statistics = torch.full(x.shape, torch.nan, dtype=dtype), torch.full([2, rows], torch.nan)
    _launch(file, [x, weight, bias, None, result, statistics, None, None, None], eps, seed, warp)
    return result, statistics


def backward(grad, x, statistics, weight, *, of_input=True, of_parameters=True, warp=32, seed=0, multiprocessors=2):
    """The gradients of input, weight and bias."""
    rows, width = x.shape
    parameters = torch.float32 if weight is None else weight.dtype
    types = x.dtype, grad.dtype, parameters
    file = source(rows, width, types, backward=True, wanted=(of_input, of_parameters), multiprocessors=multiprocessors)
    of_x = torch.full_like(x, torch.nan) if of_input else None
    sums = [torch.full([width], torch.nan, dtype=parameters) if of_parameters else None for _ in range(2)]
    partial = torch.full([planner().workspace_floats()], torch.nan) if of_parameters else None
    _launch(file, [x, weight, None, grad, of_x, statistics, partial, *sums], 0.0, seed, warp)
    return of_x, *sums
