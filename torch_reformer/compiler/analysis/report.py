"""Reports of plans: a line for each kernel or call, with the bytes that it reads and writes and its expected time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...runtime.sizes import about_cost, estimate
from ..fusion.apart import apart
from ..fusion.greedy import Fusion
from ..fusion.group import FusionGroup
from ..fusion.ilp.planner import IlpSummary
from ..fusion.schedule import is_after, schedule
from ..fusion.titles import kind_and_operations, name, product_sizes, title
from ..fusion.traffic import bytes_of, traffic
from ..ir.access import Access
from ..ir.attention_call import attention_us
from ..ir.custom_ops import PART, PARTS
from ..ir.device_model import OTHERS, flops, multiplied_type, predicted_us, roof_us
from ..ir.epilogue_cost import epilogue_us, slots_of
from ..ir.fx_utils import bytes_of as node_bytes
from ..ir.fx_utils import is_higher_order, is_operator
from ..ir.gather import gather_of
from ..ir.graph import Graph, Operation
from ..ir.map_cost import map_us
from ..ir.product import Product
from .kernel_kinds import kind_of


@dataclass(frozen=True)
class Line:
    """One kernel or call.

    Attributes:
        kind: conv, stitch, or an operator's name.
        cost: the kind of kernel by which its time is predicted (analysis/kernel_kinds.py).
        operations: the operations that it computes, in order, those in brackets also by another kernel; or the sizes of
            a matrix product.
        read, written: bytes of the tensors, each counted once.
        flops: those of the anchor or the call.
        us: expected microseconds; None if no GPU is known.
        measured_us: microseconds on this machine; None if the plan was not measured.
        roof_us: microseconds that its bytes or flops take by the GPU's data sheet; None if no GPU is known.
        part: of a whole training step: forward, backward or update; empty in other plans.
        apart: which tensor it reads of another line, and why the two are not one kernel; None unless it was asked for.
    """

    kind: str
    cost: str
    operations: tuple[str, ...]
    read: int
    written: int
    flops: int = 0
    us: float | None = None
    measured_us: float | None = None
    roof_us: float | None = None
    apart: str | None = None
    part: str = ""

    @property
    def title(self) -> str:
        part = f"{self.part}, " if self.part else ""
        return part + title(self.kind, self.operations)

    def __str__(self) -> str:
        time = "".join("" if us is None else f"{us:8.1f}" for us in (self.us, self.measured_us))
        return f"{time}{_megabytes(self.read)}{_megabytes(self.written)}  {self.title}"


@dataclass(frozen=True)
class Report:
    """The plan of one graph.

    Attributes:
        lines: the plan's kernels and calls, in the order of their execution.
        unfused: a line for each operation of the graph, as if each had its own kernel.
        planned: the outcome of the integer program; None if the groups are greedy.
        broken: where and why Dynamo ended the graph before its function's end, and what that costs; None if it did not.
        only_for: why the plan is for one tuple of sizes only, if other plans of the graph may be for many; else None.
    """

    lines: tuple[Line, ...]
    unfused: tuple[Line, ...]
    planned: IlpSummary | None = None
    broken: str | None = None
    only_for: str | None = None

    @property
    def bytes(self) -> int:
        return sum(line.read + line.written for line in self.lines)

    @property
    def us(self) -> float | None:
        """Expected microseconds of all kernels, one after the other."""
        return _sum(line.us for line in self.lines)

    @property
    def measured_us(self) -> float | None:
        return _sum(line.measured_us for line in self.lines) if self.lines else None

    def __str__(self) -> str:
        heads = [f"{name:>8}" for name, us in (("us", self.us), ("measured", self.measured_us)) if us is not None]
        head = f"{''.join(heads)}{'MB read':>10}{'written':>10}"
        measured = "" if self.measured_us is None else f"; measured {self.measured_us:.0f} us"
        total = f"{_total(self.lines)}{measured}; one by one {_total(self.unfused)}"
        planned = [str(self.planned)] if self.planned else []
        broken = [f"broken off: {self.broken}"] if self.broken else []
        only_for = [f"for these sizes only: {self.only_for}"] if self.only_for else []
        return "\n".join([head, *map(str, self.lines), total, *planned, *broken, *only_for])


def _sum(times: Iterable[float | None]) -> float | None:
    times = list(times)
    return None if None in times else sum(times)


def _total(lines: tuple[Line, ...]) -> str:
    text = f"{len(lines)} kernels and calls move {sum(line.read + line.written for line in lines) / 1e6:.1f} MB"
    us = _sum(line.us for line in lines)
    return text if us is None else f"{text} in {us:.0f} us"


def _us_with_program(gpu: str, product: Product, group: FusionGroup, bytes: int) -> float:
    """Expected microseconds of a product with the program that the group has."""
    result = product.results[0]
    alone = bytes_of(product.operands) + result.bytes
    plain = predicted_us(gpu, kind_of(product), alone, flops(product))
    full = [view for view in group.full_inputs() if view.value not in group.makes]
    slots = slots_of(group.operations, len(full), len(group.live_results))
    is_call = product.is_call(group.operations)
    return plain if is_call else plain + epilogue_us(gpu, group.numel, flops(product), (alone, bytes), slots)


def _us_of_maps(group: FusionGroup) -> float:
    """Expected microseconds that a stitched kernel takes to read through maps of axes."""
    accesses = [index_map for _, _, index_map in group.inputs if isinstance(index_map, Access)]
    return sum(map_us(access, group.space, estimate(group.numel)) for access in accesses)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:10.2f}"


def _part_of(nodes: Iterable[Node]) -> str:
    """The last part of a training step that has one of the nodes."""
    parts = {node.meta.get(PART) for node in nodes}
    return next((part for part in reversed(PARTS) if part in parts), "")


def _apart(fusion: Fusion, number: int, places: Mapping[int, int]) -> str | None:
    found = apart(fusion, number)
    if found is None or found.maker not in places:
        return None
    return f"reads {estimate(found.bytes) / 1e6:.2f} MB of {places[found.maker] + 1}: it {found.reason}"


@about_cost(decides=False)
def report_of(
    graph: Graph,
    fusion: Fusion,
    gpu: str | None = None,
    planned: IlpSummary | None = None,
    measured: Mapping[int, float] | None = None,
    explains: bool = False,
) -> Report:
    """Report of a graph's fusion.

    Args:
        gpu: the GPU whose times are predicted, a key of device_model.GPUS; None predicts none.
        planned: the outcome of the integer program.
        measured: microseconds of each fusion group and extern call, by their numbers.
        explains: say of each line why it is apart from those whose results it reads.
    """
    order = schedule(fusion)
    bytes_moved = traffic(fusion)

    def line(
        kind: str,
        names: Iterable[str],
        read: int,
        written: int,
        group: FusionGroup | Operation,
        measured_us: float | None,
    ) -> Line:
        read, written = estimate(read), estimate(written)
        anchor = group.anchor if isinstance(group, FusionGroup) else group
        multiplied = estimate(flops(anchor)) if anchor else 0
        cost = kind_of(group)
        dtype = multiplied_type(anchor) if multiplied else torch.bfloat16
        us = gpu and predicted_us(gpu, cost, read + written, multiplied, dtype)
        if us and isinstance(group, FusionGroup) and group.anchor is None:
            us += _us_of_maps(group)
        if us and isinstance(anchor, Product) and isinstance(group, FusionGroup):
            us = _us_with_program(gpu, anchor, group, read + written)
        if us and anchor is group and (gather := gather_of(anchor)) is not None:
            us = max(us, estimate(gather.least_us))
        if us and anchor is group and (of_attention := attention_us(anchor, gpu)) is not None:
            us = max(of_attention, predicted_us(gpu, cost, 0, 0))  # some fits have no start
        roof = gpu and roof_us(gpu, cost, read + written, multiplied, dtype)
        operations = group.operations if isinstance(group, FusionGroup) else [group]
        part = _part_of(operation.node for operation in operations if operation.node)
        return Line(kind, cost, tuple(names), read, written, multiplied, us, measured_us, roof, part=part)

    lines, places = [], {}
    for number in order:
        read, written = bytes_moved[number]
        measured_us = (measured or {}).get(number)
        if (operation := fusion.extern_calls.get(number)) is not None:
            if is_after(operation):
                continue
            kind, names = kind_and_operations(operation)
            names = [*product_sizes(operation), *names]
            places[number] = len(lines)
            lines.append(line(kind, names, read, written, operation, measured_us))
            continue
        group = fusion.groups[number]
        if estimate(written):
            kind, names = kind_and_operations(group)
            names = [*product_sizes(group.anchor), *names] if group.anchor else names
            places[number] = len(lines)
            lines.append(line(kind, names, read, written, group, measured_us))
    if explains:
        for number, place in places.items():
            lines[place] = replace(lines[place], apart=_apart(fusion, number, places))
    unfused = [
        line(name(each), (), bytes_of(each.operands), sum(result.bytes for result in each.results), each, None)
        for each in graph.operations
        if not is_after(each)
    ]
    return Report(tuple(lines), tuple(unfused), planned)


def report_of_calls(
    nodes: Iterable[Node],
    gpu: str | None = None,
    measured: Mapping[str, float] | None = None,
    reason: Callable[[Node], str | None] = lambda node: None,
) -> Report:
    """Report of operators that PyTorch runs outside of plans. Tensors whose sizes depend on values count no bytes.

    Args:
        gpu: as for report_of.
        measured: microseconds of nodes, by their names.
        reason: says why no plan computes a node.
    """

    def line(node: Node) -> Line:
        read, written = sum(map(node_bytes, node.all_input_nodes)), node_bytes(node)
        us = gpu and predicted_us(gpu, OTHERS, read + written, 0)
        name = node.target.name() if is_operator(node) else node.target.__name__
        roof = gpu and roof_us(gpu, OTHERS, read + written, 0)
        us_measured = (measured or {}).get(node.name)
        return Line(name, OTHERS, (), read, written, 0, us, us_measured, roof, reason(node), _part_of([node]))

    lines = tuple(line(node) for node in nodes if is_operator(node) or is_higher_order(node))
    return Report(lines, lines)


def joined(reports: Iterable[Report]) -> Report:
    """Report of subgraphs that run one after the other."""
    reports = list(reports)
    if len(reports) == 1:
        return reports[0]
    lines = tuple(line for report in reports for line in report.lines)
    return Report(lines, tuple(line for report in reports for line in report.unfused))
