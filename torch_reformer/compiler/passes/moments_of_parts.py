"""Moments over images and pixels of what was concatenated along its channels are those of its parts: of a convolution's
result they come with the convolution, and a part that is in several concatenations, as in a DenseNet, is read once."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Conv, Graph, Map, Operation, Reduce, Typed, Value, View, is_removable_cast
from ..ir.layout import Layout

_cat = torch.ops.aten.cat.default


def moments_of_parts(graph: Graph) -> None:
    known: dict[tuple[Value, Layout], View] = {}  # a part -> its moments
    before, graph.operations = graph.operations, []
    for operation in before:
        parts = _parts(operation)
        if parts is None or sum(not _is_free(each, known) for each in parts) > 1:
            graph.operations.append(operation)
            continue
        for part in parts:
            if _key(part) not in known:
                known[_key(part)] = _moments(graph, operation, part)
        # The value stays, and with it all that reads it.
        (result,) = operation.results
        call = Call(_cat, ([known[_key(part)] for part in parts], 1), {})
        call.results, result.maker = [result], call
        graph.operations.append(call)


def _parts(operation: Operation) -> list[View] | None:
    """What was concatenated, if these are the moments of that, or of that in a wider data type."""
    if not isinstance(operation, Reduce) or operation.kind != "moments" or operation.over != (0, 2, 3):
        return None
    view = operation.input
    while is_removable_cast(view.value.maker):
        if view.layout != view.value.layout:
            return None
        (view,) = view.value.maker.inputs
    call = view.value.maker
    if not isinstance(call, Call) or call.operator is not _cat or call.args[1:] != (1,) or len(call.args[0]) < 2:
        return None
    parts, dtype = call.args[0], view.value.dtype
    if view.layout != view.value.layout or any(part.value.dtype != dtype or not part.is_full for part in parts):
        return None
    return parts if all(part.layout.numel for part in parts) else None


def _is_free(part: View, known: dict) -> bool:
    return _key(part) in known or isinstance(part.value.maker, Conv)


def _key(part: View) -> tuple[Value, Layout]:
    return part.value, part.layout


def _moments(graph: Graph, of: Reduce, part: View) -> View:
    channels, (whole,) = part.layout.sizes[1], of.results
    if part.value.dtype != of.input.value.dtype:
        type_ = Typed(part.layout, of.input.value.dtype, part.value.device)
        (wide,) = graph.add(Map([part], "_to_copy", lambda x: x), [type_])
        part = View(wide, wide.layout)
    layout = Layout((2, channels), (channels, 1))
    (made,) = graph.add(Reduce("moments", part, of.over), [Typed(layout, whole.dtype, whole.device)])
    return View(made, layout)
