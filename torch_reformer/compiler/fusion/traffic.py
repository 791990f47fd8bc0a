"""Bytes that kernels and calls read and write."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.gather import gather_of
from ..ir.graph import Value, View
from ..ir.layout import Layout
from .greedy import Fusion
from .schedule import needed_in_memory, reads_of


def bytes_of(views: Iterable[View]) -> int:
    """The elements that are looked at, each view once."""
    found = {(view.value, view.layout): view for view in views}
    return sum(view.elements * view.value.dtype.itemsize for view in found.values())


def traffic(fusion: Fusion) -> dict[int, tuple[int, int]]:
    """What each group and call reads, and what it writes."""
    read = {number: reads_of(fusion, number) for number in (*fusion.groups, *fusion.extern_calls)}
    needed = needed_in_memory(fusion, read)
    return {
        number: (bytes_of(views) - _not_gathered(fusion, number), _written(fusion, number, needed))
        for number, views in read.items()
    }


def _written(fusion: Fusion, number: int, needed: set[Value]) -> int:
    if (operation := fusion.extern_calls.get(number)) is not None:
        return sum(each.bytes for each in (operation.writes or operation.results))
    group = fusion.groups[number]
    results = [each.results[0] for each in group.members]
    return sum(each.bytes for each in results if each in needed or each in group.into)


def _not_gathered(fusion: Fusion, number: int) -> int:
    """Bytes of tables that have more rows than a group or call looks up."""
    group = fusion.groups.get(number)
    found = group.gathers.values() if group else [gather_of(fusion.extern_calls[number])]
    read: dict[tuple[Value, Layout], int] = {}
    tables = {(each.table.value, each.table.layout): each.table for each in found if each}
    for each in filter(None, found):
        key = each.table.value, each.table.layout
        read[key] = read.get(key, 0) + each.elements
    return sum(max(0, table.elements - read[key]) * table.value.dtype.itemsize for key, table in tables.items())
