"""Times every candidate of one problem, and checks that each computes what PyTorch computes."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import torch

from ..problem import TORCH_DTYPES, ConvProblem
from ..runtime import config, native
from ..selector.candidates import candidates
from ..selector.timings import Record, Timing
from .exact import exact
from .explain import amount
from .timing import in_turns, stopwatches, undisturbed
from .workload import MEMORY_FORMATS, Workload, device_name

_CPU = torch.device("cpu")
# After so many rounds whatever takes so many times as long as the fastest drops out. The GPU's time hardly differs from
# one replay to the next, and time on a GPU is dear.
ELIMINATIONS = {"cpu": ((1, 10.0),), "cuda": ((1, 3.0), (3, 1.25))}
SETTLED_ON_GPU = 0.01
_ALGORITHMS = {"F": "forward", "B": "input_grad", "W": "weight_grad"}  # the find-db's third field, a word for people


@dataclass
class Measurement:
    """The record of one problem, for each solver that was left out of it what was wrong, and whether other programs
    disturbed some of its runs however often they were repeated."""

    record: Record
    wrong: dict[str, str] = field(default_factory=dict)
    disturbed: bool = False


def applicable(problem: ConvProblem, device: torch.device = _CPU) -> dict[str, int]:
    """The workspace in bytes of each solver that may compute the problem there, under the configuration in force."""
    found = candidates(problem, device_name(device))
    return {candidate.name: candidate.workspace_bytes for candidate in found if candidate.reason is None}


def _memory(device: torch.device) -> int:
    """The device's memory, in bytes."""
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return torch.cuda.get_device_properties(device).total_memory


def check_size(p: ConvProblem, device: torch.device) -> None:
    """Raises ``ValueError`` for what the operators refuse, or what would bring the machine down."""
    elements = [math.prod(size) for size in (p.input_size, p.weight_size, p.output_size)]
    if max(elements) >= 2**31:
        raise ValueError("a tensor of it has 2^31 elements or more")
    # operands and results in its type, workspace as large as they are, and what the check has in fp64 at once
    doubles = 2 if device.type == "cpu" else 6
    needed = sum(elements) * (3 * TORCH_DTYPES[p.dtype].itemsize + 8 * doubles)
    memory = _memory(device)
    if needed > memory // 2:
        raise ValueError(f"it needs about {amount(needed)}, more than half of the {amount(memory)} that are there")


def reduction_length(p: ConvProblem) -> int:
    """How many products are added up for one element of the result."""
    return {
        "F": p.c // p.groups * p.r * p.s + p.bias,
        "B": p.k // p.groups * p.r * p.s,
        "W": p.n * p.out_h * p.out_w,
    }[p.direction]


class _Expected:
    """What a result should be, and how far it may be from that: one rounding of the result to its data type, and
    roundings of sums of products of standard normal numbers, with room for algorithms like Winograd's that trade
    accuracy."""

    def __init__(self, work: Workload):
        p = work.problem
        dtype = TORCH_DTYPES[p.dtype]
        accumulated = torch.promote_types(dtype, torch.float32)
        absolute = 16 * torch.finfo(accumulated).eps * reduction_length(p)
        self.result = _exact(work)
        self.allowed = self.result.abs() * (2 * torch.finfo(dtype).eps) + absolute

    def excess(self, result: torch.Tensor) -> float:
        """The largest error in units of what may be expected."""
        return (result.double() - self.result).abs_().div_(self.allowed).max().item()


def _result(work: Workload, solver: str) -> torch.Tensor:
    with config.config(force=solver):
        return work.reformer()


def _exact(work: Workload) -> torch.Tensor:
    """The result in fp64: on a CPU PyTorch's, or of the plain loops for groups, which PyTorch takes one by one."""
    if work.device.type != "cpu":
        return exact(work).contiguous(memory_format=MEMORY_FORMATS[work.problem.layout])
    return _result(work.double(), "reference") if work.problem.groups > 1 else work.double().torch()


