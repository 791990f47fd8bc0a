"""What nodes of a graph send along its edges is added up without being written: a sum of segments reads the rows of a
table where they are, by the table's numbers in the order in which it adds up, and multiplies each by its own factor.
The numbers and the factors in that order are few beside the rows, and sums over the same edges share them."""

from __future__ import annotations

import torch

from ..ir.gather import Gather, gather_of
from ..ir.graph import Call, Graph, Map, Operation, Typed, View
from ..ir.layout import Layout
from .drop_unused import drop_unused

aten, reformer = torch.ops.aten, torch.ops.reformer
_numbers, _sum = reformer._row_numbers.default, reformer._segment_sum.default


def read_messages(graph: Graph) -> None:
    fusion = _Fusion(graph)
    operations, graph.operations = graph.operations, []
    for operation in operations:
        if isinstance(operation, Call) and operation.operator is _sum:
            fusion.change(operation)
        graph.operations.append(operation)
    drop_unused(graph)


class _Fusion:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.places = {each: place for place, each in enumerate(graph.operations)}
        self.written = {value: place for place, each in enumerate(graph.operations) for value in each.writes}
        self.made: dict[tuple, View] = {}  # of an operator and its arguments

    def change(self, operation: Call) -> None:
        source, order, begins, base, factors = operation.args
        sizes = source.layout.sizes
        if (product := _product(source)) is not None:
            source, factor = product
        found = self._gather(source, sizes)
        if product is not None:
            is_computed = found is None and isinstance(source.value.maker, Map)  # and the product with it
            if is_computed or self._changes(operation.args[0].value.maker, factor, source):
                return
            factors = self._in_order(factor, order)
        if found is not None:
            source, order = found.table, self._in_order(self._row_numbers(found), order)
        operation.args = source, order, begins, base, factors

    def _changes(self, reader: Operation, *views: View) -> bool:
        """Whether something is written to one of these after the operation has read it."""
        return any(self.written.get(view.value, -1) > self.places[reader] for view in views)

    def _gather(self, source: View, sizes: tuple[int, ...]) -> Gather | None:
        """That which gives all rows of these sizes, and can be done later as well."""
        found = gather_of(source.value.maker) if _is_all(source) else None
        if found is None or self._changes(source.value.maker, found.table, found.index):
            return None
        return found if sizes == (found.index.layout.numel, found.columns) and found.index.layout.is_row_major else None

    def _row_numbers(self, found: Gather) -> View:
        """The index, checked and narrow."""
        own, rows, maker = found.index.layout, found.table.layout.sizes[0], found.index.value.maker
        index = View(found.index.value, Layout((own.numel,), (1,), own.offset))
        if isinstance(maker, Call) and maker.operator is _numbers and maker.args[1] == rows:
            return index
        return self._call(_numbers, (index, rows, "index_select"), torch.int32)

    def _in_order(self, values: View, order: View) -> View:
        return self._call(aten.index_select.default, (values, 0, order), values.value.dtype)

    def _call(self, operator, args: tuple, dtype: torch.dtype) -> View:
        """What the operator gives: as many elements as the last view among the arguments has."""
        key = operator, *((each.value, each.layout) if isinstance(each, View) else each for each in args)
        if key not in self.made:
            last = [each for each in args if isinstance(each, View)][-1]
            typed = Typed(Layout(last.layout.sizes, (1,)), dtype, last.value.device)
            (value,) = self.graph.add(Call(operator, args, {}), [typed])
            self.made[key] = View(value, value.layout)
        return self.made[key]


def _product(source: View) -> tuple[View, View] | None:
    """The rows, as the source has them, and the vector of factors, if it is nothing but their products."""
    maker, own = source.value.maker, source.layout
    if not _is_all(source) or not isinstance(maker, Map) or maker.name != "mul" or len(maker.inputs) != 2:
        return None
    for rows, factor in (maker.inputs, maker.inputs[::-1]):
        sizes, strides = factor.layout.sizes, factor.layout.strides
        is_of_rows = all(size == 1 or not stride for size, stride in zip(sizes[1:], strides[1:], strict=True))
        types = {each.dtype for each in (source.value, rows.value, factor.value)}
        if sizes[:1] == own.sizes[:1] and is_of_rows and len(types) == 1 and _is_all(rows):
            return View(rows.value, own), View(factor.value, Layout(sizes[:1], strides[:1], factor.layout.offset))
    return None


def _is_all(view: View) -> bool:
    """Whether it is all of its value, both in the order of their dimensions."""
    return view.is_full and view.layout.is_row_major and view.value.layout.is_row_major
