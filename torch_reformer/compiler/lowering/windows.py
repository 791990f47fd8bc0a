"""Rules of col2im and of the gradient of Tensor.unfold, which sum the elements of windows at each position. A position
is the sum of two: of a window, and of an element within the window. passes/read_windows.py has im2col."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..ir.digits import Run
from ..ir.fake_tensors import layout_of, typed
from ..ir.graph import Graph, View
from ..ir.layout import Layout
from ..ir.through_maps import can_map
from ..ir.windows import Windows
from .indexed import indexed
from .separable import MOST_TAPS
from .uncopied import Elements, as_view, before_copies

aten = torch.ops.aten


class Axis(NamedTuple):
    """An axis of a sum of windows: its stride in the result, and runs in the source; with windows, of these and of the
    places within them."""

    stride: int
    runs: tuple[Run, ...]
    windows: Windows | None = None


def _col2im(graph: Graph, value: Tensor, view: View, size, kernel, dilation, padding, stride) -> View | None:
    """Rule of col2im: sums of the windows' elements at each position."""
    down, across = map(Windows, size, kernel, dilation, padding, stride)
    *batch, rows, _ = view.layout.sizes
    *of_batch, of_rows, of_columns = view.layout.strides
    *batch_stride, of_channels, of_height, of_width = layout_of(value).strides
    taps = down.taps * across.taps
    return _summed(
        *(graph, "col2im", value, view),
        [
            *(Axis(*each) for each in zip(batch_stride, [((*batch, *of_batch),)], strict=False)),
            Axis(of_channels, ((rows // taps, taps * of_rows),)),
            Axis(of_height, ((down.count, across.count * of_columns), (down.taps, across.taps * of_rows)), down),
            Axis(of_width, ((across.count, of_columns), (across.taps, of_rows)), across),
        ],
    )


def _unfold_backward(graph: Graph, value: Tensor, grad: View, sizes, dim: int, size: int, step: int) -> View | None:
    """Rule of unfold_backward, the gradient of Tensor.unfold: one axis is of windows, the last one of places within."""
    if not sizes:
        return None
    *strides, of_taps = grad.layout.strides
    runs = [((count, stride),) for count, stride in zip(grad.layout.sizes, strides, strict=False)]
    axes = [Axis(*each) for each in zip(layout_of(value).strides, runs, strict=True)]
    d = dim % len(sizes)
    axes[d] = Axis(axes[d].stride, (*runs[d], (size, of_taps)), Windows(sizes[d], size, 1, 0, step))
    return _summed(graph, "unfold_backward", value, grad, axes)


def _summed(graph: Graph, name: str, value: Tensor, view: View, axes: Sequence[Axis]) -> View | None:
    """Add an operation that sums windows' elements, which are read before copies of them; axes without windows may
    consist of several there."""
    windows = [axis.windows for axis in axes if axis.windows]
    are_few = can_map(value.device, (size for each in windows for size in (each.size, each.elements)))
    if not are_few or not view.layout.numel:
        return None
    elements = before_copies(Elements(view.value, view.layout.offset, [list(axis.runs) for axis in axes]))
    runs, strides, maps = [], [], {}
    for axis, of_axis in zip(axes, elements.axes, strict=True):
        if axis.windows:
            maps[len(runs)] = axis.windows.map().transposed()
            runs.append(of_axis)
            strides.append(axis.stride)
            continue
        stride = axis.stride
        for count, step in of_axis:
            runs.append([(count, step)])
            strides.append(stride)
            stride *= count
    source, maps = as_view(elements._replace(axes=runs), maps)
    if math.prod(axis_map.taps for axis_map in maps.values()) > MOST_TAPS:
        return None
    sizes = (len(maps[d].rows) if d in maps else size for d, size in enumerate(source.layout.sizes))
    type = typed(value)._replace(layout=Layout(tuple(sizes), tuple(strides)))
    found = indexed(graph, name, type, source, maps, in_one_pass=True)
    return None if found is None else View(found.value, layout_of(value))


RULES = {
    aten.col2im.default: _col2im,
    aten.unfold_backward.default: _unfold_backward,
}
