"""What a graph's plan does, a kernel or call a line, with the bytes that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .ir import Call, Graph, Map, Operation, View
from .lower import reads_of, schedule
from .regions import Grouping


@dataclass(frozen=True)
class Line:
    """One kernel or call. operations: what it computes, in order; those in brackets are computed by another line, too.
    read, written: bytes of the tensors, each once."""

    kind: str  # conv, stitch, or an operator's name
    operations: tuple[str, ...]
    read: int
    written: int

    def __str__(self) -> str:
        shown = ", ".join(self.operations) if len(self.operations) < 9 else f"{len(self.operations)} operations"
        return f"{_megabytes(self.read)}{_megabytes(self.written)}  {self.kind}{shown and ': '}{shown}"


@dataclass(frozen=True)
class Report:
    """One graph's plan. alone: the bytes that its operations would move if each were a kernel of its own."""

    lines: tuple[Line, ...]
    alone: int

    @property
    def bytes(self) -> int:
        return sum(line.read + line.written for line in self.lines)

    def __str__(self) -> str:
        head = f"{'MB read':>10}{'written':>10}"
        total = f"{len(self.lines)} kernels and calls move {self.bytes / 1e6:.1f} MB; one by one the operations would "
        return "\n".join([head, *map(str, self.lines), f"{total}move {self.alone / 1e6:.1f}"])


def _megabytes(count: int) -> str:
    return f"{count / 1e6:10.2f}"


def _bytes(views: Iterable[View]) -> int:
    """The elements that are looked at, each view once."""
    found = {(id(view.value), view.layout): view for view in views}
    return sum(view.elements * view.value.dtype.itemsize for view in found.values())


def _name(operation: Operation) -> str:
    if isinstance(operation, Call):
        return operation.operator.name()
    return operation.name if isinstance(operation, Map) else operation.text().split("(")[0]


def report_of(graph: Graph, grouping: Grouping) -> Report:
    order = schedule(grouping)
    needed = {id(view.value) for number in order for view in reads_of(grouping, number)}
    needed |= {id(view.value) for view in graph.output_views()}
    lines = []
    for number in order:
        read = _bytes(reads_of(grouping, number))
        if (operation := grouping.alone.get(number)) is not None:
            written = sum(each.bytes for each in (operation.writes or operation.results))
            lines.append(Line(_name(operation), (), read, written))
            continue
        region = grouping.regions[number]
        results = [each.results[0] for each in region.members]
        written = sum(each.bytes for each in results if id(each) in needed or id(each) in region.into)
        names = [f"[{_name(each)}]" for each in region.recomputed] + [_name(each) for each in region.members]
        if written:
            lines.append(Line("conv" if region.anchor else "stitch", tuple(names), read, written))
    alone = sum(_bytes(each.operands) + sum(result.bytes for result in each.results) for each in graph.operations)
    return Report(tuple(lines), alone)
