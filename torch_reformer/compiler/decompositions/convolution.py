"""Decompositions of convolutions and their gradients, which share their many arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

aten = torch.ops.aten


class Numbers(NamedTuple):
    """Arguments of a convolution that are no tensors, in the order of PyTorch's operators."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


def decompositions_of(forward: Callable, backward: Callable) -> dict:
    """Decompositions of aten.convolution and aten.convolution_backward by two functions.

    Args:
        forward: called as forward(input, weight, bias, numbers); gives the operator's result, or NotImplemented.
        backward: called as backward(grad, input, weight, bias_sizes, numbers, output_mask); gives the operator's three
            gradients, or NotImplemented.
    """

    def convolution(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers):
        return forward(input, weight, bias, Numbers(*numbers))

    def gradients(grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, *rest):
        *numbers, output_mask = rest
        return backward(grad, input, weight, bias_sizes, Numbers(*numbers), output_mask)

    return {aten.convolution.default: convolution, aten.convolution_backward.default: gradients}
