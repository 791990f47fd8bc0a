"""Copy what a widening cast reads, not its result, to another order of memory: half as many bytes, for the copy and for
what reads it. The cast is computed with what reads the copy, and so are sums of the cast's result if nothing else reads
that.

A layer norm's gradient under autocast reads that of a transposed input so."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Map, Operation, Reduce, Typed, Value, View, is_cast
from ..ir.layout import Layout
from ..ir.other_memory import layout_in
from .copy_sources_once import can_read, relaid

_contiguous = torch.ops.reformer._contiguous.default


def copy_before_casts(graph: Graph) -> None:
    """Replace copies of casts by casts of copies, where programs compute all that reads them."""
    readers = graph.readers()
    instead: dict[Value, View] = {}
    before, graph.operations = graph.operations, []
    done: set[Operation] = set()
    copies: dict[tuple[Value, Layout], Value] = {}
    for operation in before:
        done.add(operation)
        reading = [reader for value in operation.results for reader in readers.get(value, [])]
        are_programs = all(isinstance(reader, (Map, Reduce)) for reader in reading)
        if not are_programs or (source := _source(operation)) is None:
            graph.operations.append(operation)
            continue
        (result,), cast = operation.results, operation.operands[0].value.maker
        copy = copies.get((source.value, source.layout))
        if copy is None or copy.layout != result.layout:
            copied = Typed(result.layout, source.value.dtype, result.device)
            (copy,) = graph.add(Call(_contiguous, (source,), {}), [copied])
            copies[source.value, source.layout] = copy
        new = Map([View(copy, copy.layout)], cast.name, cast.expression)
        new.rounds = cast.rounds
        (wide,) = graph.add(new, [Typed(result.layout, result.dtype, result.device)])
        instead[result] = View(wide, result.layout)
        others = [reader for reader in readers[cast.results[0]] if reader is not operation]
        if all(isinstance(each, Reduce) and _can_follow(each, operation, done) for each in others):
            for each in others:
                each.input = View(wide, relaid(each.input.layout, operation))
    graph.substitute(instead)


def _can_follow(reduce: Reduce, copy: Call, done: set[Operation]) -> bool:
    """True if a sum behind the copy of what it sums can be one of the copy."""
    is_first = reduce.input.value is copy.operands[0].value  # else it is one of another copy already
    return reduce.kind == "sum" and is_first and reduce not in done and can_read(reduce, copy)


def _source(operation: Operation) -> View | None:
    """The elements, before a widening cast, of a copy of its result; None for other operations."""
    if not isinstance(operation, Call) or operation.operator is not _contiguous:
        return None
    (view,) = operation.operands
    cast = view.value.maker
    if not is_cast(cast) or not view.value.layout.is_dense:
        return None
    (source,) = cast.inputs
    if source.value.dtype.itemsize >= view.value.dtype.itemsize:
        return None
    layout = layout_in(view.layout, view.value.layout, source.layout)
    return None if layout is None else View(source.value, layout)
