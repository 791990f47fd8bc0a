"""Elements of one tensor in the memory of another one with equal sizes, as of a copy in its source."""

from __future__ import annotations

from .digits import on_axes
from .layout import Layout


def strides_between(memory: Layout, other: Layout) -> dict[int, int]:
    """The stride of each dimension in the other memory, by its stride in the first one."""
    dims = zip(memory.sizes, memory.strides, other.strides, strict=True)
    return {stride: other_stride for size, stride, other_stride in dims if size > 1}


def layout_in(layout: Layout, memory: Layout, other: Layout) -> Layout | None:
    """Layout, in the other memory, of the elements that have this layout in the first one, which is dense; None if they
    have none there."""
    axes = zip(memory.sizes, memory.strides, strict=True)
    found = on_axes(axes, zip(layout.sizes, layout.strides, strict=True), layout.offset)
    if found is None:
        return None
    starts, dims = found
    stride_of, strides = strides_between(memory, other), []
    for parts in dims:
        expected = first = stride_of[parts[0][0]] * parts[0][2] if parts else 0
        for axis, count, each in parts:
            if stride_of[axis] * each != expected:
                return None
            expected *= count
        strides.append(first)
    offset = other.offset + sum(start * stride_of[axis] for axis, start in starts.items())
    return Layout(layout.sizes, tuple(strides), offset)
