"""Digits of index maps (iteration_space.py): how an address depends on an element's place in the result's memory."""

from __future__ import annotations

from collections.abc import Iterable

Digits = tuple[tuple[int, ...], ...]  # (inner, count) or (inner, count, stride), innermost first


def joined(runs: Iterable[tuple[int, int]]) -> Digits:
    """Index map of (count, stride) pairs, innermost first; runs that continue the one before them are merged."""
    digits: list[tuple[int, int, int]] = []
    inner = 1
    for count, stride in runs:
        if digits and stride == digits[-1][1] * digits[-1][2]:
            digits[-1] = digits[-1][0], digits[-1][1] * count, digits[-1][2]
        else:
            digits.append((inner, count, stride))
        inner *= count
    return tuple(digits)


def with_strides(index_map: Digits, numel: int) -> Digits:
    """Rewrite an index map with strides, over a result of `numel` elements; broadcast dimensions get stride 0."""
    runs, expected, end = [], 1, 1
    for inner, count, *stride in index_map:
        runs += [(inner // end, 0)] if inner > end else []
        runs.append((count, stride[0] if stride else expected))
        expected *= count
        end = inner * count
    return joined([*runs, (numel // end, 0)] if numel > end else runs)


def with_gaps(digits: Iterable[tuple[int, int, int]], numel: int) -> Digits:
    """Digits in order, with digits of stride 0 in between."""
    runs, end = [], 1
    for inner, count, stride in sorted(digits):
        runs += [(inner // end, 0)] if inner > end else []
        runs.append((count, stride))
        end = inner * count
    return joined([*runs, (numel // end, 0)] if numel > end else runs)
