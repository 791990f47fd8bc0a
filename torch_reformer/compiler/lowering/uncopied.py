"""Read the source of a copy through maps, instead of the copy: as where windows are put together again and rolled."""

from __future__ import annotations

import math

import torch

from ..ir.axis_map import AxisMap
from ..ir.digits import Digits, with_strides
from ..ir.graph import Call, Map, Random, View
from ..ir.iteration_space import index_map_of
from ..ir.layout import Layout

_contiguous = torch.ops.reformer._contiguous.default
_COPIES = {"clone", "copy"}


def uncopied(source: View, maps: dict[int, AxisMap]) -> tuple[View, dict[int, AxisMap]] | None:
    """The operand of the copy that the source is, and maps that read the same elements there.

    A place on an axis of the copy may be a sum of several digits in the operand, for which the axis gets a map. None if
    the source is no copy, or if a digit belongs to parts of several axes."""
    operand = _copied(source)
    if operand is None or not source.layout.is_row_major or source.layout.offset:
        return None
    digits = index_map_of(source.value.layout, operand.layout)
    numel = source.value.layout.numel
    if numel != source.layout.numel:
        return None
    digits = with_strides(digits, numel)
    maps, strides, sizes = dict(maps), [], []
    for d, (size, stride) in enumerate(zip(source.layout.sizes, source.layout.strides, strict=True)):
        if not all(_is_apart(digit, stride) for digit in digits):
            return None
        places = [_address(digits, i * stride) for i in range(size)]
        step = math.gcd(*places)
        if places == [i * step for i in range(size)]:
            sizes.append(size)
        else:
            sizes.append(max(places) // step + 1)
            inner = AxisMap.choosing(sizes[-1], [place // step for place in places])
            maps[d] = inner.then(maps[d]) if d in maps else inner
        strides.append(step)
    return View(operand.value, Layout(tuple(sizes), tuple(strides), operand.layout.offset)), maps


def _copied(source: View) -> View | None:
    """The operand of the copy that makes a view's value in the order of its dimensions; None if nothing copies it."""
    maker = source.value.maker
    if isinstance(maker, Call) and maker.operator is _contiguous:
        (operand,) = maker.args
    elif isinstance(maker, Map) and not isinstance(maker, Random) and maker.name in _COPIES and len(maker.inputs) == 1:
        (operand,) = maker.inputs
    else:
        return None
    is_same = operand.value.dtype == source.value.dtype and operand.layout.sizes == source.value.layout.sizes
    return operand if is_same and source.value.layout.is_dense else None


def _is_apart(digit: tuple[int, ...], stride: int) -> bool:
    """True if the digit has no part of an axis: it ends before the axis, begins with or after it, or can be split at
    its beginning."""
    inner, count, _ = digit
    end = inner * count
    return end <= stride or inner >= stride or (stride % inner == 0 and end % stride == 0)


def _address(digits: Digits, place: int) -> int:
    """Address of an element, by its place in the result's memory."""
    return sum(place // inner % count * stride for inner, count, stride in digits)
