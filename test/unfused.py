"""Fused operators as separate operations of PyTorch, and the comparison of the two."""

import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def _plus(value, residual):
    return value if residual is None else value + residual


def conv2d_act(x, w, bias=None, *geometry, activation="relu", residual=None):
    return ACTIVATIONS[activation](_plus(torch.conv2d(x, w, bias, *geometry), residual))


def conv2d_batch_norm_act(
    x, w, bias, mean, var, norm_weight=None, norm_bias=None, *, training, activation="relu", residual=None, eps=1e-5
):
    value = torch.conv2d(x, w, bias)
    value = F.batch_norm(value, mean, var, norm_weight, norm_bias, training, 0.1, eps)
    return ACTIVATIONS[activation](_plus(value, residual))


def linear_act(x, w, bias=None, *, activation="relu", residual=None):
    return _plus(ACTIVATIONS[activation](F.linear(x, w, bias)), residual)


class ConvNormAct(nn.Module):
    """nn.Conv2dBatchNormAct in PyTorch's modules."""

    def __init__(self, *arguments, activation="relu", bias=False, geometry=(), **norm):
        super().__init__()
        self.conv = nn.Conv2d(*arguments, *geometry, bias=bias)
        self.norm = nn.BatchNorm2d(arguments[1], **norm)
        self.activation = activation

    def forward(self, x, residual=None):
        return ACTIVATIONS[self.activation](_plus(self.norm(self.conv(x)), residual))


def with_gradients(function, tensors: dict, wanted=None):
    """The result and all tensors' gradients, for a result gradient made from the result's size."""
    tensors = {name: t.detach().requires_grad_(wanted is None or name in wanted) for name, t in tensors.items()}
    result = function(**tensors)
    weights = torch.sin(torch.arange(result.numel(), dtype=torch.float64)).view(result.shape).to(result.dtype)
    differentiated = [t for t in tensors.values() if t.requires_grad]
    return [result.detach(), *torch.autograd.grad(result, differentiated, weights)]


def shuffled(tensor):
    """Other numbers of the same kind: the tensor's elements in another order, in its memory format."""
    return torch.empty_like(tensor).copy_(tensor.flatten()[torch.randperm(tensor.numel())].view(tensor.shape))


def compare(ours, theirs, tensors: dict, wanted=None):
    """Compare results and gradients.

    In fp64 they are equal except for rounding. In other types the error, as a root of the mean square against fp64, is
    at most twice PyTorch's; below a fourth of eps no error can be told from exact. Among few numbers either error may
    be small by luck, so errors of several draws are added up.
    """
    got, expected = (with_gradients(function, tensors, wanted) for function in (ours, theirs))
    if got[0].dtype == torch.float64:
        return torch.testing.assert_close(got, expected)
    names = ["result", *(name for name in tensors if wanted is None or name in wanted)]
    squares = {name: torch.zeros(3, dtype=torch.float64) for name in names}  # ours, PyTorch's, of the numbers
    for _ in range(8 if min(t.numel() for t in got) < 200 else 1):
        exact = with_gradients(theirs, {name: t.double() for name, t in tensors.items()}, wanted)
        for name, g, e, x in zip(names, got, expected, exact, strict=True):
            assert (g.dtype, g.shape) == (e.dtype, e.shape), name
            squares[name] += torch.stack([(t.double() - y).square().sum() for t, y in ((g, x), (e, x), (x, 0 * x))])
        tensors = {name: shuffled(t) for name, t in tensors.items()}
        got, expected = (with_gradients(function, tensors, wanted) for function in (ours, theirs))
    for name, all_squares in squares.items():
        mine, others, unit = all_squares.sqrt() * torch.tensor([1, 1, torch.finfo(got[0].dtype).eps])
        assert mine <= 2 * others + unit / 4, f"{name}: error {mine / unit:.2f} eps, PyTorch's {others / unit:.2f}"
