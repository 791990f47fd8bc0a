"""Run programs inside emulated convolution kernels and compare them with the plain interpreter."""

import ctypes
import math
from pathlib import Path
from typing import NamedTuple

import torch
from compiled import written
from rounded import reduced_rounded
from test_stitch import CHANNEL, FULL, tensors_for

import emulator
from emulator.plans import DIRECTIONS, Problem
from emulator.stitching import STORED
from torch_reformer import program
from torch_reformer.program.interpreter import interpret

GUARD = 7  # elements behind each output that must stay unwritten

BIASED = program.acc() + CHANNEL
STAYS = program.random("key") < 0.75
NAMED = {
    "bias, relu": [program.store(program.relu(BIASED))],
    "residual, silu": [program.store(program.silu(BIASED + FULL))],
    "gelu and what it is of": [program.store(BIASED), program.store(program.gelu(BIASED))],
    "relu and its mask": [program.store(BIASED > 0, torch.bool), program.store(program.relu(BIASED))],
    "in fp32, too": [program.store(BIASED * FULL, torch.float32), program.store(BIASED)],
    "dropout": [program.store(program.select(STAYS, program.gelu(BIASED) / 0.75, 0)), program.store(STAYS, torch.bool)],
    "rows": [program.store(program.acc() * program.row("row") + program.scalar("scalar"))],
    "mask": [program.store(program.select(program.full("mask"), program.acc(), program.full("half")))],
    "without acc": [program.store(FULL * CHANNEL)],
    "acc alone": [program.store(program.acc())],
}


class Kernel(NamedTuple):
    """A convolution's kernel; plan(problem, operands, program) makes the planner launch it with a program."""

    planner: ctypes.CDLL
    plan: object
    warp: int = 32
    defines: tuple[str, ...] = ()


class _Given(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.POINTER(ctypes.c_int64)),
        ("size", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("types", ctypes.POINTER(ctypes.c_int8)),
        ("inputs", ctypes.POINTER(ctypes.c_void_p)),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
    ]


def declare(planner: ctypes.CDLL, *functions: str) -> ctypes.CDLL:
    """Load a library that includes test/hip/plan_program.h."""
    for name in (*functions, "started_file", "started_name", "started_text"):
        getattr(planner, name).restype = ctypes.c_char_p
    planner.started_bytes.restype, planner.started_arguments.restype = ctypes.c_int64, ctypes.c_void_p
    return planner


def problem_of(sizes, others, type_name="bf16", direction="forward"):
    """A problem whose sums are multiples of 1/64, so exact, and below about 1."""
    problem = Problem(direction, type_name, *sizes, **others)
    without_bias = problem.expected - problem.bias.view(1, -1, 1, 1) if direction == "forward" else problem.expected
    problem.expected = without_bias / 64
    problem.x, problem.y, problem.filter = problem.x / 16, problem.y / 16, problem.filter / 4
    return problem


def _pointers(tensors):
    return (ctypes.c_void_p * 16)(*(tensor.data_ptr() for tensor in tensors))


def _guarded(output, problem):
    """A tensor for an output, with elements in NHWC, and all of its memory."""
    n, k, h, w = problem.expected.shape
    dtype = (output.dtype or problem.type[0]) if output.kind == "store" else torch.float32
    size = [n, h, w, k] if output.is_by_element else [2, k] if output.kind == "moments" else [k]
    count = math.prod(size)
    memory = torch.full([count + GUARD], True if dtype == torch.bool else torch.nan, dtype=dtype)
    tensor = memory[:count].view(size)
    return tensor.permute(0, 3, 1, 2) if output.is_by_element else tensor, memory


class _Launch(NamedTuple):
    file: Path
    name: str
    options: dict


