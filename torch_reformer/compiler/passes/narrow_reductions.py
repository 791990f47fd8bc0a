"""A sum or maximum that is needed only in a narrower data type is stored so: the gradient of a bf16 bias needs no
kernel that casts it."""

from __future__ import annotations

import torch

from ...runtime.dtypes import NARROW
from ..ir.graph import Graph, Map, Operation, Reduce, Value, View, is_cast


def narrow_reductions(graph: Graph) -> None:
    readers = graph.readers()
    instead: dict[Value, Value] = {}  # a cast's result -> the reduction's
    for operation in graph.operations:
        if not isinstance(operation, Reduce) or operation.kind == "moments":
            continue
        (value,) = operation.results
        cast = _only_cast(value, readers.get(value, []))
        # A program that goes on with it computes with what is not rounded.
        if cast is not None and not any(isinstance(each, (Map, Reduce)) for each in readers[cast.results[0]]):
            value.dtype = cast.results[0].dtype
            instead[cast.results[0]] = value

    def narrow(view: View) -> View:
        value = instead.get(view.value)
        return view if value is None else View(value, view.layout)

    graph.operations = [each for each in graph.operations if not any(result in instead for result in each.results)]
    for operation in graph.operations:
        operation.change_operands(narrow)
    graph.outputs = [narrow(each) if isinstance(each, View) else each for each in graph.outputs]


def _only_cast(value: Value, readers: list[Operation | None]) -> Map | None:
    """The cast to a narrower data type that alone reads it, as it lies in memory."""
    if len(readers) != 1 or not is_cast(readers[0]) or value.dtype != torch.float32:
        return None
    (cast,) = readers
    ((view,), (result,)) = cast.inputs, cast.results
    same = view.is_full and view.layout.matches(result.layout) and result.device == value.device
    return cast if same and result.dtype in NARROW else None
