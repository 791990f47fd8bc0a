"""Digits of index maps (iteration_space.py): how an address depends on an element's place in the result's memory."""

from __future__ import annotations

from collections.abc import Iterable

Digits = tuple[tuple[int, ...], ...]  # (inner, count) or (inner, count, stride), innermost first
Run = tuple[int, int]  # a count and a stride


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


def without_strides(digits: Digits) -> Digits:
    """Digits with strides, as an index map has them: without strides, and without digits of stride 0, if the operand's
    elements are adjacent in the order of the result."""
    varying = [(inner, count) for inner, count, stride in digits if stride]
    strides, expected = [], 1
    for _, count in varying:
        strides.append(expected)
        expected *= count
    return tuple(varying) if strides == [stride for _, _, stride in digits if stride] else digits


def parts_of(digits: Digits, inner: int, count: int) -> list[Run] | None:
    """Counts and strides of the digits, which have strides, of `count` elements that lie `inner` apart; None if a digit
    crosses the end of these."""
    end, runs = inner * count, []
    for at, size, stride in digits:
        low, high = max(at, inner), min(at * size, end)
        if low >= high:
            continue
        if low % at or high % low:
            return None
        runs.append((high // low, stride * (low // at)))
    return runs


def reordered(index_map: Digits, order: Iterable[Run], numel: int) -> Digits | None:
    """Index map over a result whose elements are counted in another order: `order` has the distance and the number of
    the elements of each run, innermost first. None if a digit crosses the end of a run."""
    digits = with_strides(index_map, numel)
    runs = [parts_of(digits, inner, count) for inner, count in order]
    return None if None in runs else joined(run for parts in runs for run in parts)


def on_axes(
    axes: Iterable[Run], runs: Iterable[Run], offset: int
) -> tuple[dict[int, int], list[list[tuple[int, int, int]]]] | None:
    """Runs of addresses in dense memory, as runs on its axes.

    Args:
        axes: counts and strides in that memory; strides name them.
        runs: counts and strides of addresses, which are added up.
        offset: the first address.

    Returns:
        Where each axis starts, and for each run the axes that it consists of, innermost first, with counts and steps;
        those of stride 0 have no axis. None if a run is not made of whole parts of axes.
    """
    axes = sorted(((stride, size) for size, stride in axes if size > 1), reverse=True)
    starts, found = {}, []
    for stride, _ in axes:
        starts[stride], offset = divmod(offset, stride)
    last = dict(starts)
    for count, step in runs:
        parts = []
        while count > 1 and step:
            stride, size = next(axis for axis in axes if axis[0] <= step)
            each = step // stride
            within = min(count, size // each) if size % each == 0 else count
            if step % stride or count % within or (within < count and within * step != size * stride):
                return None
            parts.append((stride, within, each))
            last[stride] += (within - 1) * each
            count, step = count // within, within * step
        found.append(parts)
    return None if any(last[stride] >= size for stride, size in axes) else (starts, found)
