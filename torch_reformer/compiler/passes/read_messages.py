"""Fuse gathers into segment sums: messages of graph networks are added up without being written to memory.

A segment sum reads the rows of a table in place, by their numbers in the order of the sum, and multiplies each by its
factor. The numbers and factors in that order are little memory compared with the rows, and sums over the same edges
share them.
"""

from __future__ import annotations

import torch

from ..ir.gather import Gather, gather_of
from ..ir.graph import Call, Graph, Map, Operation, Typed, View
from ..ir.layout import Layout
from .drop_unused import drop_unused

aten, reformer = torch.ops.aten, torch.ops.reformer
_numbers, _sum = reformer._row_numbers.default, reformer._segment_sum.default


def read_messages(graph: Graph) -> None:
    """Make segment sums read the tables and factors that their sources are computed from."""
    fusion = _Fusion(graph)
    operations, graph.operations = graph.operations, []
    for operation in operations:
        if isinstance(operation, Call) and operation.operator is _sum:
            fusion.change(operation)
        graph.operations.append(operation)
    drop_unused(graph)


class _Fusion:
    """Changes of one graph's segment sums. calls: results of the calls that they share."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.places = {operation: place for place, operation in enumerate(graph.operations)}
        self.written = {value: place for operation, place in self.places.items() for value in operation.writes}
        self.calls: dict[tuple, View] = {}  # an operator and its arguments -> the result

    def change(self, operation: Call) -> None:
        """Fuse a segment sum with the gather and the multiplication that compute its source, if it can be."""
        source, order, begins, base, factors = operation.args
        sizes = source.layout.sizes
        if (product := _product(source)) is not None:
            source, factor = product
        gather = self._gather(source, sizes)
        if product is not None:
            is_computed = gather is None and isinstance(source.value.maker, Map)  # one kernel computes the product, too
            if is_computed or self._changes(operation.args[0].value.maker, factor, source):
                return
            factors = self._in_order(factor, order)
        if gather is not None:
            source, order = gather.table, self._in_order(self._row_numbers(gather), order)
        operation.args = source, order, begins, base, factors

    def _changes(self, reader: Operation, *views: View) -> bool:
        """True if one of the views is written to after the operation has read it."""
        return any(self.written.get(view.value, -1) > self.places[reader] for view in views)

    def _gather(self, source: View, sizes: tuple[int, ...]) -> Gather | None:
        """The gather that computes all rows of a source of these sizes, if it could be done later, too; else None."""
        gather = gather_of(source.value.maker) if _is_all(source) else None
        if gather is None or self._changes(source.value.maker, gather.table, gather.index):
            return None
        index = gather.index.layout
        return gather if sizes == (index.numel, gather.columns) and index.is_row_major else None

    def _row_numbers(self, gather: Gather) -> View:
        """The index as a vector of int32, which the operator has checked."""
        layout, rows, maker = gather.index.layout, gather.table.layout.sizes[0], gather.index.value.maker
        index = View(gather.index.value, Layout((layout.numel,), (1,), layout.offset))
        if isinstance(maker, Call) and maker.operator is _numbers and maker.args[1] * _tables(maker) == rows:
            return index
        return self._call(_numbers, (index, rows, "index_select"), torch.int32)

    def _in_order(self, values: View, order: View) -> View:
        """Elements of a vector in the order of the segment sum."""
        return self._call(aten.index_select.default, (values, 0, order), values.value.dtype)

    def _call(self, operator, args: tuple, dtype: torch.dtype) -> View:
        """Result of a call, with the sizes of the last view among the arguments; equal calls share it."""
        key = operator, *((arg.value, arg.layout) if isinstance(arg, View) else arg for arg in args)
        if key not in self.calls:
            last = [arg for arg in args if isinstance(arg, View)][-1]
            typed = Typed(Layout(last.layout.sizes, (1,)), dtype, last.value.device)
            (value,) = self.graph.add(Call(operator, args, {}), [typed])
            self.calls[key] = View(value, value.layout)
        return self.calls[key]


def _tables(numbers: Call) -> int:
    """Number of the tables whose rows are numbered, each with so many rows as the operator is told."""
    return numbers.args[3] if len(numbers.args) > 3 else 1


def _product(source: View) -> tuple[View, View] | None:
    """The rows, in the source's layout, and the vector of factors, if the source is their product; else None."""
    maker, layout = source.value.maker, source.layout
    if not _is_all(source) or not isinstance(maker, Map) or maker.name != "mul" or len(maker.inputs) != 2:
        return None
    for rows, factor in (maker.inputs, maker.inputs[::-1]):
        sizes, strides = factor.layout.sizes, factor.layout.strides
        is_of_rows = all(size == 1 or not stride for size, stride in zip(sizes[1:], strides[1:], strict=True))
        types = {value.dtype for value in (source.value, rows.value, factor.value)}
        if sizes[:1] == layout.sizes[:1] and is_of_rows and len(types) == 1 and _is_all(rows):
            return View(rows.value, layout), View(factor.value, Layout(sizes[:1], strides[:1], factor.layout.offset))
    return None


def _is_all(view: View) -> bool:
    """True if the view is all of its value, and both are row-major."""
    return view.is_full and view.layout.is_row_major and view.value.layout.is_row_major
