"""A cast parameter to which rows of zeros are added (joint_graph/pad_mm.py) is written by the operator that casts all of them to
memory that has these rows."""

from __future__ import annotations

from ..ir.fx_utils import constant_pad
from ..ir.graph import Call, Casts, Graph, Value
from ..lowering.constant_pad import rows_below


def pad_casts(graph: Graph) -> None:
    uses: dict[Value, int] = {}
    for view in (*(view for each in graph.operations for view in each.operands), *graph.output_views()):
        uses[view.value] = uses.get(view.value, 0) + 1
    for operation in list(graph.operations):
        if not isinstance(operation, Call) or operation.operator is not constant_pad or not rows_below(operation):
            continue
        (padded,), source = operation.results, operation.args[0]
        casts = source.value.maker
        if not isinstance(casts, Casts) or not source.is_full or uses[source.value] > 1:
            continue
        if source.layout.matches(source.value.layout) and padded.layout.is_dense:
            casts.results[casts.results.index(source.value)] = padded
            padded.maker = casts
            graph.operations.remove(operation)
