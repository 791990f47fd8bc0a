"""Compute im2col by programs, which read the images where they lie.

The elements of all windows are images whose axes are read through maps (ir/axis_map.py), and im2col copies them in
another order. If only copies read its result, each takes the elements from the images, and nothing else is stored: in
VOLO's attention, rows of channels, which are adjacent in the images."""

from __future__ import annotations

import torch

from ...runtime.dtypes import FLOATS
from ..ir.access import composed
from ..ir.contiguous import in_order
from ..ir.digits import on_axes, with_strides
from ..ir.graph import Call, Graph, Indexed, Map, Operation, Random, Typed, Value, View
from ..ir.index_maps import index_map_of, operand_maps
from ..ir.iteration_space import find_space
from ..ir.layout import Layout
from ..ir.through_maps import Maps, Source, add_indexed, after_makers, can_map, is_read
from ..ir.windows import Windows

_im2col = torch.ops.aten.im2col.default
_contiguous = torch.ops.reformer._contiguous.default


def read_windows(graph: Graph) -> None:
    """Replace calls of im2col, or the copies that are all that reads their results."""
    readers = graph.readers()
    before, graph.operations = graph.operations, []
    calls: dict[Value, Call] = {}  # which only copies read
    instead: dict[Value, View] = {}
    for operation in before:
        new = None
        if isinstance(operation, Call) and operation.operator is _im2col:
            (value,) = operation.results
            if all(map(_is_copy, readers.get(value, []))):
                calls[value] = operation
            else:
                new = _read(graph, operation, View(value, value.layout), value.layout)
        elif _is_copy(operation) and (call := calls.get(operation.operands[0].value)) is not None:
            new = _read(graph, call, operation.operands[0], operation.results[0].layout)
            if new is not None and isinstance(operation, Map):
                computed = Map([new], operation.name, operation.expression)
                computed.rounds = operation.rounds
                type = Typed(new.value.layout, operation.results[0].dtype, operation.results[0].device)
                new = View(*graph.add(computed, [type]), new.layout)
        if new is None:
            graph.operations.append(operation)
        else:
            instead[operation.results[0]] = View(new.value, operation.results[0].layout)
    graph.substitute(instead)


def _is_copy(operation: Operation | None) -> bool:
    """True if the operation copies its operand, or computes each element from one of it."""
    if isinstance(operation, Call):
        return operation.operator is _contiguous
    is_map = isinstance(operation, Map) and not isinstance(operation, (Indexed, Random))
    return is_map and len(operation.inputs) == 1 and operation.results[0].memory is None


def _read(graph: Graph, call: Call, view: View, layout: Layout) -> View | None:
    """Add operations that compute a view of im2col's result from the images, in the order of memory of a layout. None
    if no program can."""
    images, *options = call.args
    if len(images.layout.sizes) == 3:
        sizes, strides = images.layout.sizes, images.layout.strides
        images = View(images.value, Layout((1, *sizes), (0, *strides), images.layout.offset))
    batch, channels, *size = images.layout.sizes
    down, across = map(Windows, size, *options)
    value = view.value
    if not value.layout.numel or not value.layout.is_row_major:
        return None
    if not can_map(value.device, (down.elements, across.elements)):
        return None
    # An image has the elements of all windows. For each axis of im2col's result its size, its dimension of the images,
    # and how many of their elements it steps over.
    axes = (batch, 0, 1), (channels, 1, 1), (down.taps, 2, down.count), (across.taps, 3, across.count)
    axes = *axes, (down.count, 2, 1), (across.count, 3, 1)
    of_result = Layout.row_major(tuple(count for count, *_ in axes))
    places = {at: (d, step) for (count, d, step), at in zip(axes, of_result.strides, strict=True) if count > 1}
    digits = with_strides(index_map_of(layout, view.layout), layout.numel)
    runs = [(count, stride) for _, count, stride in digits]
    if (found := on_axes(zip(of_result.sizes, of_result.strides, strict=True), runs, view.layout.offset)) is None:
        return None
    starts, parts = found
    order = images.layout.strides
    if parts[0]:  # the elements of the innermost dimension that is read have to be adjacent
        d, _ = places[parts[0][0][0]]
        order = order if order[d] == 1 else tuple(0 if other == d else one + 1 for other, one in enumerate(order))
    whole = Layout((batch, channels, down.elements, across.elements), order).packed

    def address(axis: int, index: int) -> int:
        d, step = places[axis]
        return index * step * whole.strides[d]

    read = [
        run
        for (count, stride), of_run in zip(runs, parts, strict=True)
        for run in ([(n, address(axis, each)) for axis, n, each in of_run] if stride else [(count, 0)])
    ]
    sizes, strides = (tuple(numbers) for numbers in zip(*reversed(read), strict=True))
    offset = sum(address(*start) for start in starts.items())
    type = Typed(whole, value.dtype, value.device)
    windows = _windows(graph, type, images, {2: down.map(), 3: across.map()})
    if windows is None:
        return None
    source, result = View(windows, Layout(sizes, strides, offset)), Layout.row_major(sizes)
    ((_, access),) = operand_maps(windows.maker)
    found = composed(access, whole, index_map_of(result, source.layout), offset, result.numel)
    if found is None or find_space(result.numel, {found[0]}, set()) is None:
        return None
    copy = Map([source], "clone", lambda x: x)
    return View(*graph.add(copy, [Typed(result, value.dtype, value.device)]), result)


def _windows(graph: Graph, type: Typed, images: View, maps: Maps) -> Value | None:
    """Add an operation that reads the images through maps, or a copy of them in the result's order of memory. None if
    no program can, or if there is nothing to map."""
    if type.dtype not in (*FLOATS, torch.bool) or (type.dtype == torch.float64 and type.device.type != "cpu"):
        return None
    if type.layout.numel < 2 or not images.layout.numel or images.value.layout.numel >= 2**31:
        return None
    source = after_makers(Source(images, maps, 0.0))
    ordered = Layout(source.view.layout.sizes, type.layout.strides).packed
    source = source._replace(view=in_order(graph, source.view, ordered, {}))
    if not is_read(type.layout, source):
        return None
    windows = add_indexed(graph, "im2col", type, source).value
    return windows if isinstance(windows.maker, Indexed) else None
