"""Programs without their kernels: fake kernels, and an implementation by PyTorch's operations for programs that no GPU
kernel supports, for forward mode and for torch.func."""

from __future__ import annotations

import torch
from torch import Tensor

from ..program.interpreter import computed_type, interpret
from ..program.mapped import MAPS
from ..program.program import Program, decode
from . import fake

_ops = torch.ops.reformer


def decoded(op: str, code) -> Program:
    try:
        return decode(tuple(code))
    except ValueError as error:
        raise RuntimeError(f"reformer::{op}: {error}") from None


def unfused(acc: Tensor, tensors: list[Tensor], code) -> list[Tensor]:
    """Outputs of a program, computed by PyTorch's operations."""
    program = decoded("stitch", code)
    by_name = {
        name: _with_sizes(tensor, kind, acc)
        for (name, kind), tensor in zip(program.inputs.items(), tensors, strict=True)
    }
    return interpret(program, acc.shape, acc.dtype, by_name, acc)


def _with_sizes(tensor: Tensor, kind: str, acc: Tensor) -> Tensor:
    """Reshape an operand of more than four dimensions, whose elements or rows are in the memory order of the result's,
    to the result's sizes."""
    if tensor.dim() <= 4:
        return tensor
    n, k, h, w = acc.shape
    if kind in ("mapped", "targets", *MAPS):  # the interpreter reads their memory
        return tensor
    if kind in ("row", "index"):
        return tensor.reshape(n, h, w)
    if _memory_format(acc) == torch.channels_last:
        return tensor.reshape(n, h, w, k).permute(0, 3, 1, 2)
    return tensor.reshape(acc.shape)


def unfused_conv2d(input, weight, tensors, program, *geometry):
    return unfused(_ops.conv2d(input, weight, None, *geometry), tensors, program)


def _memory_format(acc: Tensor) -> torch.memory_format:
    """Memory format of a kernel's outputs."""
    return torch.channels_last if fake.result_is_channels_last(acc, acc) else torch.contiguous_format


def _unfused_and_dense(acc: Tensor, tensors: list[Tensor], code) -> list[Tensor]:
    """Outputs of a program as separate tensors, dense in the layout of acc: an operator's results may not be views of
    its arguments."""
    stored = [output.is_by_element for output in decoded("stitch", code).outputs]
    taken = {tensor.untyped_storage()._cdata for tensor in (acc, *tensors)}
    results = []
    for result, is_stored in zip(unfused(acc, tensors, code), stored, strict=True):
        if is_stored:
            result = result.contiguous(memory_format=_memory_format(acc))
        if result.untyped_storage()._cdata in taken:
            result = result.clone()
        taken.add(result.untyped_storage()._cdata)
        results.append(result)
    return results


def _fake_outputs(op: str, like: Tensor, tensors: list[Tensor], code) -> list[Tensor]:
    """Empty outputs of a program for a result like this one, whose strides they get."""
    program = decoded(op, code)
    torch._check(
        len(tensors) == len(program.inputs),
        lambda: f"reformer::{op}: the program has {len(program.inputs)} inputs, got {len(tensors)} tensors",
    )
    n, k, h, w = like.shape
    sizes = {"channel": [k], "row": [n, h, w], "plane": [n, k], "all": [], "height": [h, k]}
    results = []
    for output in program.outputs:
        if output.is_by_element:
            results.append(torch.empty_like(like, dtype=output.dtype))
        elif output.kind == "store":
            results.append(like.new_empty(sizes[output.per], dtype=output.dtype or like.dtype))
        else:
            size = [2, *sizes[output.per]] if output.kind == "moments" else sizes[output.per]
            results.append(like.new_empty(size, dtype=output.dtype or computed_type(like.dtype)))
    return results


def register(library: torch.library.Library) -> None:
    @torch.library.register_fake("reformer::stitch", lib=library)
    def _(acc, tensors, program):
        torch._check(
            acc.dim() == 4,
            lambda: f"reformer::stitch: acc must have 4 dimensions, got {acc.dim()} ({list(acc.shape)})",
        )
        like = torch.empty(acc.shape, dtype=acc.dtype, device=acc.device, memory_format=_memory_format(acc))
        return _fake_outputs("stitch", like, tensors, program)

    @torch.library.register_fake("reformer::conv2d_epilogue", lib=library)
    def _(input, weight, tensors, program, *geometry):
        return _fake_outputs("conv2d_epilogue", _ops.conv2d(input, weight, None, *geometry), tensors, program)

    for device in ("CPU", "CUDA"):
        library.impl("_stitch_unfused", _unfused_and_dense, device)
