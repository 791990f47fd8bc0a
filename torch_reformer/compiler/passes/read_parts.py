"""Compute concatenations by programs, which read each part where it lies.

An element of a concatenation is the sum of its parts, each read through a map of the concatenated axis
(ir/axis_map.py): outside of its part a map gives -0.0, which changes no number. So kernels that read the concatenation
read its parts instead, and an upsampling or a cast that is a part is never stored."""

from __future__ import annotations

import functools
import operator

import torch

from ...runtime.dtypes import FLOATS
from ...runtime.sizes import Size
from ..ir.axis_map import AxisMap
from ..ir.graph import Call, Conv, Graph, Indexed, Map, Operation, Reduce, Typed, Value, View, is_cast
from ..ir.iteration_space import find_space
from ..ir.through_maps import Source, add_indexed, after_makers, can_map, is_read

_cat = torch.ops.aten.cat.default
_MOST = 6  # parts; each has a map, of which kernels read few (ir/kernel_limits.py)


def read_parts(graph: Graph) -> None:
    """Replace concatenations by Maps where that saves bytes."""
    readers = graph.readers()
    before, graph.operations = graph.operations, []
    for operation in before:
        if not _pays(operation, readers) or not _add(graph, operation):
            graph.operations.append(operation)


def _pays(call: Operation, readers: dict[Value, list[Operation | None]]) -> bool:
    """True if the operation is a concatenation that is read by programs, has parts that need not be stored, or would be
    left to PyTorch.

    If Maps compute all parts, and others read the result, they write into it (fusion/fuse_concat.py)."""
    if not isinstance(call, Call) or call.operator is not _cat:
        return False
    users = readers.get(call.results[0], [])
    if all(map(_is_program, users)):
        return bool(users)
    makers = [part.value.maker for part in call.args[0]]
    if any(map(_is_read_through, makers)) or _is_left(call):
        return True
    return any(map(_is_program, users)) and not all(
        isinstance(maker, Map) and not _is_epilogue(maker) for maker in makers
    )


def _is_left(call: Call) -> bool:
    """True if no kernel would write the parts: programs compute none of them, or only the tensor of which it is a
    slice, and their sizes differ, so that one kernel does not copy them (fusion/fuse_concat.py). PyTorch's kernels take
    up to three times as long as one program."""
    parts = call.args[0]
    is_written = any(isinstance(part.value.maker, (Map, Reduce)) and part.is_full for part in parts)
    return len({part.layout.sizes for part in parts}) > 1 and not is_written


def _is_program(operation: Operation | None) -> bool:
    return isinstance(operation, (Map, Reduce))


def _is_epilogue(operation: Operation | None) -> bool:
    """True if a convolution's kernel computes the operation, as far as that is known before fusion: its results are
    operands, and no sums of them."""
    while isinstance(operation, Map):
        makers = [view.value.maker for view in operation.inputs]
        if any(isinstance(maker, (Reduce, Call)) for maker in makers):
            return False
        if any(isinstance(maker, Conv) for maker in makers):
            return True
        operation = makers[0] if makers else None
    return False


def _is_read_through(maker: Operation | None) -> bool:
    """True if programs read the operand of what makes a part instead (fusion/group.py)."""
    if isinstance(maker, Indexed):
        return maker.only_chooses
    return is_cast(maker) and maker.inputs[0].value.dtype.itemsize < maker.results[0].dtype.itemsize


def _add(graph: Graph, call: Call) -> bool:
    """Add a Map that computes the call's result. False, and the graph is unchanged, if no program can."""
    (result,), (parts, *dims) = call.results, call.args
    if not _computes(result, parts):
        return False
    layout, first, start = result.layout, len(graph.operations), 0
    dim = (dims[0] if dims else 0) % len(layout.sizes)
    if type(layout.sizes[dim]) is Size or not can_map(result.device, (layout.sizes[dim],)):
        return False  # tables that depend on a symbol would make a plan for each of its values
    inputs, index_maps = [], set()
    for part in parts:
        size, whole = part.layout.sizes[dim], layout.sizes[dim]
        axis_map = AxisMap.choosing(size, range(-start, whole - start))
        source = after_makers(Source(part, {dim: axis_map}, -0.0))
        if not is_read(layout, source):
            break
        inputs.append(add_indexed(graph, "part", Typed(layout, part.value.dtype, result.device), source))
        index_maps |= {source.index_map(layout)}
        start += size
    if len(inputs) < len(parts) or find_space(layout.numel, index_maps, set()) is None:
        del graph.operations[first:]
        return False
    whole = Map(inputs, "cat", lambda *values: functools.reduce(operator.add, values))
    whole.results, result.maker = [result], whole
    graph.operations.append(whole)
    return True


def _computes(result: Value, parts: list[View]) -> bool:
    """True if programs compute with these data types and sizes."""
    types = {result.dtype, *(part.value.dtype for part in parts)}
    if not types <= {*FLOATS, torch.bool}:
        return False
    if torch.float64 in types and (result.device.type != "cpu" or len(types) > 1):
        return False
    if len(parts) > _MOST or any(len(part.layout.sizes) != len(result.layout.sizes) for part in parts):
        return False
    sources = (part.layout.numel and part.value.layout.numel < 2**31 for part in parts)
    return result.layout.is_dense and len(parts) > 1 and all(sources)
