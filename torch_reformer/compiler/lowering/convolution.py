"""Two-dimensional convolutions and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ...operators import fake
from ...runtime.dtypes import FLOATS
from ...runtime.plan import geometry_number
from ..ir.fake_tensors import layout_of, typed
from ..ir.graph import Call, Conv, ConvGrads, Geometry, Graph, View
from ..ir.iteration_space import index_map_of, is_strided
from ..ir.layout import Layout
from .conv1x1_as_mm import convolution, gradients, is_product
from .pointwise import add_map
from .reductions import add_sum

aten = torch.ops.aten


def _convolution(
    graph: Graph, value, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
):
    if is_product(input, weight, stride, padding, dilation, transposed, groups):
        return convolution(graph, value, input, weight, bias)
    geometry = _geometry(value, input, weight, (stride, padding, dilation, groups), transposed)
    if geometry is None:
        return None
    layout = _result_layout(input, weight, tuple(value.shape))
    if layout != layout_of(value):
        return None
    spread = bias and View(bias.value, Layout(layout.sizes, (0, *bias.layout.strides, 0, 0), bias.layout.offset))
    if spread and is_strided(index_map_of(layout, spread.layout)):
        return None
    (made,) = graph.add(Conv(input, weight, geometry), [(layout, value.dtype, value.device)])
    if spread is None:
        return View(made, layout)
    return add_map(graph, "add", lambda x, y: x + y, [View(made, layout), spread], value)


def _convolution_backward(
    graph: Graph, value, grad, input, weight, bias_sizes, stride, padding, dilation, transposed, _, groups, mask
):
    wanted, found = (mask[0], mask[1]), [None, None, None]
    as_product = is_product(input, weight, stride, padding, dilation, transposed, groups)
    geometry = None if as_product else _geometry(grad, input, weight, (stride, padding, dilation, groups), transposed)
    if (geometry is None and not as_product) or grad.layout.numel == 0:
        return None
    if mask[2]:
        found[2] = add_sum(graph, value[2], grad, [0, 2, 3])
        if found[2] is None:
            return None
    if as_product:
        found[:2] = gradients(graph, value[:2], grad, input, weight, wanted)
    elif any(wanted):
        results = [
            (_result_layout(*others, tuple(each.shape)), each.dtype, each.device)
            for each, want, others in zip(value[:2], wanted, ((grad, weight), (grad, input)), strict=True)
            if want
        ]
        made = iter(graph.add(ConvGrads(grad, input, weight, geometry, wanted), results))
        for i in range(2):
            if wanted[i]:
                found[i] = _strided(graph, next(made), value[i])
    return found


def _strided(graph: Graph, made, like: Tensor) -> View:
    """The value with the strides that PyTorch's would have, copied if need be."""
    layout = layout_of(like)
    if layout.matches(made.layout):
        return View(made, layout)
    (copied,) = graph.add(Call(aten.alias.default, (View(made, made.layout),), {}), [typed(like)])
    return View(copied, layout)


def _geometry(value, input: View, weight: View, numbers, transposed: bool) -> Geometry | None:
    types = {input.value.dtype, weight.value.dtype}
    if transposed or len(types) > 1 or not types <= set(FLOATS) or input.value.device.type not in ("cpu", "cuda"):
        return None
    if len(input.layout.sizes) != 4 or len(weight.layout.sizes) != 4 or not input.layout.numel:
        return None
    if not weight.layout.numel or (isinstance(value, Tensor) and not value.numel()):
        return None
    stride, padding, dilation, groups = numbers
    pairs = [tuple(each) * 2 if len(each) == 1 else tuple(each) for each in (stride, padding, dilation)]
    if geometry_number(*pairs, groups) is None:
        return None
    return Geometry(*pairs, groups)


def _result_layout(first: View, second: View, sizes: tuple[int, ...]) -> Layout:
    """As csrc/operators/tensors.h has it, by the fake tensors' rule."""
    n, c, h, w = sizes
    if fake.result_is_channels_last(*(_like(each) for each in (first, second))):
        return Layout(sizes, (h * w * c, 1, w * c, c))
    return Layout(sizes, (c * h * w, h * w, w, 1))


def _like(view: View) -> Tensor:
    """A tensor without memory."""
    return torch.empty_strided(view.layout.sizes, view.layout.strides, dtype=view.value.dtype, device="meta")


RULES = {aten.convolution.default: _convolution, aten.convolution_backward.default: _convolution_backward}
