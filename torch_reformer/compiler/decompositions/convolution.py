"""Decompositions of convolutions and their gradients, which have the same many arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class Numbers(NamedTuple):
    """A convolution's arguments that are no tensors, in the operators' order."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


def decompositions_of(forward: Callable, backward: Callable) -> dict:
    """The two, by functions that give what PyTorch's operators give, or NotImplemented: forward(input, weight, bias,
    numbers), and backward(grad, input, weight, sizes of the bias, numbers, which gradients are wanted)."""

    def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers):
        return forward(input, weight, bias, Numbers(*numbers))

    def gradients(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, *rest):
        *numbers, wanted = rest
        return backward(grad, input, weight, bias_sizes, Numbers(*numbers), wanted)

    return {aten.convolution.default: convolution, aten.convolution_backward.default: gradients}
