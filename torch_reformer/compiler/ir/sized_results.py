"""Results of operators on tensors whose sizes are symbols (sized_tensor.py), where their operands have other strides.

Strides of a view follow from its operand's, by the rules here. Those of other results are the compiler's own choice, so
they get the order of dimensions that PyTorch's fake result has for the numbers at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_map

from ...runtime.sizes import plain
from .fake_tensors import FakeTensorMode, Unsupported
from .layout import Layout
from .sized_tensor import SizedTensor

aten = torch.ops.aten


def sized_again(node: Node, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The node's result for these values of its operands, which have the sizes that they had. A new node has no result
    yet.

    Raises:
        RuntimeError: the view cannot be made of these strides.
        Unsupported: the strides are no order of dimensions, or no rule is known.
    """
    if "val" in node.meta:
        before = node.meta["val"]
    elif node.target in _NEW_SIZES:
        before = SizedTensor(args[0], _NEW_SIZES[node.target](*args), ())
    else:
        raise Unsupported(f"no rule is known for a new {node.target}, if sizes are symbols")
    if node.target in _VIEWS:
        return _VIEWS[node.target](args[0], before, *args[1:])
    if getattr(node.target, "is_view", False):
        raise Unsupported(f"no rule is known for {node.target} of other strides, if sizes are symbols")
    with FakeTensorMode(), torch.no_grad():
        args, kwargs = tree_map(_fake, (args, kwargs), is_leaf=_is_sized)
        result = node.target(*args, **kwargs)
    if isinstance(before, (list, tuple)):
        return type(before)(_ordered(*pair) for pair in zip(result, before, strict=True))
    return _ordered(result, before)


def _is_sized(value: Any) -> bool:
    return type(value) is SizedTensor


def _fake(value: Any) -> Any:
    if not _is_sized(value):
        return plain(value)
    shape, strides = plain(tuple(value.shape)), plain(tuple(value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)


def _ordered(result: Any, before: Any) -> Any:
    """A tensor of the sizes before, with its dimensions in the result's order of memory."""
    if not isinstance(result, Tensor):
        return before
    order = sorted(range(result.dim()), key=lambda d: (result.stride(d), -d))
    strides, expected = [1] * result.dim(), 1
    for d in order:
        strides[d] = expected
        expected = expected * before.shape[d]
    sized = SizedTensor(result, before.shape, strides)
    actual = Layout(tuple(result.shape), result.stride())
    if not Layout(tuple(result.shape), plain(tuple(strides))).matches(actual):
        raise Unsupported(f"{result.stride()} are strides of no dense tensor, and its sizes are symbols")
    return sized


def _same(tensor: SizedTensor, before: SizedTensor) -> SizedTensor:
    return tensor


def _with_strides(tensor: SizedTensor, before: SizedTensor, strides: Sequence, offset=0) -> SizedTensor:
    return SizedTensor(tensor, before.shape, strides, tensor.storage_offset() + offset)


def _permute(tensor, before, dims):
    return _with_strides(tensor, before, [tensor.stride(d) for d in dims])


def _transpose(tensor, before, one=0, other=1):
    strides = list(tensor.stride())
    if tensor.dim() > 1:
        strides[one], strides[other] = strides[other], strides[one]
    return _with_strides(tensor, before, strides)


def _expand(tensor, before, sizes, implicit=False):
    missing = before.dim() - tensor.dim()
    pairs = zip(tensor.shape, before.shape[missing:], tensor.stride(), strict=True)
    strides = [0 if one != other else stride for one, other, stride in pairs]
    return _with_strides(tensor, before, [0] * missing + strides)


def _squeeze(tensor, before, dims):
    dims = {d % tensor.dim() for d in ([dims] if isinstance(dims, int) else dims)}
    return _with_strides(
        tensor, before, [s for d, s in enumerate(tensor.stride()) if d not in dims or tensor.shape[d] != 1]
    )


def _unsqueeze(tensor, before, dim):
    dim %= before.dim()
    strides = list(tensor.stride())
    strides.insert(dim, tensor.shape[dim] * strides[dim] if dim < tensor.dim() else 1)
    return _with_strides(tensor, before, strides)


def _start(size, place):
    """A place in a dimension of this size, counted from its beginning."""
    return min(max(place + size if place < 0 else place, 0), size)


def _slice(tensor, before, dim=0, start=None, end=None, step=1):
    dim %= tensor.dim()
    strides = list(tensor.stride())
    offset = _start(tensor.shape[dim], start or 0) * strides[dim]
    strides[dim] = strides[dim] * step
    return _with_strides(tensor, before, strides, offset)


def _select(tensor, before, dim, index):
    dim %= tensor.dim()
    strides = list(tensor.stride())
    stride = strides.pop(dim)
    return _with_strides(tensor, before, strides, _start(tensor.shape[dim], index) * stride)


def _split(tensor, before, sizes, dim=0):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return type(before)(_slice(tensor, part, dim, start) for part, start in zip(before, starts, strict=True))


def _view(tensor, before, sizes):
    strides = _strides_of_view(tensor.shape, tensor.stride(), before.shape)
    if strides is None:
        raise RuntimeError("no view has these sizes")
    return _with_strides(tensor, before, strides)


def _strides_of_view(sizes: Sequence, strides: Sequence, new_sizes: Sequence) -> list | None:
    """Strides of a view of other sizes; None if it needs a copy. Runs of dimensions that are adjacent in memory are
    split anew, from the last one on."""
    left, new_strides = list(new_sizes), []
    dims = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    while dims:
        size, inner = dims.pop()
        while dims and dims[-1][1] == size * inner:
            size = size * dims.pop()[0]
        taken = 1
        while left and taken != size:
            new_strides.append(taken * inner)
            taken = taken * left.pop()
            if taken > size:
                return None
        if taken != size:
            return None
    if any(size != 1 for size in left):
        return None
    return [*[1] * len(left), *reversed(new_strides)]


_VIEWS: dict[Callable, Callable[..., Any]] = {
    **dict.fromkeys((aten.alias.default, aten.detach.default), _same),
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default), _view),
    aten.permute.default: _permute,
    **dict.fromkeys((aten.transpose.int, aten.t.default), _transpose),
    aten.expand.default: _expand,
    **dict.fromkeys((aten.squeeze.dims, aten.squeeze.dim), _squeeze),
    aten.unsqueeze.default: _unsqueeze,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split_with_sizes.default: _split,
}
_NEW_SIZES: dict[Callable, Callable[..., Sequence]] = {
    aten.permute.default: lambda tensor, dims: [tensor.shape[d] for d in dims],
    aten.view.default: lambda tensor, sizes: sizes,
    aten._to_copy.default: lambda tensor: tensor.shape,
}
