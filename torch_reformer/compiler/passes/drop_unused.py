"""Drop operations that nobody needs. Operations without results stay: they have effects, as assertions do."""

from __future__ import annotations

from ..ir.graph import Graph


def drop_unused(graph: Graph) -> None:
    """Drop operations without effects whose results are not needed."""
    needed = {view.value for view in graph.output_views()}
    kept = []
    for operation in reversed(graph.operations):
        has_effect = operation.writes or operation.is_ordered or not operation.results
        if has_effect or any(result in needed for result in operation.results):
            needed |= {view.value for view in operation.operands}
            kept.append(operation)
    graph.operations = kept[::-1]
