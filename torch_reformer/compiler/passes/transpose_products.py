"""Compute the transpose of a product where only that is read: (a b)' = b' a'. Libraries read operands in either order
of memory, so it costs nothing. Programs then read the result in place, as in the gradient of keys, which is
concatenated with those of queries and values; and copies of it are not needed."""

from __future__ import annotations

import functools

import torch

from ..ir.graph import Call, Graph, Map, Operation, Random, Value, View
from ..ir.layout import Layout

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.bmm.default)
_contiguous = torch.ops.reformer._contiguous.default
_CALLS = (aten.cat.default, _contiguous)  # that gain by it


def transpose_products(graph: Graph) -> None:
    """Swap the operands of matrix products whose results are only read with rows and columns swapped."""
    readers = graph.readers()
    instead: dict[Value, View] = {}  # a copy's result -> the product
    for operation in graph.operations:
        if not isinstance(operation, Call) or operation.operator not in PRODUCTS:
            continue
        (value,) = operation.results
        is_matrix = value.layout.is_row_major and value.layout.numel > 0
        if value.memory is not None or not is_matrix or not readers.get(value):
            continue
        if all(_reads_transpose(reader, value) for reader in readers[value]):
            before = value.layout
            *batch, rows, columns = before.sizes
            value.layout = Layout.row_major((*batch, columns, rows))
            operation.args = tuple(_swapped(operand) for operand in reversed(operation.args))
            for reader in dict.fromkeys(readers[value]):
                reader.change_operands(functools.partial(_of_transpose, value, before))
                if isinstance(reader, Call) and reader.operator is _contiguous and _is_whole(*reader.operands):
                    (result,) = reader.results
                    instead[result] = View(value, result.layout)
    graph.substitute(instead)


def _reads_transpose(reader: Operation | None, value: Value) -> bool:
    """True for an element-wise operation, concatenation or copy in which rows of the product are adjacent, not
    columns."""
    is_call = isinstance(reader, Call) and reader.operator in _CALLS
    if not is_call and (not isinstance(reader, Map) or isinstance(reader, Random)):
        return False
    if not reader.results[0].layout.is_row_major:
        return False
    for view in reader.operands:
        if view.value is value:
            axes = zip(view.layout.sizes, view.layout.strides, strict=True)
            strides = [stride for size, stride in axes if size > 1]
            if not strides or strides[-1] != value.layout.sizes[-1] or _transposed(view.layout, value.layout) is None:
                return False
    return True


def _is_whole(view: View) -> bool:
    """True if the view is its value, in the order of memory."""
    layout, whole = view.layout, view.value.layout
    return layout.is_row_major and layout.numel == whole.numel and layout.offset == whole.offset


def _of_transpose(value: Value, before: Layout, view: View) -> View:
    """The view with the same elements of the product, which lies in memory as its transpose now."""
    return View(value, _transposed(view.layout, before)) if view.value is value else view


def _transposed(layout: Layout, product: Layout) -> Layout | None:
    """Layout of these elements of a row-major product [.., rows, columns] in its transpose; None if a dimension runs
    through rows and columns."""
    *_, rows, columns = product.sizes
    whole, strides = rows * columns, []
    last_row = last_column = 0
    for size, stride in zip(layout.sizes, layout.strides, strict=True):
        if size == 1 or stride % whole == 0:
            strides.append(stride)
        elif stride < columns:
            strides.append(stride * rows)
            last_column += (size - 1) * stride
        elif stride % columns == 0:
            strides.append(stride // columns)
            last_row += (size - 1) * stride // columns
        else:
            return None
    if last_row >= rows or last_column >= columns or layout.offset % whole:
        return None
    return Layout(layout.sizes, tuple(strides), layout.offset)


def _swapped(operand: View) -> View:
    """The operand with rows and columns swapped."""
    layout = operand.layout
    *sizes, rows, columns = layout.sizes
    *strides, of_rows, of_columns = layout.strides
    return View(operand.value, Layout((*sizes, columns, rows), (*strides, of_columns, of_rows), layout.offset))
