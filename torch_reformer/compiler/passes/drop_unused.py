"""What nobody needs is not computed. What gives nothing is there for its effect, an assertion for one."""

from __future__ import annotations

from ..ir.graph import Graph


def drop_unused(graph: Graph) -> None:
    needed = {view.value for view in graph.output_views()}
    left = []
    for operation in reversed(graph.operations):
        has_effect = operation.writes or operation.is_random or not operation.results
        if has_effect or any(each in needed for each in operation.results):
            needed |= {view.value for view in operation.operands}
            left.append(operation)
    graph.operations = left[::-1]
