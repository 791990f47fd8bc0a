"""Where the operand of a copy has the elements of the copy."""

from __future__ import annotations

import itertools

from .digits import Run, on_axes, with_strides
from .index_maps import index_map_of
from .layout import Layout


def in_operand(copy: Layout, operand: Layout, offset: int, axes: list[list[Run]]) -> tuple[int, list[list[Run]]] | None:
    """Offset and axes, in the operand's memory, of elements of a dense copy; None if a run of theirs crosses the end of
    one of the operand's."""
    index_map = with_strides(index_map_of(copy, operand), copy.numel)
    digits = {inner: (count, stride) for inner, count, stride in index_map}
    runs = [run for axis in axes for run in axis]
    found = on_axes(((count, inner) for inner, (count, _) in digits.items()), runs, offset)
    if found is None:
        return None
    starts, parts = found
    offset = operand.offset + sum(start * digits[inner][1] for inner, start in starts.items())
    of_runs = iter(
        [(count, each * digits[inner][1]) for inner, count, each in of_run] if stride else [(size, 0)]
        for (size, stride), of_run in zip(runs, parts, strict=True)
    )
    return offset, [[*itertools.chain(*(next(of_runs) for _ in axis))] for axis in axes]
