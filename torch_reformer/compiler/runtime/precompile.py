"""Compile the GPU kernels of a plan before it runs, many at a time. Compiled at their first launches, they would be
compiled one after the other."""

from __future__ import annotations

from concurrent.futures import Future

import torch

from ...operators.dispatch import without_autocast
from ...runtime import gpu, plan
from ...runtime.compile_ahead import compile_ahead
from ..codegen.emit_plan import EmittedPlan
from ..ir.fake_tensors import real_tensors
from ..ir.graph import Typed
from ..ir.layout import span


def precompile(emitted: EmittedPlan) -> Future[int] | None:
    """Begin to compile the plan's kernels (see compile_ahead), if it runs on a GPU."""
    gpus = {type.device for type in emitted.types.values() if type.device.type == "cuda"}
    if not gpus:
        return None
    try:
        return compile_ahead(gpu.architecture(gpus.pop().index or 0), lambda: rehearse(emitted))
    except torch.OutOfMemoryError:  # the step itself may still fit
        return None


def rehearse(emitted: EmittedPlan) -> None:
    """Run each step that is a kernel of this package, equal ones once, on uninitialised memory. Integers are zeros, as
    they may be indices of rows."""
    rehearsed = set()
    with real_tensors(), torch.no_grad(), without_autocast():
        for step in emitted.plan.steps:
            if step.kind not in ("conv2d", "stitch", "conv2d_grads"):
                continue
            types = tuple(emitted.types[number] for number in (*step.inputs, *step.into))
            key = step.kind, step.what, len(step.into), types
            if key not in rehearsed:
                rehearsed.add(key)
                plan.run(plan.alone(step), [_memory(type) for type in types])


def _memory(type: Typed) -> torch.Tensor:
    """A tensor of this type, as far from an aligned address as the plan's will be: kernels are compiled for narrower
    loads where the alignment requires them."""
    layout, offset = type.layout, type.layout.offset % 16
    new = torch.empty if type.dtype.is_floating_point else torch.zeros
    memory = new(offset + span(layout), dtype=type.dtype, device=type.device)
    return memory.as_strided(layout.sizes, layout.strides, offset)
