"""The order in which maps of several axes are applied: all at once, or one axis in a pass of its own first, with a wide
result in between. Taps of one pass multiply; those of two passes add."""

from __future__ import annotations

import math

from ..ir.axis_map import AxisMap
from ..ir.layout import Layout
from ..ir.map_cost import MOST_ADJACENT, instructions_of_element

MOST_TAPS = 64  # of an element: 144 taps took 290 us, where two passes of 12 took 190 (H100, pool of 64x64 to 6x6)
_OF_BYTE, _OF_LAUNCH = 8.5, 8e7  # instructions that an H100 runs while it moves a byte, or launches a kernel


def axis_of_own_pass(
    source: tuple[int, ...], result: Layout, maps: dict[int, AxisMap], sizes: tuple[int, int, int]
) -> int | None:
    """The axis whose map is applied in a pass of its own, before the others; None if one pass costs least.

    Args:
        source: sizes of what is read.
        result: layout of the result; the pass between has the same order of memory.
        maps: by axis.
        sizes: bytes of an element of the source, of what is between two passes, and of the result.
    """
    of_source, between, of_result = sizes
    least, best = _cost(source, result, maps, of_source, of_result), None
    for axis in (d for d, axis_map in maps.items() if axis_map.taps > 1 and len(maps) > 1):
        first = list(source)
        first[axis] = len(maps[axis].rows)
        rest = {d: axis_map for d, axis_map in maps.items() if d != axis}
        cost = _cost(source, Layout(tuple(first), result.strides).packed, {axis: maps[axis]}, of_source, between)
        cost += _cost(tuple(first), result, rest, between, of_result)
        if cost < least:
            least, best = cost, axis
    return best


def _cost(source: tuple[int, ...], result: Layout, maps: dict[int, AxisMap], of_source: int, of_result: int) -> float:
    """Instructions of a pass, or those that run while it moves its bytes if these are more."""
    taps = math.prod(axis_map.taps for axis_map in maps.values())
    if taps > MOST_TAPS:
        return math.inf
    # Elements inside of the innermost axis with a map are adjacent in the source, too.
    adjacent = math.gcd(min(result.strides[d] for d in maps), MOST_ADJACENT) if maps else MOST_ADJACENT
    touched = math.prod(maps[d].touched if d in maps else size for d, size in enumerate(source))
    moved = touched * of_source + result.numel * of_result
    return max(result.numel * instructions_of_element(taps, adjacent), moved * _OF_BYTE) + _OF_LAUNCH
