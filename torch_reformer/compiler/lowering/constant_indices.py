"""Rules of operators that read or add elements along one dimension by an index which is a constant of the graph: these
are read through a map of that axis, and a gradient adds in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ir.axis_map import AxisMap
from ..ir.fake_tensors import real_tensors, typed
from ..ir.graph import Graph, View
from ..ir.layout import Layout
from ..ir.through_maps import can_map
from .indexed import indexed
from .pointwise import expanded
from .slices import number_of

aten = torch.ops.aten


def _map(graph: Graph, value: Tensor, index: View, d: int, size: int, wraps: bool = False) -> AxisMap | None:
    """The map from an axis of so many elements to those at the index. None if the index is no constant, if it is not
    the same for all elements of its other dimensions, or if it is out of bounds.

    Args:
        value: the operator's result.
        d: the axis' dimension of the index.
        wraps: negative numbers count from the end.
    """
    constant, layout = graph.constants.get(index.value), index.layout
    if constant is None or not layout.numel or constant.dtype not in (torch.int64, torch.int32):
        return None
    if not can_map(value.device, (size, layout.sizes[d])):
        return None
    with real_tensors():
        offset = constant.storage_offset() + layout.offset
        lines = constant.as_strided(layout.sizes, layout.strides, offset).movedim(d, 0).reshape(layout.sizes[d], -1)
        if not bool((lines == lines[:, :1]).all()):
            return None
        places = lines[:, 0].tolist()
    places = [place + size if wraps and place < 0 else place for place in places]
    return AxisMap.choosing(size, places) if all(0 <= place < size for place in places) else None


def _index_select(graph: Graph, value: Tensor, view: View, dim: int, index: View) -> View | None:
    """Rule of index_select, but for rows of tables, which ir/gather.py has."""
    rank = len(view.layout.sizes)
    if not rank or (rank == 2 and dim % rank == 0):
        return None
    axis_map = _map(graph, value, index, 0, view.layout.sizes[dim % rank])
    return None if axis_map is None else indexed(graph, "index_select", typed(value), view, {dim % rank: axis_map})


def _index(graph: Graph, value: Tensor, view: View, indices: Sequence[View | None]) -> View | None:
    """Rule of index, by one index."""
    if (only := _only(indices)) is None:
        return None
    d, index, rank = only
    whole, sizes = typed(value), (*view.layout.sizes[:d], index.layout.numel, *view.layout.sizes[d + 1 :])
    if rank > 1 and not whole.layout.is_row_major:
        return None
    axis_map = _map(graph, value, index, 0, view.layout.sizes[d], wraps=True)
    type = whole if rank == 1 else whole._replace(layout=Layout.row_major(sizes))
    result = None if axis_map is None else indexed(graph, "index", type, view, {d: axis_map})
    return None if result is None else View(result.value, whole.layout)


def _gather(graph: Graph, value: Tensor, view: View, dim: int, index: View, sparse_grad: bool = False) -> View | None:
    """Rule of gather, by an index that is the same for all elements of the other dimensions."""
    sizes = view.layout.sizes
    if not sizes:
        return None
    d = dim % len(sizes)
    if (axis_map := _map(graph, value, index, d, sizes[d])) is None:
        return None
    read = tuple(
        size if other == d else count for other, (size, count) in enumerate(zip(sizes, value.shape, strict=True))
    )
    part = View(view.value, Layout(read, view.layout.strides, view.layout.offset))
    return indexed(graph, "gather", typed(value), part, {d: axis_map})


def _index_add(graph: Graph, value: Tensor, into: View, dim: int, index: View, source: View, alpha=1) -> View | None:
    """Rule of index_add to zeros."""
    if not into.layout.sizes or alpha != 1:
        return None
    d = dim % len(into.layout.sizes)
    return _added(graph, "index_add", value, into, source, d, _map(graph, value, index, 0, into.layout.sizes[d]))


def _index_put(graph: Graph, value: Tensor, into: View, indices, source: View, accumulate: bool = False) -> View | None:
    """Rule of index_put that adds to zeros, by one index."""
    if not accumulate or (only := _only(indices)) is None:
        return None
    d, index, rank = only
    if rank > 1:
        if not source.layout.is_row_major:
            return None
        sizes = (*source.layout.sizes[:d], index.layout.numel, *source.layout.sizes[d + rank :])
        source = View(source.value, Layout.row_major(sizes, source.layout.offset))
    axis_map = _map(graph, value, index, 0, into.layout.sizes[d], wraps=True)
    return _added(graph, "index_put", value, into, source, d, axis_map)


def _scatter_add(graph: Graph, value: Tensor, into: View, dim: int, index: View, source: View) -> View | None:
    """Rule of scatter_add to zeros, by an index that is the same for all elements of the other dimensions."""
    sizes = into.layout.sizes
    if not sizes or index.layout.sizes != source.layout.sizes:
        return None
    d = dim % len(sizes)
    return _added(graph, "scatter_add", value, into, source, d, _map(graph, value, index, d, sizes[d]))


def _added(
    graph: Graph, name: str, value: Tensor, into: View, source: View, d: int, axis_map: AxisMap | None
) -> View | None:
    """Sums of the source's elements at each place of a dimension, if the base is zeros."""
    if axis_map is None or number_of(into) != 0:
        return None
    sizes = (*into.layout.sizes[:d], len(axis_map.rows), *into.layout.sizes[d + 1 :])
    if source.value.dtype != value.dtype or (whole := expanded(source, sizes)) is None:
        return None
    return indexed(graph, name, typed(value), whole, {d: axis_map.transposed()})


def _only(indices: Sequence[View | None]) -> tuple[int, View, int] | None:
    """The dimension, the index as a vector, and the number of its dimensions, if there is only one index."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        return None
    ((d, index),) = given
    layout = index.layout
    if len(layout.sizes) == 1:
        return d, index, 1
    if not layout.is_row_major:
        return None
    return d, View(index.value, Layout((layout.numel,), (1,), layout.offset)), len(layout.sizes)


RULES = {
    aten.index_select.default: _index_select,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.gather.default: _gather,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.scatter_add.default: _scatter_add,
}
