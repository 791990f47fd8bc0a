"""Rules of two-dimensional convolutions and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ...operators import fake
from ...runtime.dtypes import FLOATS
from ...runtime.plan import geometry_number
from ..ir.contiguous import dense
from ..ir.fake_tensors import layout_of, typed
from ..ir.graph import Call, Conv, ConvGrads, Geometry, Graph, Typed, Value, View
from ..ir.index_maps import index_map_of, is_strided
from ..ir.layout import Layout
from ..ir.sized_tensor import SizedTensor
from .conv1x1_as_mm import convolution, gradients, is_product
from .pointwise import add_map
from .reductions import add_sum

aten = torch.ops.aten


def _convolution(
    graph: Graph, value, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
):
    """Rule of aten.convolution: a Conv, and a Map that adds the bias."""
    if is_product(input, weight, stride, padding, dilation, transposed, groups):
        return convolution(graph, value, input, weight, bias)
    geometry = _geometry(value, input, weight, (stride, padding, dilation, groups), transposed)
    if geometry is None:
        return None
    input, weight = _dense_pair(graph, input, weight)
    layout = _result_layout(input, weight, tuple(value.shape))
    if layout != layout_of(value):
        return None
    spread = bias and View(bias.value, Layout(layout.sizes, (0, *bias.layout.strides, 0, 0), bias.layout.offset))
    if spread and is_strided(index_map_of(layout, spread.layout)):
        return None
    (result,) = graph.add(Conv(input, weight, geometry), [(layout, value.dtype, value.device)])
    if spread is None:
        return View(result, layout)
    return add_map(graph, "add", lambda x, y: x + y, [View(result, layout), spread], value)


def _convolution_backward(
    graph: Graph, value, grad, input, weight, bias_sizes, stride, padding, dilation, transposed, _, groups, mask
):
    """Rule of aten.convolution_backward: a ConvGrads, and the sum over the bias' elements."""
    wanted, grads = (mask[0], mask[1]), [None, None, None]
    as_product = is_product(input, weight, stride, padding, dilation, transposed, groups)
    geometry = None if as_product else _geometry(grad, input, weight, (stride, padding, dilation, groups), transposed)
    if (geometry is None and not as_product) or grad.layout.numel == 0:
        return None
    if as_product:
        grads[:2] = gradients(graph, value[:2], grad, input, weight, wanted)
    elif all(wanted) and _is_channels_last(grad, weight) != _is_channels_last(grad, input):
        for each in ((True, False), (False, True)):
            _add_gradients(graph, grads, value, grad, input, weight, geometry, each)
    elif any(wanted):
        grad = _add_gradients(graph, grads, value, grad, input, weight, geometry, wanted)
    if mask[2]:
        grads[2] = add_sum(graph, value[2], grad, [0, 2, 3]) or _sum_by_pytorch(graph, value[2], grad)
    return grads


def _add_gradients(
    graph: Graph, grads: list, value, grad: View, input: View, weight: View, geometry: Geometry, wanted
) -> View:
    """Add a ConvGrads, put its results into `grads`, and return the gradient that it reads: dense, if `grad` is not.

    Args:
        value: the fake results.
    """
    if wanted[0]:
        grad, weight = _dense_pair(graph, grad, weight)
    if wanted[1]:
        grad, input = _dense_pair(graph, grad, input)
    places = [place for place in range(2) if wanted[place]]
    layouts = [_result_layout(grad, (weight, input)[place], tuple(value[place].shape)) for place in places]
    types = [Typed(layout, grad.value.dtype, grad.value.device) for layout in layouts]
    results = graph.add(ConvGrads(grad, input, weight, geometry, wanted), types)
    for place, result in zip(places, results, strict=True):
        grads[place] = _strided(graph, result, value[place])
    return grad


def _strided(graph: Graph, value: Value, like: Tensor) -> View:
    """The value with the strides of PyTorch's result, copied if need be."""
    layout = layout_of(like)
    if layout.matches(value.layout):
        return View(value, layout)
    (copied,) = graph.add(Call(aten.alias.default, (View(value, value.layout),), {}), [typed(like)])
    return View(copied, layout)


def _geometry(value, input: View, weight: View, numbers, transposed: bool) -> Geometry | None:
    """Geometry of a convolution that this package's kernels and dispatch support, else None.

    Args:
        value: fake result, or its gradient as a view.
        numbers: stride, padding, dilation and groups, as PyTorch has them.
    """
    types = {input.value.dtype, weight.value.dtype}
    if transposed or len(types) > 1 or not types <= set(FLOATS) or input.value.device.type not in ("cpu", "cuda"):
        return None
    if len(input.layout.sizes) != 4 or len(weight.layout.sizes) != 4 or not input.layout.numel:
        return None
    if not weight.layout.numel or (isinstance(value, Tensor) and not value.numel()):
        return None
    stride, padding, dilation, groups = numbers
    pairs = [tuple(pair) * 2 if len(pair) == 1 else tuple(pair) for pair in (stride, padding, dilation)]
    if geometry_number(*pairs, groups) is None:
        return None
    return Geometry(*pairs, groups)


def _result_layout(first: View, second: View, sizes: tuple[int, ...]) -> Layout:
    """Layout of a result, by the rule of fake tensors, which csrc/operators/tensors.h follows, too."""
    return _layout(sizes, _is_channels_last(first, second))


def _is_channels_last(first: View, second: View) -> bool:
    """True if a convolution of these operands computes in channels_last."""
    return fake.result_is_channels_last(*(_like(view) for view in (first, second)))


def _layout(sizes: tuple[int, ...], is_channels_last: bool) -> Layout:
    n, c, h, w = sizes
    return Layout(sizes, (h * w * c, 1, w * c, c) if is_channels_last else (c * h * w, h * w, w, 1))


def _dense_pair(graph: Graph, first: View, second: View) -> tuple[View, View]:
    """The operands, copied if they are not dense in the layout in which their convolution computes.

    The convolution's operator would make such copies itself, in each call that reads the operand. Operations of the
    graph are fused, shared among all readers, and counted.
    """
    format = _is_channels_last(first, second)
    one, other = (dense(graph, view, _layout(view.layout.sizes, format)) for view in (first, second))
    return one, other


def _sum_by_pytorch(graph: Graph, value: Tensor, grad: View) -> View:
    """The gradient of the bias, whose fake is `value`, by PyTorch's operator."""
    (result,) = graph.add(Call(aten.sum.dim_IntList, (grad, [0, 2, 3]), {}), [typed(value)])
    return View(result, result.layout)


def _like(view: View) -> SizedTensor:
    return SizedTensor(view.value, view.layout.sizes, view.layout.strides)


RULES = {aten.convolution.default: _convolution, aten.convolution_backward.default: _convolution_backward}
