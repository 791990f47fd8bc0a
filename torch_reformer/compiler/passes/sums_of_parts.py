"""Replace sums over the rows of a concatenation by the concatenated sums of its parts.

The gradient of a bias is the sum of a gradient that is concatenated, as that of queries, keys and values. Each part is
summed by the kernel that computes or copies it into the concatenation (fusion/fuse_concat.py). That kernel need not
choose a part for each element, as a program does that reads the concatenation (read_parts.py)."""

from __future__ import annotations

import math

import torch

from ...runtime.sizes import estimate
from ..ir.concats import parts_of
from ..ir.graph import Call, Graph, Map, Operation, Reduce, Typed, Value, View
from ..ir.index_maps import index_map_of, without
from ..ir.iteration_space import find_space
from ..ir.layout import Layout

DEVICES = {"cuda"}  # on CPUs PyTorch concatenates by copying whole rows
_cat = torch.ops.aten.cat.default
_MOST = 4  # parts
# Elements of a concatenation of equal parts, and of unequal ones, which take a kernel each: choosing a part for each
# element takes as long as the kernels' starts.
_LEAST, _LEAST_OF_UNEQUAL = 1 << 22, 1 << 24


def sums_of_parts(graph: Graph) -> None:
    """Change concatenations of which programs read only sums over rows."""
    readers = graph.readers()
    copies: dict[Value, list[View]] = {}  # of the parts, by the concatenation
    before, graph.operations = graph.operations, []
    for operation in before:
        if _is_summed(operation, readers):
            (result,) = operation.results
            copies[result] = [_computed(graph, view, place.layout) for view, place in parts_of(operation)]
            operation.args = (copies[result], *operation.args[1:])
        if _is_sum(operation) and operation.input.value in copies:
            operation = _of_parts(graph, operation, copies[operation.input.value])
        graph.operations.append(operation)


def _is_summed(call: Operation, readers: dict[Value, list[Operation | None]]) -> bool:
    """True for a concatenation of which programs read but the sums of rows."""
    if not isinstance(call, Call) or call.operator is not _cat or call.results[0].device.type not in DEVICES:
        return False
    (whole,), views = call.results, call.args[0]
    are_equal = len({view.layout.sizes for view in views}) == 1
    if not 1 < len(views) <= _MOST or not whole.layout.numel:
        return False
    if estimate(whole.layout.numel) < (_LEAST if are_equal else _LEAST_OF_UNEQUAL):
        return False
    if any(view.value.dtype != whole.dtype for view in views):
        return False
    programs = [each for each in readers.get(whole, []) if not isinstance(each, (Call, type(None)))]
    summed = {_rows(each, call) if _is_sum(each) else None for each in programs}
    if not summed or None in summed:
        return False
    return all(_is_copied_and_summed(*part, over) for part in parts_of(call) for over in summed)


def _is_sum(operation: Operation) -> bool:
    return isinstance(operation, Reduce) and operation.kind == "sum"


def _rows(sum_: Reduce, call: Call) -> tuple[int, ...] | None:
    """The dimensions of a part that are summed, if the sum is over rows of memory of which each part has adjacent
    columns; else None."""
    (result,), (whole,), read = sum_.results, call.results, sum_.input.layout
    columns = result.layout.numel
    if not read.is_row_major or read.numel != whole.layout.numel or sum_.over != tuple(range(len(sum_.over))):
        return None
    if not whole.layout.is_dense or not result.layout.is_row_major or result.layout.sizes[-1:] != (columns,):
        return None
    *_, last = places = [place.layout for _, place in parts_of(call)]
    dims = list(zip(last.sizes, last.strides, strict=True))
    over = tuple(d for d, (size, stride) in enumerate(dims) if size > 1 and stride >= columns)
    own = [dims[d] for d in range(len(dims)) if d not in over]
    if not own or not Layout(*map(tuple, zip(*own, strict=True))).is_row_major:
        return None
    is_beside = len(places) == len(call.args[0]) and last.offset < columns
    return over if is_beside and math.prod(dims[d][0] for d in over) * columns == read.numel else None


def _is_copied_and_summed(view: View, place: View, over: tuple[int, ...]) -> bool:
    """True if one kernel can copy the view to the order of memory of its place, and sum these dimensions."""
    layout = place.layout.packed
    return find_space(layout.numel, {index_map_of(layout, view.layout)}, {without(layout, over)}) is not None


def _computed(graph: Graph, view: View, place: Layout) -> View:
    """The view if a program computes it in the order of memory that it has in its place, else a copy that it adds."""
    if isinstance(view.value.maker, Map) and view.is_full and view.layout == place.packed:
        return view
    type = Typed(place.packed, view.value.dtype, view.value.device)
    (copy,) = graph.add(Map([view], "clone", lambda x: x), [type])
    return View(copy, copy.layout)


def _of_parts(graph: Graph, sum_: Reduce, parts: list[View]) -> Call:
    """Add the sums of the parts. The concatenation of these, whose result is the sum's value, so that its readers need
    no change."""
    (result,), sums = sum_.results, []
    over = _rows(sum_, sum_.input.value.maker)
    for part in parts:
        sizes = tuple(size for d, size in enumerate(part.layout.sizes) if d not in over)
        type = Typed(Layout.row_major(sizes), result.dtype, result.device)
        (sum_of_part,) = graph.add(Reduce("sum", part, over), [type])
        leading = (1,) * (len(result.layout.sizes) - 1)
        sums.append(View(sum_of_part, Layout.row_major((*leading, math.prod(sizes)))))
    call = Call(_cat, (sums, -1), {})
    call.results, result.maker = [result], call
    return call
