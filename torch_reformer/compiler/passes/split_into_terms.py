"""Compute the terms of a sum of few, or of a maximum, one by one, instead of a tensor of all of them, if nothing else
reads that: the sum of a product is the sum of the terms' products, and one kernel computes it."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.graph import Graph, Indexed, Map, Operation, Random, View
from ..ir.iteration_space import has_space
from ..ir.layout import Layout
from ..ir.terms import OF_TERMS


class _Box(NamedTuple):
    """A rectangular part of a tensor: for each of its dimensions, the whole's (None if it has one element); and where
    it starts, and how many elements it has, in each of the whole's."""

    dims: tuple[int | None, ...]
    starts: tuple[int, ...]
    extents: tuple[int, ...]


def split_into_terms(graph: Graph) -> None:
    """Split element-wise operations whose results are read only as disjoint parts, by the operations of single
    terms."""
    readers = graph.readers()
    of_terms = {operation for operation in graph.operations if getattr(operation, "name", "") in OF_TERMS}
    kept: list[Operation] = []
    for operation in reversed(graph.operations):
        parts = _split(operation, readers, of_terms)
        if not parts:
            kept.append(operation)
            continue
        (result,) = operation.results
        new: dict[Layout, View] = {}
        for view in operation.inputs:
            readers[view.value] = [other for other in readers[view.value] if other is not operation]
        for layout, part in parts.items():
            value = graph.value(layout.packed, result.dtype, result.device)
            part.results, part.node, part.rounds, value.maker = [value], operation.node, operation.rounds, part
            new[layout] = View(value, value.layout)
            kept.append(part)
            of_terms.add(part)
            for view in part.inputs:
                readers[view.value].append(part)
        for reader in set(readers[result]):
            reader.change_operands(
                lambda view, whole=result, new=new: new[view.layout] if view.value is whole else view
            )
    graph.operations = kept[::-1]


def _split(operation: Operation, readers: dict, of_terms: set[Operation]) -> dict[Layout, Map] | None:
    """An operation for each part of the result that is read. None if it is read as a whole, if parts overlap, or if a
    kernel can't compute one of them."""
    if not isinstance(operation, Map) or isinstance(operation, (Indexed, Random)) or not operation.inputs:
        return None
    (result,) = operation.results
    reading = readers.get(result, [])
    if not result.layout.is_dense or not all(reader in of_terms for reader in reading):
        return None
    views = [view for reader in reading for view in reader.operands if view.value is result]
    boxes = {view.layout: _box(view.layout, result.layout) for view in views}
    if len(boxes) < 2 or None in boxes.values() or not _are_disjoint(list(boxes.values())):
        return None
    parts = {}
    for layout, box in boxes.items():
        inputs = [_part(view, layout.sizes, box) for view in operation.inputs]
        if not has_space(inputs, layout.packed):
            return None
        parts[layout] = Map(inputs, operation.name, operation.expression)
    return parts


def _box(part: Layout, whole: Layout) -> _Box | None:
    """Where a part lies in the whole; None if it is not rectangular there."""
    dim_of_stride = {whole.strides[d]: d for d, size in enumerate(whole.sizes) if size > 1}
    starts, extents = [0] * len(whole.sizes), [1] * len(whole.sizes)
    dims = [
        dim_of_stride.get(stride) if size > 1 else None for size, stride in zip(part.sizes, part.strides, strict=True)
    ]
    for d, size in zip(dims, part.sizes, strict=True):
        if d is not None:
            extents[d] *= size
        elif size > 1:
            return None
    offset = part.offset
    for stride, d in sorted(dim_of_stride.items(), reverse=True):
        starts[d], offset = divmod(offset, stride)
        if starts[d] + extents[d] > whole.sizes[d]:
            return None
    return None if offset else _Box(tuple(dims), tuple(starts), tuple(extents))


def _are_disjoint(boxes: list[_Box]) -> bool:
    """True if the parts have equal sizes and no element in common."""
    first = boxes[0]
    if any((box.dims, box.extents) != (first.dims, first.extents) for box in boxes):
        return False
    cells = set()
    for box in boxes:
        if any(start % extent for start, extent in zip(box.starts, box.extents, strict=True)):
            return False
        cells.add(box.starts)
    return len(cells) == len(boxes)


def _part(view: View, sizes: tuple[int, ...], box: _Box) -> View:
    """The part of an operand from which a part of the result is computed."""
    layout = view.layout
    strides = tuple(0 if d is None else layout.strides[d] for d in box.dims)
    offset = sum(start * stride for start, stride in zip(box.starts, layout.strides, strict=True))
    return View(view.value, Layout(sizes, strides, layout.offset + offset))
