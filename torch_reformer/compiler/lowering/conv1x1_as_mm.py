"""Convolutions of images of one pixel, as in squeeze-and-excitation blocks, as the matrix products that they are: for
these few bytes a convolution of the vendor's costs the host several times as much."""

from __future__ import annotations

import torch
from torch import Tensor

from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of, typed
from ..ir.graph import Call, Graph, Typed, View
from ..ir.layout import Layout

aten = torch.ops.aten


def is_product(input: View, weight: View, stride, padding, dilation, transposed: bool, groups: int) -> bool:
    types = {input.value.dtype, weight.value.dtype}
    if transposed or groups != 1 or len(types) > 1 or not types <= set(FLOATS) or any(padding):
        return False
    sizes = input.layout.sizes, weight.layout.sizes
    return all(len(each) == 4 and each[2:] == (1, 1) and each[0] * each[1] for each in sizes)


def convolution(graph: Graph, value: Tensor, input: View, weight: View, bias: View | None) -> View:
    operands = (_matrix(input), _transposed(_matrix(weight)))
    if bias is None:
        return _product(graph, aten.mm.default, operands, value)
    return _product(graph, aten.addmm.default, (bias, *operands), value)


def gradients(graph: Graph, values, grad: View, input: View, weight: View, wanted) -> list[View | None]:
    """Those of input and weight, where they are wanted."""
    grad = _matrix(grad)
    operands = (grad, _matrix(weight)), (_transposed(grad), _matrix(input))
    return [
        _product(graph, aten.mm.default, each, value) if want else None
        for value, want, each in zip(values, wanted, operands, strict=True)
    ]


def _matrix(view: View) -> View:
    layout = view.layout
    return View(view.value, Layout(layout.sizes[:2], layout.strides[:2], layout.offset))


def _transposed(view: View) -> View:
    layout = view.layout
    return View(view.value, Layout(layout.sizes[::-1], layout.strides[::-1], layout.offset))


def _product(graph: Graph, operator, operands: tuple[View, ...], value: Tensor) -> View:
    rows, columns = value.shape[:2]
    _, dtype, device = typed(value)
    (made,) = graph.add(Call(operator, operands, {}), [Typed(Layout((rows, columns), (columns, 1)), dtype, device)])
    layout, own = layout_of(value), Layout((rows, columns, 1, 1), (columns, 1, 1, 1))
    return View(made, layout if layout.matches(own) else own)
