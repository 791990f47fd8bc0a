"""Gather columns where gathered rows are only read in the order of columns, as biases of attention by relative
positions are by heads: `index_select` of the transposed view of a table writes that order at once. A cast of all that
is gathered becomes one of the table."""

from __future__ import annotations

import torch

from ...runtime.sizes import estimate
from ..ir.gather import Gather, gather_of
from ..ir.graph import Call, Graph, Map, Operation, Typed, Value, View, is_cast
from ..ir.layout import Layout

DEVICES = {"cuda"}
_MOST_BYTES = 1 << 20  # of a table, whose elements are read one by one and more than once
_contiguous, _index_select = torch.ops.reformer._contiguous.default, torch.ops.aten.index_select.default
Readers = dict[Value, list[Operation | None]]


def gather_columns(graph: Graph) -> None:
    """Replace gathers of rows, and copies of these in the order of columns, by gathers of columns."""
    readers = graph.readers()
    instead: dict[Value, View] = {}
    before, graph.operations = graph.operations, []
    for operation in before:
        graph.operations.append(operation)
        gather = gather_of(operation)
        if gather is None or operation.results[0].device.type not in DEVICES:
            continue
        if not (copies := _copies(operation.results[0], gather, readers)):
            continue
        table, dtype = gather.table, _cast_to(copies, readers)
        if dtype is not None and estimate(table.elements) < estimate(gather.index.layout.numel * gather.columns):
            packed = Layout.row_major(table.layout.sizes)
            cast = Map([table], "_to_copy", lambda x: x)
            (value,) = graph.add(cast, [Typed(packed, dtype, table.value.device)])
            table = View(value, packed)
            copies = [reader for copy in copies for reader in readers[copy.results[0]]]
        index = View(gather.index.value, Layout((gather.index.layout.numel,), (1,), gather.index.layout.offset))
        columns = Call(_index_select, (table.transposed(), 1, index), {})
        layout = Layout.row_major((gather.columns, index.layout.numel))
        (result,) = graph.add(columns, [Typed(layout, table.value.dtype, table.value.device)])
        instead |= {copy.results[0]: View(result, copy.results[0].layout) for copy in copies}
    graph.substitute(instead)


def _copies(gathered: Value, gather: Gather, readers: Readers) -> list[Call]:
    """The copies in the order of columns that are all that reads gathered rows; none if something else reads them."""
    found = readers.get(gathered, [])
    is_small = estimate(gather.table.elements * gathered.dtype.itemsize) <= _MOST_BYTES
    if not is_small or not gather.index.layout.is_row_major:
        return []
    return found if all(_is_of_columns(reader, gather) for reader in found) else []


def _is_of_columns(reader: Operation | None, gather: Gather) -> bool:
    """True for a copy whose result has all rows of one column after another."""
    if not isinstance(reader, Call) or reader.operator is not _contiguous or not reader.args[0].is_full:
        return False
    (count, *sizes), (stride, *strides) = reader.args[0].layout.sizes, reader.args[0].layout.strides
    rows = Layout.row_major(tuple(sizes)).strides
    return (count, stride) == (gather.columns, 1) and strides == [gather.columns * each for each in rows]


def _cast_to(copies: list[Call], readers: Readers) -> torch.dtype | None:
    """The data type to which all that reads the copies casts them, in their order; None if there is none."""
    casts = [reader for copy in copies for reader in readers.get(copy.results[0], [None])]
    if not all(is_cast(cast) and cast.inputs[0].layout.matches(cast.results[0].layout) for cast in casts):
        return None
    types = {cast.results[0].dtype for cast in casts}
    is_whole = all(cast.inputs[0].is_full and cast.inputs[0].layout.is_row_major for cast in casts)
    return types.pop() if len(types) == 1 and is_whole else None
