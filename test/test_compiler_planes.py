"""Reductions and operands per channel map (plane): group norm, squeeze and excitation."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

import torch_reformer  # noqa: F401  registers the operators

pytestmark = needs_aten
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def results(function, *tensors):
    """Result and gradients of a function."""
    tensors = [each.detach().requires_grad_() for each in tensors]
    result = function(*tensors)
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad((result * weights).sum(), tensors)]


def compiled(function, reports=None):
    torch._dynamo.reset()
    options = None if reports is None else {"report": reports.append}
    return torch.compile(function, backend="reformer", options=options)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 3, 12])
def test_group_norm(groups, affine, layout):
    torch.manual_seed(0)
    x = (torch.randn(3, 12, 8, 9, dtype=torch.float64) + 2).contiguous(memory_format=FORMATS[layout])
    parameters = [torch.randn(12, dtype=torch.float64) for _ in range(2 * affine)]

    def function(x, *parameters):
        return F.silu(F.group_norm(x, groups, *parameters))

    reports = []
    found, expected = (results(each, x, *parameters) for each in (compiled(function, reports), function))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert {line.kind for report in reports for line in report.lines} == {"stitch"}


@pytest.mark.parametrize(
    "size", [(4, 6), (4, 6, 1), (4, 6, 33), (1, 6, 4, 5, 3), (4, 6, 1, 1), (0, 6, 5), (0, 6), (4, 6, 0)], ids=str
)
def test_group_norm_of_other_dimensions(size):
    """Newer torches refuse maps without pixels."""
    x, scale, shift = (torch.randn(each, dtype=torch.float64) for each in (size, (6,), (6,)))

    def function(x, scale, shift):
        return F.group_norm(x, 2, scale, shift)

    try:
        expected = results(function, x, scale, shift)
    except RuntimeError:
        assert size[-1] == 0
        with pytest.raises(RuntimeError, match="Expected HxW to be greater than 0"):
            results(compiled(function), x, scale, shift)
        return
    for one, other in zip(results(compiled(function), x, scale, shift), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("groups", [1, 4])
def test_group_norm_of_tokens(groups):
    """Groups are rows, which one kernel reads once, forward; so exact for large means, too."""
    torch.manual_seed(0)
    x, scale, shift = torch.randn(96, 32) + 1000, torch.randn(32), torch.randn(32)

    def function(x, scale, shift):
        return F.silu(F.group_norm(x, groups, scale, shift))

    reports: list = []
    exact = results(function, *(each.double() for each in (x, scale, shift)))
    found, eager = (results(each, x, scale, shift) for each in (compiled(function, reports), function))
    for one, other, wide in zip(found, eager, exact, strict=True):
        assert (one - wide).norm() <= 2 * (other - wide).norm() + 1e-6 * wide.norm()
    assert [line.kind for line in reports[0].lines] == ["stitch"]
    assert {line.kind for line in reports[1].lines} == {"stitch"}


def test_group_norm_of_bfloat16():
    """Errors are about as small as PyTorch's, which rounds statistics of groups."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 12, 12).to(torch.bfloat16)
    scale, shift = torch.randn(2, 16).to(torch.bfloat16)

    def function(x, scale, shift):
        return F.group_norm(x, 4, scale, shift)

    exact = results(function, *(each.double() for each in (x, scale, shift)))
    found, eager = (results(each, x, scale, shift) for each in (compiled(function), function))
    for one, other, wide in zip(found, eager, exact, strict=True):
        assert (one.double() - wide).norm() <= 1.1 * (other.double() - wide).norm()


class SqueezeAndExcitation(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.reduce, self.expand = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x):
        x = F.silu(self.norm(x))
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True)))))


@pytest.mark.parametrize("layout", FORMATS)
def test_squeeze_and_excitation(layout):
    torch.manual_seed(0)
    model = SqueezeAndExcitation(32).double()
    x = torch.randn(4, 32, 14, 14, dtype=torch.float64).contiguous(memory_format=FORMATS[layout])
    names = [name for name, _ in model.named_parameters()]

    def function(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,))

    reports = []
    found, expected = (results(each, x, *model.parameters()) for each in (compiled(function, reports), function))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    # One kernel computes activation and mean; PyTorch's operators compute only vectors.
    for report in reports:
        assert all(line.read + line.written < x.nbytes for line in report.lines if line.kind.startswith("aten"))


@pytest.mark.parametrize("reduce", [torch.sum, torch.mean, torch.amax], ids=lambda each: each.__name__)
@pytest.mark.parametrize("size", [(3, 40, 24), (2, 5, 7), (600, 2, 3)], ids=str)
def test_the_middle_dimension(size, reduce):
    x = torch.randn(size, dtype=torch.float64)
    found = compiled(lambda x: reduce(x * 2, 1) + 1)(x)
    torch.testing.assert_close(found, reduce(x * 2, 1) + 1)
