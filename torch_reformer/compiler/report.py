"""What a graph's plan does, a kernel or call a line: the bytes that it reads and writes, and how long that should
take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .cost import flops, predicted_us
from .grouping import Grouping
from .ir import Call, Graph, Layout, Map, Operation, View
from .look_ups import look_up_of
from .schedule import needed_in_memory, reads_of, schedule

_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)


@dataclass(frozen=True)
class Line:
    """One kernel or call. operations: what it computes, in order; those in brackets are computed by another line, too;
    of a product of matrices its sizes.
    read, written: bytes of the tensors, each once. us: expected; None where no GPU is known."""

    kind: str  # conv, stitch, or an operator's name
    operations: tuple[str, ...]
    read: int
    written: int
    us: float | None = None

    def __str__(self) -> str:
        shown = ", ".join(self.operations) if len(self.operations) < 9 else f"{len(self.operations)} operations"
        time = "" if self.us is None else f"{self.us:8.1f}"
        return f"{time}{_megabytes(self.read)}{_megabytes(self.written)}  {self.kind}{shown and ': '}{shown}"


@dataclass(frozen=True)
class Report:
    """One graph's plan. alone: a line for each of the graph's operations, as if it were a kernel of its own."""

    lines: tuple[Line, ...]
    alone: tuple[Line, ...]

    @property
    def bytes(self) -> int:
        return sum(line.read + line.written for line in self.lines)

    @property
    def us(self) -> float | None:
        """Expected microseconds, one kernel after the other."""
        return _us(self.lines)

    def __str__(self) -> str:
        head = f"{'us':>8}" * (self.us is not None) + f"{'MB read':>10}{'written':>10}"
        total = f"{_total(self.lines)}; one by one {_total(self.alone)}"
        return "\n".join([head, *map(str, self.lines), total])


def _us(lines: Iterable[Line]) -> float | None:
    times = [line.us for line in lines]
    return None if None in times else sum(times)


def _total(lines: tuple[Line, ...]) -> str:
    text = f"{len(lines)} kernels and calls move {sum(each.read + each.written for each in lines) / 1e6:.1f} MB"
    return text if _us(lines) is None else f"{text} in {_us(lines):.0f} us"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:10.2f}"


def _bytes(views: Iterable[View]) -> int:
    """The elements that are looked at, each view once."""
    found = {(id(view.value), view.layout): view for view in views}
    return sum(view.elements * view.value.dtype.itemsize for view in found.values())


def _not_looked_up(grouping: Grouping, number: int) -> int:
    """Bytes of tables that have more rows than a region or call looks up."""
    region = grouping.regions.get(number)
    found = region.look_ups.values() if region else [look_up_of(grouping.alone[number])]
    read: dict[tuple[int, Layout], int] = {}
    tables = {(id(each.table.value), each.table.layout): each.table for each in found if each}
    for each in filter(None, found):
        key = id(each.table.value), each.table.layout
        read[key] = read.get(key, 0) + each.elements
    return sum(max(0, table.elements - read[key]) * table.value.dtype.itemsize for key, table in tables.items())


def _name(operation: Operation) -> str:
    if isinstance(operation, Call):
        return operation.operator.name()
    return operation.name if isinstance(operation, Map) else operation.text().split("(")[0]


def _of_product(operation: Operation) -> tuple[str, ...]:
    """Lines, elements that are multiplied, and columns, if it is a product of two matrices."""
    if not isinstance(operation, Call) or operation.operator.overloadpacket not in _PRODUCTS:
        return ()
    *_, first, second = (each for each in operation.args if isinstance(each, View))
    return (f"{first.layout.sizes[0]}x{first.layout.sizes[1]}x{second.layout.sizes[1]}",)


def report_of(graph: Graph, grouping: Grouping, architecture: str | None = None) -> Report:
    """architecture: of the GPU that times are expected of (cost.GPUS)."""
    order = schedule(grouping)
    needed = needed_in_memory(grouping, order)

    def line(kind: str, names: Iterable[str], read: int, written: int, anchor: Operation | None) -> Line:
        multiplied = flops(anchor) if anchor else 0
        us = architecture and predicted_us(architecture, read + written, multiplied)
        return Line(kind, tuple(names), read, written, us)

    lines = []
    for number in order:
        read = _bytes(reads_of(grouping, number)) - _not_looked_up(grouping, number)
        if (operation := grouping.alone.get(number)) is not None:
            written = sum(each.bytes for each in (operation.writes or operation.results))
            lines.append(line(_name(operation), _of_product(operation), read, written, operation))
            continue
        region = grouping.regions[number]
        results = [each.results[0] for each in region.members]
        written = sum(each.bytes for each in results if id(each) in needed or id(each) in region.into)
        names = [f"[{_name(each)}]" for each in region.recomputed] + [_name(each) for each in region.members]
        if written:
            lines.append(line("conv" if region.anchor else "stitch", names, read, written, region.anchor))
    alone = [
        line(_name(each), (), _bytes(each.operands), sum(result.bytes for result in each.results), each)
        for each in graph.operations
    ]
    return Report(tuple(lines), tuple(alone))
