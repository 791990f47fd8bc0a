"""Replace moments of a concatenation along channels by the concatenated moments of its parts.

The moments, over images and spatial positions, of a convolution's result are computed by its kernel, and a part of
several concatenations, as in a DenseNet, is read only once.
"""

from __future__ import annotations

import torch

from ..ir.concats import pieces
from ..ir.graph import Call, Conv, Graph, Map, Operation, Reduce, Typed, Value, View, is_copy, is_removable_cast
from ..ir.layout import Layout

_cat = torch.ops.aten.cat.default


def moments_of_parts(graph: Graph) -> None:
    """Replace moments for which at most one part is read anew: others have moments, or a convolution computes them."""
    known: dict[tuple[Value, Layout], View] = {}  # a part -> its moments
    before, graph.operations = graph.operations, []
    for operation in before:
        parts = _parts(operation)
        if parts is None or sum(not _is_free(part, known) for part in parts) > 1:
            graph.operations.append(operation)
            continue
        for part in parts:
            if _key(part) not in known:
                known[_key(part)] = _moments(graph, operation, part)
        # The result stays the same value, so that its readers need no change.
        (result,) = operation.results
        call = Call(_cat, ([known[_key(part)] for part in parts], 1), {})
        call.results, result.maker = [result], call
        graph.operations.append(call)


def _parts(operation: Operation) -> list[View] | None:
    """Views that were concatenated, if the operation computes the moments of the concatenation, which may be cast to a
    wider data type first; else None."""
    if not isinstance(operation, Reduce) or operation.kind != "moments" or operation.over != (0, 2, 3):
        return None
    view = operation.input
    while is_removable_cast(view.value.maker) or is_copy(view.value.maker):  # slices are copied before they are reduced
        if view.layout != view.value.layout:
            return None
        (view,) = view.value.maker.inputs
    found, dtype = pieces(view), view.value.dtype
    if found is None:
        return None
    parts, dim = found
    if dim != 1 or any(part.value.dtype != dtype or not part.is_full for part in parts):
        return None
    return parts if all(part.layout.numel for part in parts) else None


def _is_free(part: View, known: dict) -> bool:
    """True if the moments of a part are known, or come with a convolution."""
    return _key(part) in known or isinstance(part.value.maker, Conv)


def _key(part: View) -> tuple[Value, Layout]:
    return part.value, part.layout


def _moments(graph: Graph, whole: Reduce, part: View) -> View:
    """Add the moments of a part, in the data types of those of the whole concatenation."""
    channels, (result,) = part.layout.sizes[1], whole.results
    if part.value.dtype != whole.input.value.dtype:
        type_ = Typed(part.layout, whole.input.value.dtype, part.value.device)
        (wide,) = graph.add(Map([part], "_to_copy", lambda x: x), [type_])
        part = View(wide, wide.layout)
    layout = Layout((2, channels), (channels, 1))
    (moments,) = graph.add(Reduce("moments", part, whole.over), [Typed(layout, result.dtype, result.device)])
    return View(moments, layout)
