"""Clocks for training steps: wall time, host time and kernel time."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def _on_gpu(step: Callable[[], None], device: torch.device) -> list:
    """Time ranges of the step's kernels, copies and fills, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize(device)
    on_gpu = [each.time_range for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    return sorted(on_gpu, key=lambda each: each.start)


def kernel_count(step: Callable[[], None], device: torch.device) -> float:
    """Number of kernels, copies and fills in one step."""
    return float(len(_on_gpu(step, device)))


def kernel_milliseconds(step: Callable[[], None], device: torch.device) -> float:
    """Time during one step in which at least one kernel ran. This is not the sum of the kernels' times: a kernel that
    starts early (programmatic dependent launch) waits for its predecessor."""
    busy, until = 0.0, 0.0
    for each in _on_gpu(step, device):
        busy += max(0.0, each.end - max(each.start, until))
        until = max(until, each.end)
    return busy / 1e3
