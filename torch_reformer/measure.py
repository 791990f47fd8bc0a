"""Times every candidate of one problem, and checks that each computes what PyTorch computes."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from . import _config
from .explain import amount, candidates
from .problem import TORCH_DTYPES, ConvProblem
from .selector.timings import Record, Timing
from .timing import interleaved
from .workload import Workload, device_name

_CPU = torch.device("cpu")
_ALGORITHMS = {"F": "forward", "B": "input_grad", "W": "weight_grad"}  # the find-db's third field, a word for people


@dataclass
class Measurement:
    """The record of one problem, and for each solver that was left out of it what was wrong."""

    record: Record
    wrong: dict[str, str] = field(default_factory=dict)


def applicable(problem: ConvProblem, device: torch.device = _CPU) -> dict[str, int]:
    """The workspace in bytes of each solver that may compute the problem there, under the configuration in force."""
    found = candidates(problem, device_name(device))
    return {candidate.name: candidate.workspace_bytes for candidate in found if candidate.refusal is None}


def _check_size(p: ConvProblem, device: torch.device) -> None:
    """Raises ``ValueError`` for what the operators refuse, or what would bring the machine down."""
    elements = [math.prod(size) for size in (p.input_size, p.weight_size, p.output_size)]
    if max(elements) >= 2**31:
        raise ValueError("a tensor of it has 2^31 elements or more")
    # operands and results in its type, once more in fp64, and workspace as large as they are
    needed = sum(elements) * (3 * TORCH_DTYPES[p.dtype].itemsize + 16)
    if device.type == "cpu":
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        memory = torch.cuda.get_device_properties(device).total_memory
    if needed > memory // 2:
        raise ValueError(f"it needs about {amount(needed)}, more than half of the {amount(memory)} that are there")


def _reduction_length(p: ConvProblem) -> int:
    """How many products are added up for one element of the result."""
    return {
        "F": p.c // p.groups * p.r * p.s + p.bias,
        "B": p.k // p.groups * p.r * p.s,
        "W": p.n * p.out_h * p.out_w,
    }[p.direction]


def _excess(result: torch.Tensor, exact: torch.Tensor, problem: ConvProblem) -> float:
    """The largest error in units of what may be expected: one rounding of the result to its data type, and roundings
    of sums of products of standard normal numbers, with room for algorithms like Winograd's that trade accuracy."""
    dtype = TORCH_DTYPES[problem.dtype]
    accumulated = torch.promote_types(dtype, torch.float32)
    absolute = 16 * torch.finfo(accumulated).eps * _reduction_length(problem)
    allowed = exact.abs() * (2 * torch.finfo(dtype).eps) + absolute
    return ((result.double() - exact).abs() / allowed).max().item()


def _result(work: Workload, solver: str) -> torch.Tensor:
    with _config.config(force=solver):
        return work.reformer()


def _exact(work: Workload) -> torch.Tensor:
    """The result in fp64: PyTorch's, or on a CPU of the plain loops for groups, which PyTorch takes one by one."""
    loops = work.problem.groups > 1 and work.device.type == "cpu"
    return _result(work.double(), "reference") if loops else work.double().torch()


def _check(work: Workload, solvers: Iterable[str]) -> dict[str, str]:
    """For each solver that fails, or whose result isn't as accurate as it should be, what is wrong."""
    exact = _exact(work)
    # As accurate as PyTorch is accurate enough: its fp16 gradients, added up in fp16 on a CPU, are 100 times off.
    allowed = max(1.0, 4 * _excess(_result(work, "aten"), exact, work.problem))
    wrong = {}
    for solver in solvers:
        try:
            excess = _excess(_result(work, solver), exact, work.problem)
        except RuntimeError as error:
            wrong[solver] = f"it failed: {error}"
        else:
            if not excess <= allowed:  # NaN too
                wrong[solver] = f"its result is wrong: the error is {excess / allowed:.3g} times what is allowed"
    return wrong


def _time(work: Workload, solvers: list[str], repeats: int) -> dict[str, list[float]]:
    """Microseconds of each solver's runs: one round of all shows who can win, and they go on."""

    def rounds(names: list[str], seconds: float, least: int, most: int) -> dict[str, list[float]]:
        calls = {name: work.reformer for name in names}
        return interleaved(calls, lambda name: _config.config(force=name), seconds, least, most, work.device)

    times = rounds(solvers, seconds=0, least=1, most=1)
    fastest = min((us[0] for us in times.values()), default=0.0)
    contenders = [name for name in solvers if times[name][0] <= 10 * fastest]
    more = rounds(contenders, seconds=0.02 * len(contenders), least=repeats - 1, most=10 * repeats)
    return {name: times[name] + more.get(name, []) for name in solvers}


def measure(problem: ConvProblem, repeats: int = 5, device: torch.device = _CPU) -> Measurement:
    """Times each applicable solver, in turns, at least `repeats` times; the median counts. A solver that is more than
    ten times slower than the fastest is timed once. On a GPU it is the time on the GPU (timing.py).

    Raises ``ValueError`` with a sentence if the problem can't be run: a data type that PyTorch does not convolve, or
    tensors that are too large.
    """
    if problem.dtype not in TORCH_DTYPES:
        raise ValueError(f"PyTorch has no convolution of {problem.dtype}")
    _check_size(problem, device)
    work = Workload(problem, device)
    workspaces = applicable(problem, device)
    with torch.inference_mode(), _config.config():  # the latter: what is forced below ends with it
        wrong = _check(work, workspaces)
        times = _time(work, [name for name in workspaces if name not in wrong], repeats)
    if device.type != "cpu":
        torch.cuda.empty_cache()  # graphs have memory of their own, which other sizes don't get
    timings = (
        Timing(name, float(f"{statistics.median(us) / 1e3:.6g}"), workspaces[name], _ALGORITHMS[problem.direction])
        for name, us in times.items()
    )
    return Measurement(Record(str(problem), tuple(timings)), wrong)
