"""Read the source of a copy through maps, instead of the copy: as where windows are put together again and rolled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..ir.axis_map import AxisMap
from ..ir.before_copy import in_operand
from ..ir.digits import Run
from ..ir.graph import Call, Map, Random, Value, View
from ..ir.layout import Layout

_contiguous = torch.ops.reformer._contiguous.default
_COPIES = {"clone", "copy"}


class Elements(NamedTuple):
    """Elements of a value's memory: axes are runs of addresses, innermost first, which are added up."""

    value: Value
    offset: int
    axes: list[list[Run]]


def uncopied(source: View, maps: dict[int, AxisMap]) -> tuple[View, dict[int, AxisMap]] | None:
    """The operand of the copy that the source is, and maps that read the same elements there.

    A place on an axis of the copy may be a sum of several digits in the operand, for which the axis gets a map. None if
    the source is no copy, or if a digit belongs to parts of several axes."""
    layout = source.layout
    axes = [[run] for run in zip(layout.sizes, layout.strides, strict=True)]
    elements = before_copies(Elements(source.value, layout.offset, axes))
    return None if elements.value is source.value else as_view(elements, maps)


def before_copies(elements: Elements) -> Elements:
    """Places of the elements before all copies that keep whole parts of axes."""
    while (before := _before_copy(elements)) is not None:
        elements = before
    return elements


def _before_copy(elements: Elements) -> Elements | None:
    """The elements in the operand of the copy that makes the value; None if nothing copies it, or if a run of theirs
    crosses the end of one of the operand's."""
    value, offset, axes = elements
    if (operand := _copied(value)) is None:
        return None
    found = in_operand(value.layout, operand.layout, offset, axes)
    return found and Elements(operand.value, *found)


def as_view(elements: Elements, maps: dict[int, AxisMap]) -> tuple[View, dict[int, AxisMap]]:
    """A view of the elements, and maps of its axes, where those of an axis are the product of `maps` and of one that
    adds up its runs, if it has several."""
    maps, sizes, strides = dict(maps), [], []
    for d, axis in enumerate(elements.axes):
        runs = [run for run in axis if run[0] > 1]
        if len(runs) > 1:
            size, stride, inner = _on_one_axis(runs)
            maps[d] = inner.then(maps[d]) if d in maps else inner
        else:
            size, stride = runs[0] if runs else (1, 0)
        sizes.append(size)
        strides.append(stride)
    return View(elements.value, Layout(tuple(sizes), tuple(strides), elements.offset)), maps


def _on_one_axis(runs: Sequence[Run]) -> tuple[int, int, AxisMap]:
    """Size and stride of an axis on which all elements of the runs lie, and the map that reads them."""
    addresses = [0]
    for count, stride in runs:
        addresses = [i * stride + address for i in range(count) for address in addresses]
    step = math.gcd(*addresses) or 1
    size = max(addresses) // step + 1
    return size, step, AxisMap.choosing(size, [address // step for address in addresses])


def _copied(value: Value) -> View | None:
    """The operand of the copy that makes a value; None if nothing copies it."""
    maker = value.maker
    if isinstance(maker, Call) and maker.operator is _contiguous:
        (operand,) = maker.args
    elif isinstance(maker, Map) and not isinstance(maker, Random) and maker.name in _COPIES and len(maker.inputs) == 1:
        (operand,) = maker.inputs
    else:
        return None
    is_same = operand.value.dtype == value.dtype and operand.layout.sizes == value.layout.sizes
    return operand if is_same and value.layout.is_dense else None
