"""Reductions that one kernel does, and reductions of few elements, which are terms of a Map."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from ...program import Value as Expression
from .graph import View
from .index_maps import index_map_of, without
from .iteration_space import find_space
from .layout import Layout

Dims = tuple[int, ...]
_LEAST_OF_IMAGE = 512  # adjacent elements of an image that is reduced in part: as many as a block has threads
MOST_TERMS = 8
# Names of Maps of few terms.
SUM_OF_TERMS, MAX_OF_TERMS, PROD_OF_TERMS = "sum_of_terms", "max_of_terms", "prod_of_terms"
MEAN_OF_TERMS, SQUARES_OF_TERMS = "mean_of_terms", "squares_of_terms"
OF_TERMS = {SUM_OF_TERMS, MAX_OF_TERMS, PROD_OF_TERMS, MEAN_OF_TERMS, SQUARES_OF_TERMS}


def has_kernel(layout: Layout, over: Dims) -> bool:
    """True if one kernel reduces these dimensions of a tensor, which it reads where it lies."""
    packed = layout.packed
    index_map, operands = without(packed, over), {((1, packed.numel),), index_map_of(packed, layout)}
    if len(index_map) > 1 and index_map[-1][0] < _LEAST_OF_IMAGE:
        return False
    return find_space(packed.numel, operands, {index_map}) is not None


def count_of(layout: Layout, over: Dims) -> int:
    """Number of elements that are reduced to one."""
    return math.prod(layout.sizes[d] for d in over)


def squeezed(layout: Layout, over: Dims) -> Layout:
    """The layout without these dimensions."""
    sizes, strides = ([n for d, n in enumerate(each) if d not in over] for each in (layout.sizes, layout.strides))
    return Layout(tuple(sizes), tuple(strides), layout.offset)


def terms(view: View, over: Dims) -> list[View]:
    """Views of the elements that are reduced to one, in order, with one element in the reduced dimensions."""
    layout = view.layout
    sizes = tuple(1 if d in over else size for d, size in enumerate(layout.sizes))
    places = itertools.product(*(range(layout.sizes[d]) for d in over))
    offsets = (sum(i * layout.strides[d] for d, i in zip(over, place, strict=True)) for place in places)
    return [View(view.value, Layout(sizes, layout.strides, layout.offset + offset)) for offset in offsets]


def sum_of(*terms: Expression) -> Expression:
    """PyTorch's sums begin with 0: a sum of -0.0 is 0."""
    return sum(terms[1:], terms[0]) + 0.0


class Box(NamedTuple):
    """A rectangular part of a tensor, each element once or repeated: for each of its dimensions, the whole's (None if
    it has one element or repeats it); and where it starts, and how many elements it has, in each of the whole's."""

    dims: tuple[int | None, ...]
    starts: tuple[int, ...]
    extents: tuple[int, ...]


def box_of(part: Layout, whole: Layout) -> Box | None:
    """Where a part lies in the whole; None if it is not rectangular there."""
    dim_of_stride = {whole.strides[d]: d for d, size in enumerate(whole.sizes) if size > 1}
    starts, extents = [0] * len(whole.sizes), [1] * len(whole.sizes)
    dims = [
        dim_of_stride.get(stride) if size > 1 else None for size, stride in zip(part.sizes, part.strides, strict=True)
    ]
    for d, size, stride in zip(dims, part.sizes, part.strides, strict=True):
        if d is not None and extents[d] == 1:
            extents[d] = size
        elif size > 1 and (d is not None or stride):
            return None
    offset = part.offset
    for stride, d in sorted(dim_of_stride.items(), reverse=True):
        starts[d], offset = divmod(offset, stride)
        if starts[d] + extents[d] > whole.sizes[d]:
            return None
    return None if offset else Box(tuple(dims), tuple(starts), tuple(extents))


def part_of(view: View, sizes: tuple[int, ...], box: Box) -> View:
    """The part of an operand from which a part of the result is computed."""
    layout = view.layout
    strides = tuple(0 if d is None else layout.strides[d] for d in box.dims)
    offset = sum(start * stride for start, stride in zip(box.starts, layout.strides, strict=True))
    return View(view.value, Layout(sizes, strides, layout.offset + offset))
