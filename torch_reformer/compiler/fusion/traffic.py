"""Bytes that kernels and calls read and write."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.gather import look_up_of
from ..ir.graph import Value, View
from ..ir.layout import Layout
from .greedy import Grouping
from .schedule import needed_in_memory, reads_of


def bytes_of(views: Iterable[View]) -> int:
    """The elements that are looked at, each view once."""
    found = {(view.value, view.layout): view for view in views}
    return sum(view.elements * view.value.dtype.itemsize for view in found.values())


def moved(grouping: Grouping) -> dict[int, tuple[int, int]]:
    """What each region and call reads, and what it writes."""
    read = {number: reads_of(grouping, number) for number in (*grouping.regions, *grouping.alone)}
    needed = needed_in_memory(grouping, read)
    return {
        number: (bytes_of(views) - _not_looked_up(grouping, number), _written(grouping, number, needed))
        for number, views in read.items()
    }


def _written(grouping: Grouping, number: int, needed: set[Value]) -> int:
    if (operation := grouping.alone.get(number)) is not None:
        return sum(each.bytes for each in (operation.writes or operation.results))
    region = grouping.regions[number]
    results = [each.results[0] for each in region.members]
    return sum(each.bytes for each in results if each in needed or each in region.into)


def _not_looked_up(grouping: Grouping, number: int) -> int:
    """Bytes of tables that have more rows than a region or call looks up."""
    region = grouping.regions.get(number)
    found = region.look_ups.values() if region else [look_up_of(grouping.alone[number])]
    read: dict[tuple[Value, Layout], int] = {}
    tables = {(each.table.value, each.table.layout): each.table for each in found if each}
    for each in filter(None, found):
        key = each.table.value, each.table.layout
        read[key] = read.get(key, 0) + each.elements
    return sum(max(0, table.elements - read[key]) * table.value.dtype.itemsize for key, table in tables.items())