def check(work: Workload, solvers: Collection[str]) -> dict[str, str]:
    """For each of these solvers that fails, or whose result isn't as accurate as it should be, what is wrong."""
    expected = _Expected(work)
    # As accurate as PyTorch is accurate enough: its fp16 gradients, added up in fp16 on a CPU, are 100 times off.
    theirs = expected.excess(_result(work, "aten"))
    allowed = max(1.0, 4 * theirs)
    wrong = {}
    for solver in solvers:
        try:
            excess = theirs if solver == "aten" else expected.excess(_result(work, solver))
        except RuntimeError as error:
            wrong[solver] = f"it failed: {error}"
        else:
            if not excess <= allowed:  # NaN too
                wrong[solver] = f"its result is wrong: the error is {excess / allowed:.3g} times what is allowed"
    return _failed(work, solvers) | wrong


def _failed(work: Workload, solvers: Collection[str]) -> dict[str, str]:
    """Those of them that have failed: a vendor's kernel is refused from then on, and PyTorch's convolution has run."""
    found = candidates(work.problem, device_name(work.device))
    return {each.name: f"it failed: {each.reason}" for each in found if each.name in solvers and each.reason}


def time_each(
    names: Iterable[str], call: Callable[[], object], setting: str, device: torch.device, repeats: int
) -> dict[str, list[float]]:
    """Microseconds of the call's runs with each of these names for a setting of the configuration: first rounds show
    who can win, and they go on. So do those that were disturbed in them."""
    names = list(names)
    with contextlib.ExitStack() as forced:

        def force(name: str) -> None:
            forced.close()
            forced.enter_context(config.config(**{setting: name}))

        contenders = stopwatches(dict.fromkeys(names, call), force, device)
        times: dict[str, list[float]] = {name: [] for name in names}

        def rounds(seconds: float, least: int, most: int, settled: float | None = None) -> None:
            for name, us in in_turns(contenders, seconds, least, most, settled).items():
                times[name] += us

        done = 0
        for until, factor in ELIMINATIONS[device.type]:
            rounds(0, until - done, until - done)
            done = until
            medians = {name: statistics.median(times[name]) for name in contenders}
            slow = factor * min(medians.values(), default=0.0)
            out = {name for name, us in medians.items() if us > slow and undisturbed(times[name])}
            contenders = {name: watch for name, watch in contenders.items() if name not in out}
        settled = None if device.type == "cpu" else SETTLED_ON_GPU
        rounds(0.02 * len(contenders), max(repeats - done, 1), 10 * repeats, settled)
    return times


def operands(problem: ConvProblem, device: torch.device) -> Workload:
    """Random operands that any solver which may compute the problem there can be held to.

    Raises ``ValueError`` as :func:`measure`.
    """
    if problem.dtype not in TORCH_DTYPES:
        raise ValueError(f"PyTorch has no convolution of {problem.dtype}")
    check_size(problem, device)
    work = Workload(problem, device)
    return work.tf32() if problem.dtype == "FP32" and native.allows_tf32(device_name(device)) else work


def measure(problem: ConvProblem, repeats: int = 5, device: torch.device = _CPU) -> Measurement:
    """Times each applicable solver, in turns, at least `repeats` times; the median of the runs that nothing disturbed
    counts. A solver that is more than ten times slower than the fastest is timed once; on a GPU one that is three times
    slower, and one that is a quarter slower three times. On a GPU it is the time on the GPU (timing.py).

    Raises ``ValueError`` with a sentence if the problem can't be run: a data type that PyTorch does not convolve, or
    tensors that are too large.
    """
    work = operands(problem, device)
    workspaces = applicable(problem, device)
    with torch.inference_mode():
        wrong = check(work, workspaces)
        times = time_each((n for n in workspaces if n not in wrong), work.reformer, "force", device, repeats)
    failed = _failed(work, times)
    wrong |= failed
    release_memory(device)
    timings = [
        Timing(name, milliseconds(us), workspaces[name], _ALGORITHMS[problem.direction])
        for name, us in times.items()
        if name not in failed
    ]
    return Measurement(Record(str(problem), tuple(timings)), wrong, is_disturbed(times))


def milliseconds(us: list[float]) -> float:
    """The median of the runs that nothing disturbed, to six digits."""
    return float(f"{statistics.median(undisturbed(us) or us) / 1e3:.6g}")


def is_disturbed(times: dict[str, list[float]]) -> bool:
    return any(len(undisturbed(us)) < len(us) for us in times.values())


def release_memory(device: torch.device) -> None:
    """Frees what graphs had, whose memory other problems don't get, once it is a quarter of the GPU's."""
    if device.type != "cpu" and torch.cuda.memory_reserved(device) > _memory(device) // 4:
        torch.cuda.empty_cache()
