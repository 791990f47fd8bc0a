"""Concatenations, whose parts kernels write where they lie in the result.

So does an append (ir/custom_ops.py): its result has room behind its parts, and is the memory of an append before it,
of which nobody reads what is behind that one's parts (joint_graph/append_parts.py)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .custom_ops import append
from .graph import Call, Operation, Value, View
from .layout import Layout

_cat = torch.ops.aten.cat.default


class Part(NamedTuple):
    """A concatenated view, and its slice of the result."""

    view: View
    slice: View


def is_concat(operation: Operation | None) -> bool:
    return isinstance(operation, Call) and operation.operator in (_cat, append)


def concatenated(call: Call) -> list[View]:
    """The views that a concatenation is made of; of an append, those that it adds."""
    return call.args[1] if call.operator is append else call.args[0]


def parts_of(call: Call) -> list[Part]:
    """Those of the concatenated views that have elements."""
    (result,), views = call.results, concatenated(call)
    dim, start = call.args[4:] if call.operator is append else (_dim(call), 0)
    strides = result.layout.strides
    pairs, offset = [], start * strides[dim]
    for view in views:
        if view.layout.numel:
            pairs.append(Part(view, View(result, Layout(view.layout.sizes, strides, offset))))
        offset += view.layout.sizes[dim] * strides[dim]
    return pairs


def _dim(call: Call) -> int:
    return (*call.args[1:], 0)[0] % max(len(call.results[0].layout.sizes), 1)


def memory_of(value: Value) -> View | None:
    """The memory in which an append puts this value, its result; None if it makes new memory, or nothing appends."""
    call = value.maker
    return call.args[0] if isinstance(call, Call) and call.operator is append else None


def pieces(view: View) -> tuple[list[View], int] | None:
    """The views of which this one is the concatenation, and the dimension; None if it is none, or but a part of one."""
    call = view.value.maker
    if not is_concat(call):
        return None
    if call.operator is _cat:
        return (list(call.args[0]), _dim(call)) if view.layout == view.value.layout else None
    found, (*_, dim, start) = list(call.args[1]), call.args
    while start:
        call = memory_of(call.results[0]).value.maker
        if not is_concat(call):
            return None  # the memory of an input
        found, start = [*call.args[1], *found], call.args[5]
    sizes, strides = list(view.value.layout.sizes), view.value.layout.strides
    sizes[dim] = sum(part.layout.sizes[dim] for part in found)
    return (found, dim) if view.layout == Layout(tuple(sizes), strides) else None
