"""Gather many narrow rows by programs also where the rows are needed in memory: PyTorch's kernel starts a block for
each row (ir/gather.py). The program is a copy of what is gathered, which reads the table in place
(fusion/fuse_gather.py)."""

from __future__ import annotations

from ...runtime.sizes import estimate
from ..ir.gather import gather_of
from ..ir.graph import Graph, Map, Operation, Typed, Value, View, substituted

DEVICES = {"cuda"}
_LEAST_US, _MOST_BYTES = 4.0, 256  # of a call, and of a row: longer ones take as long to copy


def gather_by_programs(graph: Graph) -> None:
    """Let everything that reads a gather's rows read a copy of them."""
    readers = graph.readers()
    instead: dict[Value, View] = {}
    copies: set[Operation] = set()
    before, graph.operations = graph.operations, []
    for operation in before:
        graph.operations.append(operation)
        gather = gather_of(operation)
        if gather is None or operation.results[0].device.type not in DEVICES:
            continue
        if estimate(gather.least_us) < _LEAST_US:
            continue
        (rows,) = operation.results
        is_narrow = gather.columns * rows.dtype.itemsize <= _MOST_BYTES and rows.layout.is_row_major
        if is_narrow and not all(isinstance(reader, Map) for reader in readers.get(rows, [])):
            (copy,) = graph.add(
                Map([View(rows, rows.layout)], "clone", lambda x: x), [Typed(rows.layout, rows.dtype, rows.device)]
            )
            instead[rows] = View(copy, copy.layout)
            copies.add(copy.maker)
    for operation in graph.operations:
        if operation not in copies:
            operation.change_operands(lambda view: substituted(view, instead))
    graph.outputs = [substituted(out, instead) if isinstance(out, View) else out for out in graph.outputs]
