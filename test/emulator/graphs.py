"""Run plans of compiled graphs with the GPU's kernels of their programs, emulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from gpu_rules import as_on_gpus
from torch import Tensor

from emulator.stitching import stitch
from torch_reformer.compiler.runtime import executable
from torch_reformer.operators import run_plan
from torch_reformer.program.program import decode
from torch_reformer.runtime import plan as plans

_others = run_plan._of_compiled_graph


@contextmanager
def emulated(multiprocessors: int, seed: int) -> Iterator[None]:
    """Context in which graphs are planned by the rules of GPUs, and programs run in the emulator."""

    def run_step(step: plans.Step, inputs: list[Tensor], into: list[Tensor]) -> Sequence[Tensor]:
        if step.kind != "stitch" or not inputs[0].numel() or any(t.dtype == torch.float64 for t in inputs):
            return _others(step, inputs, into)
        (acc, *tensors), program = inputs, decode(step.what)
        if program.needs_rows and acc.is_contiguous() and acc[0, 0].numel() > 1:
            return _others(step, inputs, into)  # no kernel reduces these rows
        format = torch.contiguous_format if acc.is_contiguous() else torch.channels_last
        given = [
            _aligned(tensor.contiguous(memory_format=format if kind == "full" else torch.contiguous_format))
            if kind not in ("mapped", "table") and tensor.dim() <= 4
            else tensor
            for kind, tensor in zip(program.kinds, tensors, strict=True)
        ]
        first = len(program.outputs) - len(into)
        existing = {first + i: tensor for i, tensor in enumerate(into)}
        acc = _aligned(acc.contiguous(memory_format=format))
        return stitch(program, acc, given, multiprocessors=multiprocessors, seed=seed, into=existing)

    with as_on_gpus(), pytest.MonkeyPatch.context() as changes:
        changes.setattr(executable, "is_observed", lambda: True)
        changes.setattr(run_plan, "_of_compiled_graph", run_step)
        yield


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, or its copy if it begins between multiples of 16 bytes, as the operator makes it for GPUs."""
    return tensor.clone() if tensor.data_ptr() % 16 else tensor
