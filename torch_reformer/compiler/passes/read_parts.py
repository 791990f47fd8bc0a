"""Compute concatenations by programs, which read each part where it lies.

An element of a concatenation is the sum of its parts, each read through a map of the concatenated axis
(ir/axis_map.py): outside of its part a map gives -0.0, which changes no number. So kernels that read the concatenation
read its parts instead, and an upsampling or a cast that is a part is never stored."""

from __future__ import annotations

import functools
import operator

import torch

from ..fusion.group import is_small
from ..ir.axis_map import AxisMap
from ..ir.graph import Call, Graph, Map, Operation, Reduce, Typed, Value, View
from ..ir.iteration_space import find_space, operand_maps
from ..lowering.indexed import placed

_cat = torch.ops.aten.cat.default
_MOST = 6  # parts; each has a map, of which kernels read few (ir/kernel_limits.py)


def read_parts(graph: Graph) -> None:
    """Replace concatenations by Maps where that saves bytes."""
    readers = graph.readers()
    before, graph.operations = graph.operations, []
    for operation in before:
        if not _pays(operation, readers) or not _add(graph, operation, readers):
            graph.operations.append(operation)


def _pays(call: Operation, readers: dict[Value, list[Operation | None]]) -> bool:
    """True if the operation is a concatenation that is read by programs, or has parts that need not be stored.

    If programs compute all parts, and others read the result, they write into it (fusion/fuse_concat.py)."""
    if not isinstance(call, Call) or call.operator is not _cat:
        return False
    users = readers.get(call.results[0], [])
    if all(_is_program(user) for user in users):
        return bool(users)
    makers = [part.value.maker for part in call.args[0]]
    if any(map(is_small, makers)):
        return True
    return any(map(_is_program, users)) and not all(map(_is_program, makers))


def _is_program(operation: Operation | None) -> bool:
    return isinstance(operation, (Map, Reduce))


def _add(graph: Graph, call: Call, readers: dict[Value, list[Operation | None]]) -> bool:
    """Add a Map that computes the call's result. False, and the graph is unchanged, if no program can."""
    (result,), (parts, *dims) = call.results, call.args
    dim = (dims[0] if dims else 0) % max(len(result.layout.sizes), 1)
    if len(parts) > _MOST or any(len(part.layout.sizes) != len(result.layout.sizes) for part in parts):
        return False
    first, start, inputs, index_maps = len(graph.operations), 0, [], set()
    for part in parts:
        size, whole = part.layout.sizes[dim], result.layout.sizes[dim]
        axis_map = AxisMap.choosing(size, range(-start, whole - start))
        view = placed(graph, "part", Typed(result.layout, part.value.dtype, result.device), part, {dim: axis_map}, -0.0)
        if view is None:
            break
        inputs.append(view)
        index_maps |= {index_map for _, index_map in operand_maps(view.value.maker)}
        start += size
    if len(inputs) < len(parts) or find_space(result.layout.numel, index_maps, set()) is None:
        del graph.operations[first:]
        return False
    whole = Map(inputs, "cat", lambda *values: functools.reduce(operator.add, values))
    whole.results, result.maker = [result], whole
    graph.operations.append(whole)
    return True
