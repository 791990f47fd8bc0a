"""Times a program after a convolution both ways, in the convolution's kernel and in a separate kernel, and a program
after a matrix product in each kernel that runs it and after PyTorch's product, and checks all against the exact
result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..problem import TORCH_DTYPES, ConvProblem
from ..program import Program
from ..program.interpreter import interpret
from ..runtime import config, gpu
from ..runtime.compile_ahead import compile_ahead
from ..selector import epilogues
from ..selector.problems import Task
from ..selector.timings import Record, Timing
from .exact import exact
from .measure import (
    Measurement,
    applicable,
    check_size,
    is_disturbed,
    milliseconds,
    operands,
    reduction_length,
    release_memory,
    time_each,
)
from .workload import MEMORY_FORMATS, Workload, device_name

_FUSED = "gpu_tma_"  # how names of solvers begin that are candidates for products with programs


def setting_of(problem: ConvProblem) -> str:
    """Setting of the configuration whose values are the ways to run a program after the problem's kernel."""
    return "force" if problem.is_product else "epilogues"


def kernels(problem: ConvProblem, epilogue: str, device: torch.device) -> dict[str, str]:
    """Kernel of each way to run the epilogue on this device; empty if there is no choice: no kernel runs it, or none
    after a convolution that the selector ranks."""
    if problem.is_product:
        names = [name for name in applicable(problem, device, epilogue) if name == "aten" or name.startswith(_FUSED)]
        return {name: "separate" if name == "aten" else "fused" for name in names} if len(names) > 1 else {}
    ways = epilogues.ways(problem, device_name(device), epilogue)
    return {} if ways is None else ways.kernels


def _call(
    problem: ConvProblem, program: Program, input: Tensor, weight: Tensor, tensors: list[Tensor]
) -> Callable[[], list[Tensor]]:
    """Function that runs the convolution and the program as the configuration says."""
    code = list(program.code)
    return lambda: torch.ops.reformer.conv2d_epilogue.default(input, weight, tensors, code, *problem.geometry)


def _tensors(problem: ConvProblem, program: Program, make: Callable[..., Tensor], device: torch.device) -> list[Tensor]:
    """Tensors for the program's inputs: per-channel ones in fp32, others in the result's data type and layout."""

    def tensor(kind: str) -> Tensor:
        if kind == "random":
            return torch.tensor([12345], device=device)
        if kind == "channel":
            return make(problem.k, device=device)
        values = make(problem.output_size, device=device).to(TORCH_DTYPES[problem.dtype])
        return values.contiguous(memory_format=MEMORY_FORMATS[problem.layout])

    return [tensor(kind) for kind in program.kinds]


def compile_kernels(tasks: Iterable[Task], device: torch.device) -> None:
    """Compile in parallel, with one process per core, the kernels that will run these tasks' epilogues: one for each
    program, tile size and data type."""

    def run() -> None:
        for problem, epilogue in tasks:
            try:
                check_size(problem, device)
            except ValueError:
                continue
            ways = kernels(problem, epilogue, device)
            if not ways:
                continue
            program, form = epilogues.program_of(epilogue), {"memory_format": MEMORY_FORMATS[problem.layout]}
            kind: dict[str, Any] = {"dtype": TORCH_DTYPES[problem.dtype], "device": device, **form}
            input, weight = (torch.empty(size, **kind) for size in (problem.input_size, problem.weight_size))
            call = _call(problem, program, input, weight, _tensors(problem, program, torch.empty, device))
            for way in ways:
                if way not in ("separate", "aten"):
                    with config.config(**{setting_of(problem): way}):
                        call()

    with torch.inference_mode():
        if ahead := compile_ahead(gpu.architecture(device.index), run):
            ahead.result()


def _errors(results: list[Tensor], right: list[Tensor], acc: Tensor) -> list[float]:
    """Largest error of each output, relative to its largest number or to the convolution's, whose rounding errors
    propagate to it."""
    largest, pairs = acc.abs().max(), zip(results, right, strict=True)
    return [
        ((result.double() - exactly).abs().max() / exactly.abs().max().maximum(largest)).item()
        for result, exactly in pairs
    ]


def _check(
    work: Workload,
    program: Program,
    tensors: list[Tensor],
    call: Callable[[], list[Tensor]],
    ways: Collection[str],
) -> dict[str, str]:
    """For each of these ways whose results are not accurate enough: what is wrong. The allowed error is a few roundings
    of the data type, some of them multiplied by a per-channel factor, plus those of the convolution's sums."""
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    named = dict(zip(program.names, wide, strict=True))
    acc = exact(work)
    right = interpret(program, work.problem.output_size, torch.float64, named, acc)
    sums = 16 * torch.finfo(torch.float32).eps * reduction_length(work.problem) ** 0.5
    allowed = 8 * torch.finfo(work.input.dtype).eps + sums
    errors = {}
    for way in ways:
        with config.config(**{setting_of(work.problem): way}):
            errors[way] = _errors(call(), right, acc)
    wrong = {}
    for way, output_errors in errors.items():
        excess = max(output_errors) / allowed
        if not excess <= 1:  # also true for NaN
            wrong[way] = f"its result is wrong: the error is {excess:.3g} times what is allowed"
    return wrong


class _Checked(NamedTuple):
    kernels: dict[str, str]
    call: Callable[[], list[Tensor]]
    wrong: dict[str, str]


def _checked(problem: ConvProblem, epilogue: str, device: torch.device) -> _Checked:
    """The ways to run a program, a call on random tensors, and what was wrong with the results of each way."""
    ways = kernels(problem, epilogue, device)
    if not ways:
        raise ValueError("no kernel that the selector ranks, or that is known for products, can run this program")
    work, program = operands(problem, device), epilogues.program_of(epilogue)
    generator = torch.Generator(device).manual_seed(1)

    def randn(*size, device: torch.device) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    tensors = _tensors(problem, program, randn, device)
    call = _call(problem, program, work.input, work.weight, tensors)
    with torch.inference_mode():
        return _Checked(ways, call, _check(work, program, tensors, call, ways))


def check_epilogue(problem: ConvProblem, epilogue: str, device: torch.device) -> tuple[dict[str, str], dict[str, str]]:
    """Kernel of each way to run the program, and for each way whose results are not accurate enough: what is wrong.

    Raises:
        ValueError: as :func:`measure_epilogue`.
    """
    checked = _checked(problem, epilogue, device)
    return checked.kernels, checked.wrong


def measure_epilogue(problem: ConvProblem, epilogue: str, repeats: int, device: torch.device) -> Measurement:
    """Time the ways interleaved, at least `repeats` times, like :func:`measure` does for solvers.

    Raises:
        ValueError: if the problem can't be run, or there are not two ways.
    """
    checked = _checked(problem, epilogue, device)
    way_kernels, wrong = checked.kernels, checked.wrong
    with torch.inference_mode():
        right = (way for way in way_kernels if way not in wrong)
        times = time_each(right, checked.call, setting_of(problem), device, repeats)
    release_memory(device)
    timings = tuple(Timing(way, milliseconds(us), 0, way_kernels[way]) for way, us in times.items())
    return Measurement(Record(str(Task(problem, epilogue)), timings), wrong, is_disturbed(times))
