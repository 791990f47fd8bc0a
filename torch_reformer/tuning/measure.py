"""Times every candidate of one problem, and checks that each computes the same as PyTorch."""

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
# (rounds, factor): after so many rounds, drop solvers that are slower than the fastest by more than the factor. GPU
# times hardly vary between replays, and GPU time is expensive.
ELIMINATIONS = {"cpu": ((1, 10.0),), "cuda": ((1, 3.0), (3, 1.25))}
SETTLED_ON_GPU = 0.01
_ALGORITHMS = {"F": "forward", "B": "input_grad", "W": "weight_grad"}  # third field of the find-db, meant for people


@dataclass
class Measurement:
    """Record of one problem; for each solver left out of it, what was wrong; and if other programs disturbed some of
    its runs in spite of repetitions."""

    record: Record
    wrong: dict[str, str] = field(default_factory=dict)
    disturbed: bool = False


def applicable(problem: ConvProblem, device: torch.device = _CPU, epilogue: str = "") -> dict[str, int]:
    """Workspace in bytes of each solver that may compute the problem, and the program after it, on this device under
    the current configuration."""
    offered = candidates(problem, device_name(device), epilogue)
    return {candidate.name: candidate.workspace_bytes for candidate in offered if candidate.reason is None}


def _memory(device: torch.device) -> int:
    """Size of the device's memory in bytes."""
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return torch.cuda.get_device_properties(device).total_memory


def check_size(p: ConvProblem, device: torch.device) -> None:
    """Raise ``ValueError`` for a problem that the operators reject, or that needs too much memory for this machine."""
    elements = [math.prod(size) for size in (p.input_size, p.weight_size, p.output_size)]
    if max(elements) >= 2**31:
        raise ValueError("one of its tensors has 2^31 elements or more")
    # operands and results in their data type, as much workspace again, and the fp64 tensors of the check
    doubles = 2 if device.type == "cpu" else 6
    needed = sum(elements) * (3 * TORCH_DTYPES[p.dtype].itemsize + 8 * doubles)
    memory = _memory(device)
    if needed > memory // 2:
        raise ValueError(f"it needs about {amount(needed)}, more than half of the {amount(memory)} of memory")


def reduction_length(p: ConvProblem) -> int:
    """Number of products that are summed for one element of the result."""
    return {
        "F": p.c // p.groups * p.r * p.s + p.bias,
        "B": p.k // p.groups * p.r * p.s,
        "W": p.n * p.out_h * p.out_w,
    }[p.direction]


class _Expected:
    """Exact result and the allowed error of each element: one rounding of the result to its data type, plus roundings
    of sums of products of standard normal numbers, with margin for algorithms like Winograd's that trade accuracy."""

    def __init__(self, work: Workload):
        p = work.problem
        dtype = TORCH_DTYPES[p.dtype]
        accumulated = torch.promote_types(dtype, torch.float32)
        absolute = 16 * torch.finfo(accumulated).eps * reduction_length(p)
        self.result = _exact(work)
        self.allowed = self.result.abs() * (2 * torch.finfo(dtype).eps) + absolute

    def excess(self, result: torch.Tensor) -> float:
        """Largest error in units of the allowed error."""
        return (result.double() - self.result).abs_().div_(self.allowed).max().item()


def _result(work: Workload, solver: str) -> torch.Tensor:
    with config.config(force=solver):
        return work.reformer()


def _exact(work: Workload) -> torch.Tensor:
    """Result in fp64. On a CPU it is PyTorch's, or for groups, which PyTorch computes one by one, that of the plain
    loops."""
    if work.device.type != "cpu":
        return exact(work).contiguous(memory_format=MEMORY_FORMATS[work.problem.layout])
    return _result(work.double(), "reference") if work.problem.groups > 1 else work.double().torch()


def check(work: Workload, solvers: Collection[str]) -> dict[str, str]:
    """For each of these solvers that fails or whose result is not accurate enough: what is wrong."""
    expected = _Expected(work)
    # PyTorch's accuracy is always enough: its fp16 gradients, summed in fp16 on a CPU, have errors 100 times the
    # allowed one.
    theirs = expected.excess(_result(work, "aten"))
    allowed = max(1.0, 4 * theirs)
    wrong = {}
    for solver in solvers:
        try:
            excess = theirs if solver == "aten" else expected.excess(_result(work, solver))
        except RuntimeError as error:
            wrong[solver] = f"it failed: {error}"
        else:
            if not excess <= allowed:  # also true for NaN
                wrong[solver] = f"its result is wrong: the error is {excess / allowed:.3g} times what is allowed"
    return _failed(work, solvers) | wrong


def _failed(work: Workload, solvers: Collection[str]) -> dict[str, str]:
    """Those of the solvers that have failed, with the reason. After a failure the vendor's kernel is refused, and
    PyTorch's convolution runs in its place."""
    offered = candidates(work.problem, device_name(work.device))
    return {
        candidate.name: f"it failed: {candidate.reason}"
        for candidate in offered
        if candidate.name in solvers and candidate.reason
    }


def time_each(
    names: Iterable[str], call: Callable[[], object], setting: str, device: torch.device, repeats: int
) -> dict[str, list[float]]:
    """Time the call with a setting of the configuration set to each of these names; microseconds of each run by name.
    The first rounds eliminate slow names unless their runs were disturbed."""
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
    """Random operands on which every solver that may compute the problem is expected to be accurate.

    Raises:
        ValueError: as :func:`measure`.
    """
    if problem.dtype not in TORCH_DTYPES:
        raise ValueError(f"PyTorch has no convolution of {problem.dtype}")
    check_size(problem, device)
    work = Workload(problem, device)
    return work.tf32() if problem.dtype == "FP32" and native.allows_tf32(device_name(device)) else work


def measure(problem: ConvProblem, repeats: int = 5, device: torch.device = _CPU) -> Measurement:
    """Time each applicable solver, interleaved, at least `repeats` times; the result is the median of the undisturbed
    runs. A solver more than ten times slower than the fastest is timed once. On a GPU, where time on the GPU is
    measured (timing.py), one more than three times slower is timed once, and one more than a quarter slower three
    times.

    Raises:
        ValueError: if the problem can't be run: PyTorch does not convolve its data type, or its tensors are too large.
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
    """Median of the undisturbed runs, to six digits."""
    return float(f"{statistics.median(undisturbed(us) or us) / 1e3:.6g}")


def is_disturbed(times: dict[str, list[float]]) -> bool:
    return any(len(undisturbed(us)) < len(us) for us in times.values())


def release_memory(device: torch.device) -> None:
    """Free the memory of CUDA graphs, which other problems can't reuse, once it exceeds a quarter of the GPU's
    memory."""
    if device.type != "cpu" and torch.cuda.memory_reserved(device) > _memory(device) // 4:
        torch.cuda.empty_cache()
