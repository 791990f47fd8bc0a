"""A matrix product of 16-bit types that is needed only in fp32, as a weight's gradient under autocast, is stored so: it
is added up in fp32 anyway, and neither rounded nor cast then."""

from __future__ import annotations

import torch

from ...runtime.dtypes import NARROW
from ..ir.graph import Call, Graph, Map, Operation, Value, View, is_cast
from ..ir.layout import Layout

_mm = torch.ops.aten.mm


def widen_products(graph: Graph) -> None:
    readers = graph.readers()
    instead: dict[Value, View] = {}  # a cast's result -> the product's
    for operation in graph.operations:
        if not isinstance(operation, Call) or operation.operator is not _mm.default:
            continue
        (value,) = operation.results
        cast = _only_cast(value, readers)
        if cast is not None:
            operation.operator, operation.args = _mm.dtype, (*operation.args, torch.float32)
            value.dtype = torch.float32
            instead[cast.results[0]] = View(value, cast.inputs[0].layout)

    def wide(view: View) -> View:
        source, own = instead.get(view.value), view.layout
        if source is None:
            return view
        return View(source.value, Layout(own.sizes, own.strides, own.offset + source.layout.offset))

    graph.operations = [each for each in graph.operations if not any(result in instead for result in each.results)]
    graph.outputs = [wide(each) if isinstance(each, View) else each for each in graph.outputs]


def _only_cast(value: Value, readers: dict[Value, list[Operation | None]]) -> Map | None:
    """The cast to fp32 that alone reads a GPU's product, as it lies in memory, and that only the graph's caller needs:
    what else reads it reads fewer bytes of a narrow one."""
    cast, *others = readers.get(value, [None])
    if others or not is_cast(cast) or value.dtype not in NARROW or value.device.type != "cuda" or torch.version.hip:
        return None
    ((view,), (result,)) = cast.inputs, cast.results
    same = result.layout.matches(view.layout) and result.layout.is_dense
    return cast if same and result.dtype == torch.float32 and readers.get(result) == [None] else None
