"""Compute the terms of a sum of few, or of a maximum, one by one, instead of a tensor of all of them, if nothing else
reads that: the sum of a product is the sum of the terms' products, and one kernel computes it."""

from __future__ import annotations

from ..ir.graph import Graph, Indexed, Map, Operation, Random, View
from ..ir.iteration_space import has_space
from ..ir.layout import Layout
from ..ir.terms import OF_TERMS, Box, box_of, part_of


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
        for reader in dict.fromkeys(readers[result]):
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
    if result.memory is not None or not result.layout.is_dense or not all(reader in of_terms for reader in reading):
        return None
    views = [view for reader in reading for view in reader.operands if view.value is result]
    boxes = {view.layout: box_of(view.layout, result.layout) for view in views}
    if len(boxes) < 2 or None in boxes.values() or not _are_disjoint(list(boxes.values())):
        return None
    parts = {}
    for layout, box in boxes.items():
        inputs = [part_of(view, layout.sizes, box) for view in operation.inputs]
        if not has_space(inputs, layout.packed):
            return None
        parts[layout] = Map(inputs, operation.name, operation.expression)
    return parts


def _are_disjoint(boxes: list[Box]) -> bool:
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
