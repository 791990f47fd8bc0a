"""Run programs by the kernels generated for them, emulated."""

import ctypes
import functools
from pathlib import Path

import torch
from compiled import written
from test_stitch import FORMATS, acc_for, tensors_for

import emulator
from emulator import plans
from torch_reformer.program.interpreter import interpret
from torch_reformer.program.program import Program

STORED = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3, torch.bool: 5, torch.int64: 6, torch.int32: 7}


@functools.cache
def planner() -> ctypes.CDLL:
    loaded = plans.library("stitch_launch")
    loaded.prepare.restype = loaded.source.restype = ctypes.c_char_p
    for function in (loaded.workspace_bytes, loaded.args_bytes, loaded.semaphores):
        function.restype = ctypes.c_int64
    return loaded


def empty(output, acc):
    n, k, h, w = acc.shape
    if output.is_by_element:
        return torch.empty_like(acc, dtype=output.dtype)
    size = {"channel": [k], "row": [n, h, w], "plane": [n, k], "height": [h, k], "all": []}[output.per]
    if output.kind == "store":
        return torch.zeros(size, dtype=output.dtype or acc.dtype)
    return torch.full([2, *size] if output.kind == "moments" else size, torch.nan, dtype=output.dtype)


def placed(tensor) -> list[int]:
    """Dimensions and address of a tensor for stitch_launch.cpp. A tensor of more than four dimensions is strided and
    may begin at any address; a matrix may be a table of columns."""
    dimensions = tensor.dim() if tensor.dim() > 4 or tensor.dim() == 2 else 0
    sizes, strides = ([*numbers, *[0] * 8][:8] for numbers in (tensor.shape, tensor.stride()))
    return [dimensions, *sizes, *strides, tensor.data_ptr() if dimensions > 4 and not tensor.is_meta else 0]


def source(program: Program, acc, tensors, multiprocessors=2, into=None, shared_bytes=49152) -> Path:
    """A file with the program's kernels, stitch_test and stitch_test_finish; also plans their launches."""
    n, k, h, w = acc.shape
    nhwc = acc.is_contiguous(memory_format=torch.channels_last) and not acc.is_contiguous()
    code = (ctypes.c_int64 * len(program.code))(*program.code)
    shape = (ctypes.c_int64 * 5)(int(nhwc), n, k, h * w, h)
    types = (ctypes.c_int8 * 32)(*(STORED[tensor.dtype] for tensor in tensors))
    outputs = [(into or {}).get(i, torch.empty(0)) for i in range(len(program.outputs))]
    everything = [number for tensor in (*tensors, *outputs) for number in placed(tensor)]
    dimensions = (ctypes.c_int64 * len(everything))(*everything)
    sentence = planner().prepare(
        *(code, ctypes.c_int64(len(code)), shape, types, dimensions, ctypes.c_int64(len(tensors)), STORED[acc.dtype]),
        multiprocessors,
        shared_bytes,
    )
    assert sentence is None, sentence
    kernels = f"{emulator.ROOT}/csrc/hip/pointwise"
    text = "".join(f'#include "{kernels}/{name}.hip"\n' for name in ("stitch", "stitch_rows", "stitch_tiles"))
    text += planner().source().decode()
    return written("stitch.hip", text)


def stitch(
    program: Program,
    acc,
    tensors,
    *,
    warp=32,
    multiprocessors=2,
    seed=0,
    into=None,
    shared_bytes=49152,
    semaphores=None,
    defines=(),
):
    """Outputs of the program.

    Args:
        defines: macros for the compiler.
        multiprocessors: few, so that blocks have several parts.
        into: tensors for some of the outputs, by number.
        semaphores: counters by which the last block adds up partial results where the plan says so.
    """
    file = source(program, acc, tensors, multiprocessors, into, shared_bytes)
    outputs = [(into or {}).get(i, empty(output, acc)) for i, output in enumerate(program.outputs)]
    workspace = torch.full([planner().workspace_bytes() // 4], torch.nan)
    arguments = (ctypes.c_char * planner().args_bytes())()
    alone = semaphores is not None and 0 < planner().semaphores() <= len(semaphores)
    counters = ctypes.c_void_p(semaphores.data_ptr() if alone else None)
    pointers = [(ctypes.c_void_p * 32)(*(tensor.data_ptr() for tensor in each)) for each in (tensors, outputs)]
    planner().arguments(
        ctypes.c_void_p(acc.data_ptr()), *pointers, ctypes.c_void_p(workspace.data_ptr()), counters, arguments
    )
    shapes = [(ctypes.c_uint32 * 5)() for _ in range(2)]
    planner().launches(*shapes)
    for name, (*grid, threads, shared) in zip(["stitch_test", "stitch_test_finish"], shapes, strict=True):
        if name == "stitch_test" or (len(workspace) and not alone):
            emulator.launch(
                file,
                name,
                grid=tuple(grid),
                threads=threads,
                arguments=bytes(arguments),
                shared_bytes=shared,
                seed=seed,
                warp=warp,
                defines=defines,
            )
    return outputs


def check(tested, size, dtype, layout, warp=32, rtol=3e-6, atol=3e-6, over=None, **options):
    """Compare the outputs with the plain interpreter's, on the tensors of test_stitch.py.

    Args:
        over: for some outputs, by number, the name of the tensor that is overwritten, which may be acc.
    """
    acc = acc_for(size, dtype, layout)
    everything = tensors_for(size, dtype, layout)
    tensors = {name: everything[name] for name in tested.inputs}
    for name in ("half", "mask"):
        if name in tensors:
            tensors[name] = tensors[name].contiguous(memory_format=FORMATS[layout])
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    expected = interpret(tested, size, torch.float64, wide, acc.double())
    if over:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        acc = acc.clone()
        options["into"] = {output: (tensors | {"acc": acc})[name] for output, name in over.items()}
    results = stitch(tested, acc, [*tensors.values()], warp=warp, **options)
    for result, exact in zip(results, expected, strict=True):
        rounding = torch.finfo(result.dtype).eps if result.dtype in (torch.bfloat16, torch.float16) else 0
        torch.testing.assert_close(result.double(), exact.to(result.dtype).double(), rtol=rtol + rounding, atol=atol)
