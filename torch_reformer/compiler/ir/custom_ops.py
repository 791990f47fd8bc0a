"""Operators, and keys of nodes' `meta`, that the compiler's rewrites put into FX graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...program.interpreter import uniform

aten = torch.ops.aten


@torch.library.custom_op("reformer::_random", mutates_args=())
def _random(key: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Uniform random numbers in [0, 1), fp32, by the key and each element's place in the (dense) memory."""
    numbers = uniform(key, (1, math.prod(size), 1, 1))
    return numbers.as_strided(size, stride).clone()


@_random.register_fake
def _(key: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=torch.float32, device=key.device)


random = torch.ops.reformer._random.default
draw_key = aten.randint.low
USER_CAST = "reformer_user_cast"  # in a node's meta: the user wrote this cast
CONSTANT = "reformer_constant"  # in a node's meta: the value of a tensor that was computed at compile time, on the CPU
PART = "reformer_part"  # in a node's meta: the part of a training step that it belongs to, one of PARTS
PARTS = "forward", "backward", "update"
DONATED = "reformer_spent"  # in a node's meta: the tensor is dead after its only use
FEWEST_PACKED = 4  # casts: fewer are not worth a step of the plan
_MOST_ALIGNED = 128  # elements; large packed tensors begin at multiples, at the start of a cache line
_LEAST_ALIGNED = 16  # elements; small ones at multiples of the next power of two, and of this for vectorised reads


@torch.library.custom_op("reformer::_scaled", mutates_args=())
def _scaled(tensor: Tensor, factor: Tensor) -> Tensor:
    """tensor * factor, for a factor of one element."""
    return tensor * factor


@_scaled.register_fake
def _(tensor: Tensor, factor: Tensor) -> Tensor:
    return torch.empty_like(tensor)


scaled = torch.ops.reformer._scaled.default
scale_in_place = torch.ops.reformer._scale_.default  # of what is dead otherwise


@torch.library.custom_op("reformer::_after", mutates_args=())
def _after(tensor: Tensor, before: Sequence[Tensor]) -> Tensor:
    """The tensor, for use once all of `before` are computed. In a plan it costs nothing."""
    return tensor.clone()


@_after.register_fake
def _(tensor: Tensor, before: Sequence[Tensor]) -> Tensor:
    return tensor.clone()


@torch.library.custom_op("reformer::_add_product", mutates_args=())
def _add_product(sum: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """sum + one @ other. The factors may be narrower than the sum. A plan adds in place, as nothing reads the sum
    afterwards."""
    return sum + (one.to(sum.dtype) @ other.to(sum.dtype))


@_add_product.register_fake
def _(sum: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.empty_like(sum)


@torch.library.custom_op("reformer::_append", mutates_args=())
def _append(
    memory: Tensor | None, parts: Sequence[Tensor], size: Sequence[int], stride: Sequence[int], dim: int, start: int
) -> Tensor:
    """A tensor with room for more parts: what the memory has before `start`, then the parts, along a dimension. What is
    behind them is not read. A plan writes to the memory in place (ir/concats.py)."""
    result = parts[0].new_empty_strided(size, stride).zero_() if memory is None else memory.clone()
    for part in parts:
        result.narrow(dim, start, part.shape[dim]).copy_(part)
        start += part.shape[dim]
    return result


@_append.register_fake
def _(memory, parts, size, stride, dim, start) -> Tensor:
    return parts[0].new_empty_strided(size, stride)


def packed_starts(counts: Iterable[int]) -> list[int]:
    """Where tensors of so many elements begin that are packed into one, and at the end the number of its elements."""
    starts, end = [], 0
    for count in counts:
        aligned = min(_MOST_ALIGNED, max(_LEAST_ALIGNED, 1 << (count - 1).bit_length()))
        starts.append(-(-end // aligned) * aligned)
        end = starts[-1] + count
    return [*starts, end]


@torch.library.custom_op("reformer::_pack", mutates_args=())
def _pack(tensors: Sequence[Tensor]) -> Tensor:
    """The memory of dense tensors of one data type, one after the other: a vector."""
    *starts, length = packed_starts(tensor.numel() for tensor in tensors)
    memory = tensors[0].new_zeros(length)
    for tensor, start in zip(tensors, starts, strict=True):
        memory.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor)
    return memory


@_pack.register_fake
def _(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].new_empty(packed_starts(tensor.numel() for tensor in tensors)[-1])


torch.library.define("reformer::_unpack", "(Tensor(a) memory, int[] size, int[] stride, int start) -> Tensor(a)")


@torch.library.impl("reformer::_unpack", "CompositeExplicitAutograd")
def _unpack(memory: Tensor, size: Sequence[int], stride: Sequence[int], start: int) -> Tensor:
    """One of the tensors in memory of _pack, which begins at this element. Other than of views, its fake tensor is in
    memory of its own, and plans take it for such (ir/graph.py: Graph.parts)."""
    return memory.as_strided(size, stride, memory.storage_offset() + start)


pack, unpack = torch.ops.reformer._pack.default, torch.ops.reformer._unpack.default
after = torch.ops.reformer._after.default
add_product = torch.ops.reformer._add_product.default
append = torch.ops.reformer._append.default
embedding_grad = torch.ops.reformer._embedding_grad.default  # with a sixth argument, the sum of that and the gradient
