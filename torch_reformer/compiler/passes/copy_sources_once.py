"""Copy the source of a copy: of two copies in different orders of memory the second reads what the first one reads. The
first is left out if only sums read it besides, which read the second. Both are if the second restores the source's
order, unless it is an output, which may share no memory with the source.

A model's gradient is copied so to the order of its input's strides, and a bias's gradient is the sum of the copy."""

from __future__ import annotations

import torch

from ..ir.digits import on_axes
from ..ir.graph import Call, Graph, Operation, Reduce, Value, View, substituted
from ..ir.index_maps import without
from ..ir.iteration_space import find_space
from ..ir.layout import Layout
from ..ir.other_memory import layout_in, strides_between

_contiguous = torch.ops.reformer._contiguous.default


def copy_sources_once(graph: Graph) -> None:
    """Replace copies of copies by copies of their sources, where that leaves out the first copy."""
    readers = graph.readers()
    instead: dict[Value, View] = {}
    before, graph.operations = graph.operations, []
    for operation in before:
        graph.operations.append(operation)
        if not instead.keys().isdisjoint(operation.results):
            continue  # the second one of two copies: its source may be left out
        if _is_copy(operation) and (second := _second(operation, readers)) is not None:
            graph.operations.pop()
            (value,), (result,) = operation.results, second.results
            source = substituted(_in_source(second.operands[0].layout, operation), instead)
            layout = Layout.row_major(source.layout.sizes)
            copy = source.value
            if source.layout != layout or None in readers[result]:
                (copy,) = graph.add(Call(_contiguous, (source,), {}), [(layout, value.dtype, value.device)])
            instead[result] = View(copy, result.layout)
            for reader in readers[value]:
                if isinstance(reader, Reduce):
                    reader.input = View(copy, relaid(reader.input.layout, second))
    graph.substitute(instead)


def _is_copy(operation: Operation | None) -> bool:
    return isinstance(operation, Call) and operation.operator is _contiguous


def _second(first: Operation, readers: dict[Value, list[Operation | None]]) -> Call | None:
    """The only copy of a copy; None if there is none, or if something reads the first that can't read the second."""
    (value,) = first.results
    reading = readers.get(value, [])
    copies = [reader for reader in reading if _is_copy(reader)]
    if (
        not value.layout.numel
        or len(copies) != 1
        or not copies[0].operands[0].is_full
        or _in_source(copies[0].operands[0].layout, first) is None
    ):
        return None
    others = [reader for reader in reading if reader is not copies[0]]
    return copies[0] if all(isinstance(other, Reduce) and can_read(other, copies[0]) for other in others) else None


def can_read(reduce: Reduce, copy: Call) -> bool:
    """True if a sum of what a copy reads can be one of the copy, with its result in the same order of memory."""
    before = reduce.input.layout
    layout = relaid(before, copy)
    if layout is None or not layout.is_dense or _kept_order(before, reduce) != _kept_order(layout, reduce):
        return False
    return find_space(layout.numel, {((1, layout.numel),)}, {without(layout, reduce.over)}) is not None


def _kept_order(layout: Layout, reduce: Reduce) -> list[int]:
    """The dimensions that a sum keeps, in the order of memory."""
    kept = [d for d, size in enumerate(layout.sizes) if d not in reduce.over and size > 1]
    return sorted(kept, key=lambda d: layout.strides[d])


def _in_source(layout: Layout, first: Call) -> View | None:
    """The elements of a copy that a view of it has, in the copy's source, with each dimension as one or several; None
    if there is no such view."""
    (value,), (source,) = first.results, first.operands
    stride_of = strides_between(value.layout, source.layout)
    axes = zip(value.layout.sizes, value.layout.strides, strict=True)
    found = on_axes(axes, zip(layout.sizes, layout.strides, strict=True), layout.offset)
    if found is None or layout.offset:
        return None
    parts = [part for of_dim in found[1] for part in reversed(of_dim)]
    sizes = tuple(count for _, count, _ in parts)
    strides = tuple(stride_of[axis] * each for axis, _, each in parts)
    return View(source.value, Layout(sizes, strides, source.layout.offset))


def relaid(layout: Layout, copy: Call) -> Layout | None:
    """The layout, in the result of a copy, of elements that have this layout in its source; None if they have none, or
    if they are not all of it."""
    copied = copy.operands[0].layout
    is_whole = not layout.offset and layout.numel == copied.numel
    return layout_in(layout, copied, copy.results[0].layout) if is_whole else None
