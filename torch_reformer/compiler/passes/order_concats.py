"""Concatenate in the order of memory in which the result is read.

PyTorch gives a concatenation the order of its dimensions, or that of its first part. If it is only copied to another
order, as the gradient of a split that a product reads, its parts are concatenated in that order instead. Each part is
then read in another order, or computed in it (follow_readers.py, transpose_products.py). Nothing is copied twice."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..ir.graph import Call, Graph, Map, Operation, Value, View, is_copy
from ..ir.layout import Layout
from .transpose_products import PRODUCTS

_cat, _contiguous = torch.ops.aten.cat.default, torch.ops.reformer._contiguous.default


def order_concats(graph: Graph) -> None:
    """Replace concatenations that are only copied to one other order by concatenations in that order."""
    while _order_some(graph):  # a copy may be copied again
        pass


def _order_some(graph: Graph) -> bool:
    """True if the graph changed."""
    readers = graph.readers()
    instead: dict[Value, View] = {}  # a copy's result -> the concatenation
    for operation in graph.operations:
        if not isinstance(operation, Call) or operation.operator is not _cat:
            continue
        copies = readers.get(operation.results[0], [])
        if copies and all(map(_is_copy, copies)) and (order := _order(operation, copies)) is not None:
            parts, dim, layout = order
            operation.args, operation.results[0].layout = (parts, dim), layout
            instead |= {copy.results[0]: View(operation.results[0], copy.results[0].layout) for copy in copies}
    graph.substitute(instead)
    return bool(instead)


def _is_copy(reader: Operation | None) -> bool:
    return is_copy(reader) or (isinstance(reader, Call) and reader.operator is _contiguous)


def _order(call: Call, copies: list[Call]) -> tuple[list[View], int, Layout] | None:
    """Parts, dimension and layout of the concatenation in the order of the copies; None if they have several, or if
    a part has no such view."""
    (result,), (parts, *dims) = call.results, call.args
    whole, read = result.layout, [copy.operands[0] for copy in copies]
    views, layouts = {view.layout for view in read}, {copy.results[0].layout for copy in copies}
    if len(views) > 1 or len(layouts) > 1 or result.memory is not None or not all(view.is_full for view in read):
        return None
    if not whole.numel or not whole.is_dense or any(len(part.layout.sizes) != len(whole.sizes) for part in parts):
        return None  # PyTorch also takes parts of no elements and one dimension
    (view,), (layout,) = views, layouts
    axes = _axes(view, whole)
    dim = (dims[0] if dims else 0) % len(whole.sizes)
    concatenated = [place for place, axis in enumerate(axes or []) if axis.dim == dim]
    if axes is None or not concatenated or not layout.is_row_major:
        return None
    outer = max(concatenated, key=lambda place: axes[place].step)
    if any(part.layout.sizes[dim] % axes[outer].step for part in parts):
        return None
    new_parts = []
    for part in parts:
        sizes = [axis.size for axis in axes]
        sizes[outer] = part.layout.sizes[dim] // axes[outer].step
        strides = tuple(part.layout.strides[axis.dim] * axis.step for axis in axes)
        new_parts.append(View(part.value, Layout(tuple(sizes), strides, part.layout.offset)))
    if not all(map(_is_adjacent, new_parts)):
        return None
    return new_parts, outer, Layout.row_major(tuple(axis.size for axis in axes))


def _is_adjacent(part: View) -> bool:
    """True if the part's elements are read in the order of memory, or may be computed in that order."""
    maker = part.value.maker
    if isinstance(maker, Map) or (isinstance(maker, Call) and maker.operator in PRODUCTS):
        return True
    strides = [stride for size, stride in zip(part.layout.sizes, part.layout.strides, strict=True) if size > 1]
    return not strides or strides[-1] == 1


class _Axis(NamedTuple):
    """Dimension of a view that lies in one dimension of the value: elements `step` apart in that."""

    size: int
    dim: int
    step: int


def _axes(view: Layout, whole: Layout) -> list[_Axis] | None:
    """The view's dimensions, each as one or more that lie in a single dimension of the dense value; None if there are
    none."""
    axes: list[_Axis] = []
    dims = sorted((d for d, n in enumerate(whole.sizes) if n > 1), key=lambda d: -whole.strides[d])
    for size, stride in zip(view.sizes, view.strides, strict=True):
        split: list[_Axis] = []
        while size > 1:
            dim = next((d for d in dims if stride >= whole.strides[d]), None)
            step, rest = (0, 1) if dim is None or not stride else divmod(stride, whole.strides[dim])
            if rest or whole.sizes[dim] % step:
                return None
            count = min(size, whole.sizes[dim] // step)
            if size % count:
                return None
            split.insert(0, _Axis(count, dim, step))
            size, stride = size // count, stride * count
        axes += split
    return axes
