"""Store a 16-bit matrix product in fp32 if it is only needed so, as a weight's gradient under autocast.

GPUs accumulate it in fp32 anyway; it is neither rounded nor cast then.
"""

from __future__ import annotations

import torch

from ...runtime.dtypes import NARROW
from ..ir.graph import Call, Graph, Map, Operation, Value, View, is_cast

_mm = torch.ops.aten.mm


def widen_products(graph: Graph) -> None:
    """Drop casts to fp32 of products that nothing else reads."""
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
    graph.substitute(instead)


def _only_cast(value: Value, readers: dict[Value, list[Operation | None]]) -> Map | None:
    """The only reader of a GPU's product, if that is a cast to fp32 in the same order of memory whose result has to be
    stored, for calls (an optimizer's update) or as a result of the graph; else None. Kernels that compute the cast as
    they read would read more bytes of a wide product."""
    cast, *others = readers.get(value, [None])
    if others or not is_cast(cast) or value.dtype not in NARROW or value.device.type != "cuda" or torch.version.hip:
        return None
    ((view,), (result,)) = cast.inputs, cast.results
    same = result.layout.matches(view.layout) and result.layout.is_dense
    users = readers.get(result, [])
    is_stored = bool(users) and all(reader is None or isinstance(reader, Call) for reader in users)
    return cast if same and result.dtype == torch.float32 and is_stored else None
