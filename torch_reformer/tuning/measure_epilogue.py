"""Times a program behind a convolution both ways, in the convolution's kernel and in one of its own after it, and
checks that both are as accurate."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..problem import TORCH_DTYPES, ConvProblem
from ..program import Program
from ..program.interpreter import interpret
from ..runtime import config, native
from ..runtime.compile_ahead import compile_ahead
from ..selector import epilogues
from ..selector.problems import Task
from ..selector.timings import Record, Timing
from .exact import exact
from .measure import Measurement, is_disturbed, milliseconds, operands, release_memory, time_each
from .workload import MEMORY_FORMATS, Workload, device_name

_TIMES_THE_OTHER = 4.0  # a way's error may be so many times the other's, or one rounding


def ways(problem: ConvProblem, epilogue: str, device: torch.device) -> dict[str, str]:
    """The kernel of each way to run the epilogue there. Empty if no kernel of a convolution runs it, or if the choice
    does not know that kernel."""
    found, features = native.epilogue(problem.native(), device_name(device), epilogues.program_of(epilogue).code)
    if features is None:
        return {}
    names = native.solver_names()
    return {"fused": names[found.fused], "separate": names[found.separate]}


def _call(problem: ConvProblem, program: Program, input: Tensor, weight: Tensor, tensors: list[Tensor]):
    code = list(program.code)
    return lambda: torch.ops.reformer.conv2d_epilogue.default(input, weight, tensors, code, *problem.geometry)


def _tensors(problem: ConvProblem, program: Program, make: Callable[..., Tensor], device: torch.device) -> list[Tensor]:
    """The program's inputs: channels in fp32, others in the result's data type and layout."""

    def tensor(kind: str) -> Tensor:
        if kind == "random":
            return torch.tensor([12345], device=device)
        if kind == "channel":
            return make(problem.k, device=device)
        values = make(problem.output_size, device=device).to(TORCH_DTYPES[problem.dtype])
        return values.contiguous(memory_format=MEMORY_FORMATS[problem.layout])

    return [tensor(kind) for kind in program.kinds]


def compile_kernels(tasks: Iterable[Task], device: torch.device) -> None:
    """Compiles the kernels of convolutions that will run these tasks' epilogues, by as many processes as there are
    cores: there is one of each program, size of tiles and data type."""

    def run() -> None:
        for problem, epilogue in tasks:
            if not ways(problem, epilogue, device):
                continue
            program, form = epilogues.program_of(epilogue), {"memory_format": MEMORY_FORMATS[problem.layout]}
            sizes, kind = (problem.input_size, problem.weight_size), {"device": device}
            both = [torch.empty(size, dtype=TORCH_DTYPES[problem.dtype], **kind, **form) for size in sizes]
            _call(problem, program, *both, _tensors(problem, program, torch.empty, device))()

    with config.config(epilogues="fused"), torch.inference_mode():
        compile_ahead(device_name(device), run)


def _errors(results: list[Tensor], right: list[Tensor]) -> list[float]:
    """The largest error of each output, in units of its largest number."""
    pairs = zip(results, right, strict=True)
    return [((result.double() - exactly).abs().max() / exactly.abs().max()).item() for result, exactly in pairs]


def _check(work: Workload, program: Program, tensors: list[Tensor], call: Callable[[], list[Tensor]]) -> dict[str, str]:
    """For each way whose results are less accurate than they should be, what is wrong."""
    wide = [each.double() if each.is_floating_point() else each for each in tensors]
    named = dict(zip(program.names, wide, strict=True))
    right = interpret(program, work.problem.output_size, torch.float64, named, exact(work))
    errors = {}
    for way in epilogues.WAYS:
        with config.config(epilogues=way):
            errors[way] = _errors(call(), right)
    wrong, rounding = {}, torch.finfo(work.input.dtype).eps
    for way, other in (epilogues.WAYS, epilogues.WAYS[::-1]):
        pairs = zip(errors[way], errors[other], strict=True)
        excess = max(mine / max(_TIMES_THE_OTHER * theirs, rounding) for mine, theirs in pairs)
        if not excess <= 1:  # NaN too
            wrong[way] = f"its result is wrong: the error is {excess:.3g} times what is allowed"
    return wrong


def measure_epilogue(problem: ConvProblem, epilogue: str, repeats: int, device: torch.device) -> Measurement:
    """Times the two ways in turns, at least `repeats` times, as :func:`measure` does solvers.

    Raises ``ValueError`` with a sentence if the problem can't be run, or there are no two ways.
    """
    kernels = ways(problem, epilogue, device)
    if not kernels:
        raise ValueError("no kernel that the choice ranks runs this epilogue itself")
    work, program = operands(problem, device), epilogues.program_of(epilogue)
    generator = torch.Generator(device).manual_seed(1)

    def randn(*size, device: torch.device) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    tensors = _tensors(problem, program, randn, device)
    call = _call(problem, program, work.input, work.weight, tensors)
    with torch.inference_mode():
        wrong = _check(work, program, tensors, call)
        times = time_each((way for way in kernels if way not in wrong), call, "epilogues", device, repeats)
    release_memory(device)
    timings = tuple(Timing(way, milliseconds(us), 0, kernels[way]) for way, us in times.items())
    return Measurement(Record(str(Task(problem, epilogue)), timings), wrong, is_disturbed(times))
