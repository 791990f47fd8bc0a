"""Store a sum or maximum in the narrower data type in which it is needed.

The gradient of a bf16 bias then needs no kernel that casts it.
"""

from __future__ import annotations

import torch

from ...runtime.dtypes import NARROW
from ..ir.graph import Graph, Map, Operation, Reduce, Value, View, is_cast


def narrow_reductions(graph: Graph) -> None:
    """Drop casts of reductions that nothing else reads, and store the reductions in the casts' data types."""
    readers = graph.readers()
    instead: dict[Value, View] = {}  # a cast's result -> the reduction's
    for operation in graph.operations:
        if not isinstance(operation, Reduce) or operation.kind == "moments":
            continue
        (value,) = operation.results
        cast = _only_cast(value, readers.get(value, []))
        # A program that reads the cast's result goes on with the sum before it is rounded.
        if cast is not None and not any(isinstance(reader, (Map, Reduce)) for reader in readers[cast.results[0]]):
            value.dtype = cast.results[0].dtype
            instead[cast.results[0]] = View(value, value.layout)
    graph.substitute(instead)


def _only_cast(value: Value, readers: list[Operation | None]) -> Map | None:
    """The only reader of a value, if that is a cast to a narrower data type in the same order of memory; else None."""
    if len(readers) != 1 or not is_cast(readers[0]) or value.dtype != torch.float32:
        return None
    (cast,) = readers
    ((view,), (result,)) = cast.inputs, cast.results
    same = view.is_full and view.layout.matches(result.layout) and result.device == value.device
    return cast if same and result.dtype in NARROW else None
