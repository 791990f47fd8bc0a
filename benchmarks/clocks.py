"""Clocks for training steps: wall time, host time and kernel time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch


def milliseconds(step: Callable[[], None], device: torch.device, steps: int) -> float:
    """Wall time of one step, averaged over several."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begin) / steps * 1e3


def host_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """CPU time of one step, launched while the GPU is idle."""
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e3


class Kernel(NamedTuple):
    """A kernel, copy or fill of one step. ms: time during which it ran, and none that began before it: a kernel that
    starts early (programmatic dependent launch) waits for its predecessor."""

    name: str
    ms: float


def kernels(step: Callable[[], None], device: torch.device) -> list[Kernel]:
    """The step's kernels, copies and fills, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize(device)
    on_gpu = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    found, until = [], 0.0
    for each in sorted(on_gpu, key=lambda each: each.time_range.start):
        start, end = each.time_range.start, each.time_range.end
        found.append(Kernel(each.name, max(0.0, end - max(start, until)) / 1e3))
        until = max(until, end)
    return found


def kernel_count(step: Callable[[], None], device: torch.device) -> float:
    """Number of kernels, copies and fills in one step."""
    return float(len(kernels(step, device)))


def kernel_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """Time during one step in which at least one kernel ran."""
    return sum(each.ms for each in kernels(step, device))
