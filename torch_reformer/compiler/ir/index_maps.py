"""Index maps: how operands vary over the result's memory.

A program iterates over the elements of its result in the order of memory (iteration_space.py). Sizes and permutations
of dimensions do not matter then, and a broadcast operand repeats by a rule: element i of the result reads the operand's
element (i // inner) % count. An index map is a tuple of such digits (inner, count), one for each run of adjacent
dimensions in which the operand varies.

An operand whose elements lie in another order, or with gaps, is strided: its digits (inner, count, stride) also have
the distance in memory between successive elements, and there is one for each run of dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable

from .access import Access, access_of
from .digits import Digits, joined
from .graph import Indexed, Map, Random, View
from .layout import Layout
from .targets import Targets

IndexMap = Digits | Access | Targets
BY_PLACE: IndexMap = ((-1, 1),)  # of a key of random numbers: each element has its own number


def full_map_of(numel: int) -> IndexMap:
    """Index map of an operand that has one element per element of a result of ``numel`` elements."""
    return ((1, numel),) if numel > 1 else ()


def index_map_of(result: Layout, operand: Layout) -> IndexMap:
    """Index map of an operand that has the result's sizes, over the memory of the result, which is dense."""
    inner = expected = 1
    index_map: list[tuple[int, int]] = []
    joined = False
    for d in sorted(range(len(result.sizes)), key=lambda d: result.strides[d]):
        size, stride = result.sizes[d], operand.strides[d]
        if size == 1:
            continue
        varies = stride != 0
        if varies:
            if stride != expected:
                return _strided(result, operand)
            expected *= size
            if joined:
                index_map[-1] = index_map[-1][0], index_map[-1][1] * size
            else:
                index_map.append((inner, size))
        joined = varies
        inner *= size
    return tuple(index_map)


def result_maps(layout: Layout) -> set[IndexMap]:
    """Index map of a result with gaps in its memory, over its packed layout; empty set for a dense result."""
    return set() if layout.is_dense else {index_map_of(layout.packed, layout)}


def _strided(result: Layout, operand: Layout) -> IndexMap:
    dims = sorted(range(len(result.sizes)), key=lambda d: result.strides[d])
    return joined((result.sizes[d], operand.strides[d]) for d in dims if result.sizes[d] != 1)


def is_strided(index_map: IndexMap) -> bool:
    """True if the digits have strides, and no maps."""
    return bool(index_map) and len(index_map[0]) == 3


def inverse(index_map: Digits) -> Digits | None:
    """Index map of the result's elements over the memory of a strided operand. None if the operand is not strided, or
    does not have each element of its memory once."""
    if not is_strided(index_map):
        return None
    expected, runs = 1, []
    for inner, count, stride in sorted(index_map, key=lambda digit: digit[2]):
        if stride != expected:
            return None
        runs.append((count, inner))
        expected *= count
    return joined(runs)


def operand_maps(operation: Map) -> list[tuple[View, IndexMap]]:
    """Operands of an operation, and their index maps over the result's memory."""
    if isinstance(operation, Random):
        return [(view, BY_PLACE) for view in operation.inputs]
    layout = operation.results[0].layout
    if isinstance(operation, Indexed):
        (view,) = operation.inputs
        return [(view, access_of(layout, view.layout, operation.maps, operation.fill))]
    return [(view, index_map_of(layout, view.layout)) for view in operation.inputs]


def without(layout: Layout, dims: Iterable[int]) -> IndexMap:
    """Index map of the result of a reduction over these dimensions of a tensor of this layout."""
    dims = set(dims)
    strides = [0 if d in dims else stride for d, stride in enumerate(layout.strides)]
    # The result is packed, with the other dimensions in the order of memory.
    expected = 1
    for d in sorted(range(len(strides)), key=lambda d: layout.strides[d]):
        if strides[d] and layout.sizes[d] != 1:
            strides[d] = expected
            expected *= layout.sizes[d]
    return index_map_of(layout, Layout(layout.sizes, tuple(strides)))
