"""The gradient of the logarithm of the sigmoid, whose factors PyTorch's decomposition writes as integers."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def log_sigmoid_backward(grad_output: Tensor, input: Tensor, buffer: Tensor) -> Tensor:
    """grad_output * sigmoid(-input), as PyTorch computes it; the buffer is a CPU's and not needed."""
    power = (-input.abs()).exp()
    part = power / (1 + power)
    return grad_output * torch.where(input < 0, 1 - part, part)


DECOMPOSITIONS = {aten.log_sigmoid_backward.default: log_sigmoid_backward}
