"""Let the operator that casts all parameters write some of them to memory that has rows of zeros behind them.

joint_graph/pad_mm.py appends such rows to casts of parameters.
"""

from __future__ import annotations

from ..ir.fx_utils import constant_pad
from ..ir.graph import Call, Casts, Graph


def pad_casts(graph: Graph) -> None:
    """Drop paddings of results of Casts that nothing else reads, and make the padded tensors the results."""
    uses = graph.uses()
    for operation in list(graph.operations):
        if not isinstance(operation, Call) or operation.operator is not constant_pad or not _appends_rows(operation):
            continue
        (padded,), source = operation.results, operation.args[0]
        casts = source.value.maker
        if not isinstance(casts, Casts) or casts.spans or not source.is_full or uses[source.value] > 1:
            continue  # some have known places in saved memory, or lie side by side
        if source.layout.matches(source.value.layout) and padded.layout.is_dense:
            casts.results[casts.results.index(source.value)] = padded
            padded.maker = casts
            graph.operations.remove(operation)


def _appends_rows(call: Call) -> bool:
    """True if a call of constant_pad_nd appends rows of zeros to a matrix or stack, or zeros to a vector."""
    view, pads, *number = call.args
    dimensions = len(view.layout.sizes)
    return len(pads) == 2 * dimensions and not any(pads[:-1]) and pads[-1] > 0 and number in ([], [0], [0.0])
