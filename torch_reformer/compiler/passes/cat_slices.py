"""Concatenate gradients of slices that together are the whole: PyTorch adds them up, each with zeros elsewhere.

The kernels that compute the parts write them then (fusion/fuse_concat.py). 0 is added to each: -0.0 + 0 is 0."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Indexed, Map, Typed, Value, View

_cat = torch.ops.aten.cat.default
_Part = tuple[int, int, View]  # where it starts, how many elements of the axis it has


def cat_slices(graph: Graph) -> None:
    """Replace sums of two slices with zeros elsewhere by concatenations."""
    uses = graph.uses()
    before, graph.operations = graph.operations, []
    for operation in before:
        if isinstance(operation, Map) and operation.name == "add" and (found := _parts(operation, uses)) is not None:
            dim, parts = found
            (result,) = operation.results
            views = [_plus_zero(graph, view, result) for _, _, view in parts]
            operation = Call(_cat, (views, dim), {})
            operation.results, result.maker = [result], operation
        graph.operations.append(operation)


def _plus_zero(graph: Graph, view: View, like: Value) -> View:
    layout = view.layout.packed
    (value,) = graph.add(Map([view], "add[0]", lambda x: x + 0.0), [Typed(layout, like.dtype, like.device)])
    return View(value, layout)


def _parts(operation: Map, uses) -> tuple[int, list[_Part]] | None:
    """The dimension along which the operands are slices that are the whole together, and the slices; or None."""
    (result,) = operation.results
    if len(operation.inputs) != 2 or not result.layout.is_row_major or not result.layout.numel:
        return None
    found: list[tuple[int, _Part]] = []
    for view in operation.inputs:
        maker = view.value.maker
        if not isinstance(maker, Indexed) or view.layout != view.value.layout or view.layout != result.layout:
            return None
        if uses[view.value] > 1 or view.value.dtype != result.dtype or maker.fill or (part := _part(maker)) is None:
            return None
        found.append(part)
    (dim, first), (other, second) = sorted(found, key=lambda part: part[1][0])
    is_whole = first[0] == 0 and first[0] + first[1] == second[0] and sum(second[:2]) == result.layout.sizes[dim]
    return (dim, [first, second]) if dim == other and is_whole else None


def _part(operation: Indexed) -> tuple[int, _Part] | None:
    """The dimension in which the operation has all of its operand, in order, between zeros, and where; or None."""
    (view,) = operation.inputs
    dims = [d for d, axis_map in enumerate(operation.maps) if axis_map is not None]
    if len(dims) != 1 or view.value.dtype != operation.results[0].dtype:
        return None
    (dim,) = dims
    size, rows = view.layout.sizes[dim], operation.maps[dim].rows
    start = next((i for i, row in enumerate(rows) if row), None)
    if start is None:
        return None
    expected = [((i - start, 1.0),) if start <= i < start + size else () for i in range(len(rows))]
    return (dim, (start, size, view)) if list(rows) == expected else None
