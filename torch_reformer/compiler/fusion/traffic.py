"""Memory traffic: bytes that groups and extern calls read and write."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.access import Access
from ..ir.concats import concatenated, is_concat
from ..ir.custom_ops import embedding_grad
from ..ir.gather import gather_of
from ..ir.graph import Call, Casts, Operation, Value, View
from ..ir.layout import Layout
from .greedy import Fusion
from .schedule import needed_in_memory, reads_of


def bytes_of(views: Iterable[View]) -> int:
    """Bytes of the views' elements, equal views counted once."""
    distinct = {(view.value, view.layout): view for view in views}
    return sum(view.elements * view.value.dtype.itemsize for view in distinct.values())


def traffic(fusion: Fusion) -> dict[int, tuple[int, int]]:
    """Bytes that each group and call reads, and bytes that it writes."""
    read = {number: _read(fusion, number) for number in (*fusion.groups, *fusion.extern_calls)}
    needed = needed_in_memory(fusion, read)
    found = {}
    for number, views in read.items():
        kept = _kept_rows(fusion.extern_calls.get(number))
        left_out = _not_gathered(fusion, number) + _not_touched(fusion, number) + kept
        found[number] = bytes_of(views) - left_out, _written(fusion, number, needed) - kept
    return found


def _read(fusion: Fusion, number: int) -> list[View]:
    call = fusion.extern_calls.get(number)
    return concatenated(call) if is_concat(call) else reads_of(fusion, number)


def _written(fusion: Fusion, number: int, needed: set[Value]) -> int:
    if (operation := fusion.extern_calls.get(number)) is not None:
        if is_concat(operation):
            return sum(bytes_of([view]) for view in concatenated(operation))
        results = operation.results
        if isinstance(operation, Casts):
            results = results[: len(operation.inputs)]  # the memory of which they are parts is written once
        return sum(value.bytes for value in (operation.writes or results))
    group = fusion.groups[number]
    results = [operation.results[0] for operation in group.members]
    return sum(result.bytes for result in results if result in needed or result in group.destinations)


def _kept_rows(call: Operation | None) -> int:
    """Bytes of a sum's rows that stay as they are where the gradient of looked-up rows is added to the sum in place. A
    sum that the plan does not make is copied as a whole."""
    if not isinstance(call, Call) or call.operator is not embedding_grad or len(call.args) < 6:
        return 0
    grad, sum = call.args[0], call.args[5]
    return max(0, sum.elements - grad.layout.numel) * sum.value.dtype.itemsize if sum.value.maker else 0


def _not_touched(fusion: Fusion, number: int) -> int:
    """Bytes of views that a group reads only through maps, which leave them out."""
    group = fusion.groups.get(number)
    touched: dict[tuple[Value, Layout], int] = {}
    views: dict[tuple[Value, Layout], View] = {}
    for (value, layout, index_map), view in group.inputs.items() if group else ():
        elements = index_map.elements if isinstance(index_map, Access) else view.elements
        touched[value, layout] = touched.get((value, layout), 0) + elements
        views[value, layout] = view
    return sum(max(0, view.elements - touched[key]) * view.value.dtype.itemsize for key, view in views.items())


def _not_gathered(fusion: Fusion, number: int) -> int:
    """Bytes of gathered tables that a group or call does not read, as it reads fewer rows than they have."""
    group = fusion.groups.get(number)
    gathers = group.gathers.values() if group else filter(None, [gather_of(fusion.extern_calls[number])])
    read: dict[tuple[Value, Layout], int] = {}
    tables: dict[tuple[Value, Layout], View] = {}
    for gather in gathers:
        key = gather.table.value, gather.table.layout
        tables[key] = gather.table
        read[key] = read.get(key, 0) + gather.elements
    return sum(max(0, table.elements - read[key]) * table.value.dtype.itemsize for key, table in tables.items())
