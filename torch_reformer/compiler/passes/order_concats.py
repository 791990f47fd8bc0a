"""Concatenate in the order of memory in which the result is read.

PyTorch gives a concatenation the order of its dimensions, or that of its first part. If it is only copied to another
order, as the gradient of a split that a product reads, its parts are concatenated in that order instead. Each part is
then read in another order, or computed in it (follow_readers.py, transpose_products.py). Nothing is copied twice."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Operation, Value, View
from ..ir.layout import Layout

_cat, _contiguous = torch.ops.aten.cat.default, torch.ops.reformer._contiguous.default


def order_concats(graph: Graph) -> None:
    """Replace concatenations that are only copied to one other order by concatenations in that order."""
    readers = graph.readers()
    instead: dict[Value, View] = {}  # a copy's result -> the concatenation
    for operation in graph.operations:
        if not isinstance(operation, Call) or operation.operator is not _cat:
            continue
        copies = readers.get(operation.results[0], [])
        if copies and all(map(_is_copy, copies)) and (order := _order(operation, copies)) is not None:
            parts, dim, layout = order
            operation.args, operation.results[0].layout = (parts, dim), layout
            instead |= {copy.results[0]: View(operation.results[0], layout) for copy in copies}
    graph.substitute(instead)


def _is_copy(reader: Operation | None) -> bool:
    return isinstance(reader, Call) and reader.operator is _contiguous


def _order(call: Call, copies: list[Call]) -> tuple[list[View], int, Layout] | None:
    """Parts, dimension and layout of the concatenation in the order of the copies; None if they have several, or if
    a part has no view with the copy's dimensions."""
    (result,), (parts, *dims) = call.results, call.args
    views = {copy.args[0].layout for copy in copies}
    layouts = {copy.results[0].layout for copy in copies}
    whole = result.layout
    if len(views) > 1 or len(layouts) > 1 or result.memory is not None or not all(c.args[0].is_full for c in copies):
        return None
    if not whole.is_row_major or any(len(part.layout.sizes) != len(whole.sizes) for part in parts):
        return None  # PyTorch also takes parts of no elements and one dimension
    (view,), (layout,) = views, layouts
    of_dims = [_dim_of(size, stride, whole) for size, stride in zip(view.sizes, view.strides, strict=True)]
    dim = (dims[0] if dims else 0) % len(whole.sizes)
    concatenated = [i for i, of in enumerate(of_dims) if of is not None and of[0] == dim]
    if None in of_dims or not concatenated:
        return None
    outer = max(concatenated, key=lambda i: view.strides[i])
    step = view.strides[outer] // whole.strides[dim]  # of the concatenated dimension, for one of the outer one
    if any(part.layout.sizes[dim] % step for part in parts):
        return None
    new_parts = []
    for part in parts:
        sizes, strides = list(view.sizes), [part.layout.strides[of] * factor for of, factor in of_dims]
        sizes[outer] = part.layout.sizes[dim] // step
        new_parts.append(View(part.value, Layout(tuple(sizes), tuple(strides), part.layout.offset)))
    return new_parts, outer, layout


def _dim_of(size: int, stride: int, whole: Layout) -> tuple[int, int] | None:
    """The dimension of a row-major layout that a view's dimension lies in, and the steps that it takes there; None if
    it lies in several."""
    for d, (count, each) in enumerate(zip(whole.sizes, whole.strides, strict=True)):
        if count > 1 and stride >= each:
            factor, rest = divmod(stride, each)
            return (d, factor) if not rest and (size - 1) * factor < count else None
    return None