def _prepare(problem, kernel, tested, tensors, outputs) -> tuple[list[_Launch], list[torch.Tensor]]:
    """Launches of the kernel with the program and of the kernel that adds up its reductions; and the convolution's
    operands, which must outlive the launches."""
    n, k, h, w = problem.expected.shape
    source = problem.x if problem.direction == DIRECTIONS.index("forward") else problem.y
    operands = [problem.tensor(source), problem.tensor(problem.filter)]
    code = (ctypes.c_int64 * len(tested.code))(*tested.code)
    shape = (ctypes.c_int64 * 3)(n, k, h * w)
    types = (ctypes.c_int8 * 16)(*(STORED[tensor.dtype] for tensor in tensors))
    given = _Given(code, len(code), shape, types, _pointers(tensors), _pointers(outputs))
    sentence = kernel.plan(problem.numbers, _pointers(operands), ctypes.byref(given))
    assert sentence is None, sentence
    launches, planner = [], kernel.planner
    for i in range(planner.started_count()):
        name, text = planner.started_file(i).decode(), planner.started_text(i).decode()
        source = emulator.ROOT / f"csrc/hip/{name}.hip"
        text = f'#define REFORMER_TEXT_FOLLOWS\n#include "{source}"\n' + text
        file = written(f"{source.stem}-program.hip", text)
        numbers = (ctypes.c_int64 * 6)()
        planner.started_shape(i, numbers)
        *grid, threads, shared_bytes, cluster = numbers
        options = dict(grid=tuple(grid), threads=threads, shared_bytes=shared_bytes, cluster=cluster)
        options["arguments"] = ctypes.string_at(planner.started_arguments(i), planner.started_bytes(i))
        launches.append(_Launch(file, planner.started_name(i).decode(), options))
    return launches, operands


def source(problem, kernel, tested, tensors) -> Path:
    outputs = [_guarded(output, problem)[0] for output in tested.outputs]
    return _prepare(problem, kernel, tested, tensors, outputs)[0][0].file


def run(problem, kernel, tested, tensors, *, seed=0):
    """Outputs of the program behind the convolution without a bias."""
    outputs = [_guarded(output, problem) for output in tested.outputs]
    launches, operands = _prepare(problem, kernel, tested, tensors, [output for output, _ in outputs])
    for file, name, options in launches:
        emulator.launch(file, name, seed=seed, warp=kernel.warp, defines=kernel.defines, **options)
    del operands  # they must outlive the launches
    for _, memory in outputs:
        behind = memory[-GUARD:]
        assert (behind if behind.dtype == torch.bool else behind.isnan()).all()
    return [output for output, _ in outputs]


def check(tested, problem, kernel, *, seed=0, reduces_result=False):
    """Compare with the interpreter in fp64 and with the CPU's results for the same sums.

    Args:
        reduces_result: the reductions are of the first output of the result's type, rounded.
    """
    size, dtype = problem.expected.shape, problem.type[0]
    everything = tensors_for(size, dtype, "nhwc")
    everything["other"] = everything["full"].flip(0).contiguous(memory_format=torch.channels_last)
    for name in ("half", "mask"):
        everything[name] = everything[name].contiguous(memory_format=torch.channels_last)
    tensors = {name: everything[name] for name in tested.inputs}
    results = run(problem, kernel, tested, [*tensors.values()], seed=seed)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    expected = interpret(tested, size, torch.float64, wide, problem.expected)
    sums = problem.expected.float().contiguous(memory_format=torch.channels_last)
    on_cpu = torch.ops.reformer.stitch(sums, [*tensors.values()], tested.code)
    if reduces_result:
        expected = reduced_rounded(tested, expected, dtype)
        pairs = zip(tested.outputs, on_cpu, expected, strict=True)
        on_cpu = [own if output.kind == "store" else other for output, own, other in pairs]
    for result, *others in zip(results, expected, on_cpu, strict=True):
        rounding = torch.finfo(result.dtype).eps if result.is_floating_point() else 0
        for other in others:
            torch.testing.assert_close(
                result.double(), other.to(result.dtype).double(), rtol=rounding + 1e-5, atol=1e-5, equal_nan=True
            )
