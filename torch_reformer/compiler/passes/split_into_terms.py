"""Compute the terms of a sum of few, or of a maximum, one by one, instead of a tensor of all of them, if nothing else
reads that: the sum of a product is the sum of the terms' products, and one kernel computes it."""

from __future__ import annotations

from ..ir.graph import Graph, Indexed, Map, Operation, Random, Value, View
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
        values: dict[Map, Value] = {}
        for layout, (box, part) in parts.items():
            if part not in values:
                packed = Layout(box.extents, result.layout.strides).packed
                values[part] = value = graph.value(packed, result.dtype, result.device)
                part.results, part.node, part.rounds, value.maker = [value], operation.node, operation.rounds, part
                kept.append(part)
                of_terms.add(part)
                for view in part.inputs:
                    readers[view.value].append(part)
            new[layout] = _in_part(layout, box, values[part])
        for reader in dict.fromkeys(readers[result]):
            reader.change_operands(
                lambda view, whole=result, new=new: new[view.layout] if view.value is whole else view
            )
    graph.operations = kept[::-1]


def _split(operation: Operation, readers: dict, of_terms: set[Operation]) -> dict[Layout, tuple[Box, Map]] | None:
    """For each view of the result, the part of the result that it has, and an operation that computes this part. None
    if the result is read as a whole, if parts overlap, or if a kernel can't compute one of them."""
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
    for box in boxes.values():
        dims = tuple(range(len(box.extents)))
        inputs = [part_of(view, box.extents, box._replace(dims=dims)) for view in operation.inputs]
        if not has_space(inputs, Layout(box.extents, result.layout.strides).packed):
            return None
        parts[box.starts] = Map(inputs, operation.name, operation.expression)
    return {layout: (box, parts[box.starts]) for layout, box in boxes.items()}


def _in_part(layout: Layout, box: Box, part: Value) -> View:
    """The view of the whole that has this part of it, as a view of the part."""
    strides = tuple(0 if d is None else part.layout.strides[d] for d in box.dims)
    return View(part, Layout(layout.sizes, strides))


def _are_disjoint(boxes: list[Box]) -> bool:
    """True if there are several parts, they have equal sizes, and no two have an element in common."""
    extents = boxes[0].extents
    if any(box.extents != extents for box in boxes):
        return False
    if any(start % extent for box in boxes for start, extent in zip(box.starts, extents, strict=True)):
        return False
    return len({box.starts for box in boxes}) > 1
