"""Weight standardisation of filters in channels_last, whose rows are flattened in the order of memory."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from test_compiler_image_orders import COPY, check, step

pytestmark = needs_aten


def by_batch_norm(weight, gain):
    """As timm's ScaledStdConv2d."""
    rows = weight.reshape(1, len(weight), -1)
    return F.batch_norm(rows, None, None, gain.view(-1), training=True, momentum=0.0).reshape_as(weight)


def by_moments(weight, gain):
    rows = weight.flatten(1)
    variance, mean = torch.var_mean(rows, 1, keepdim=True)
    return ((rows - mean) * torch.rsqrt(variance + 1e-5) * gain.view(-1, 1)).view_as(weight)


def by_norm(weight, gain):
    """As torch.nn.utils.parametrizations.weight_norm, of rows."""
    rows = weight.flatten(1)
    return (rows * (gain.view(-1, 1) / rows.norm(dim=1, keepdim=True))).view_as(weight)


def filters(*sizes):
    format = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
    return torch.randn(sizes, dtype=torch.float64).contiguous(memory_format=format)


def lines_of(function, tensors):
    reports: list = []
    check(function, tensors, reports)
    return [line for report in reports for line in report.lines]


@pytest.mark.parametrize("standardised", [by_batch_norm, by_moments, by_norm])
@pytest.mark.parametrize("size", [(3, 3), (1, 5), (5, 1)], ids=str)
def test_filters_are_not_copied(standardised, size):
    """Those of a convolution, whose gradients are in channels_last, too."""
    tensors = filters(2, 4, 6, 6), filters(6, 4, *size), torch.randn(6, 1, 1, 1, dtype=torch.float64)
    lines = lines_of(lambda x, weight, gain: F.conv2d(x, standardised(weight, gain)), tensors)
    assert COPY not in [line.kind for line in lines]


@pytest.mark.parametrize("standardised", [by_batch_norm, by_moments, by_norm])
@pytest.mark.parametrize("size", [(6, 4, 3, 3), (6, 4, 1, 5), (6, 3, 2, 3, 2)], ids=str)
def test_other_uses(standardised, size):
    """Gradients in PyTorch's order, and results of the graph."""
    tensors = filters(*size), torch.randn(6, *[1] * (len(size) - 1), dtype=torch.float64)
    lines_of(lambda weight, gain: standardised(weight, gain).exp().sum((0, 1)), tensors)
    lines_of(standardised, tensors)


@pytest.mark.parametrize(
    "of_rows",
    [
        lambda rows: rows.cumsum(1),
        lambda rows: rows * torch.linspace(0, 1, rows.shape[1], dtype=rows.dtype),
        lambda rows: rows.softmax(0) + rows[:, :1],
        lambda rows: rows[:, 3:],
        lambda rows: rows @ rows.t(),
        lambda rows: rows.view(-1, 4, 9).sum(2),
        lambda rows: rows.argmax(1, keepdim=True) * rows,
        lambda rows: rows.flip(1),
        lambda rows: rows.sum(0),
        lambda rows: rows,
        lambda rows: rows * rows.t().contiguous().t(),
    ],
)
def test_other_rows_keep_their_order(of_rows):
    """Operations that need a row's elements in PyTorch's order get them so."""
    check(lambda weight: of_rows(weight.flatten(1).sin()) * 2, [filters(6, 4, 3, 3)])


def test_two_orders():
    """Rows of filters in channels_last beside rows of contiguous ones, and results of the graph."""

    def function(weight, other):
        rows, others = weight.flatten(1).sin(), other.flatten(1).sin()
        return (rows * others).view_as(weight), (rows - rows.mean(1, keepdim=True)).view_as(weight)

    def whole(weight, other):
        return torch.cat(function(weight, other))

    check(whole, [filters(6, 4, 3, 3), torch.randn(6, 4, 3, 3, dtype=torch.float64)])


def test_contiguous_images():
    """A convolution of contiguous images has a contiguous result, also where its filters would be in channels_last."""
    tensors = torch.randn(2, 4, 6, 6, dtype=torch.float64), filters(6, 4, 3, 3), torch.randn(6, dtype=torch.float64)
    check(lambda x, weight, gain: F.conv2d(x, by_batch_norm(weight, gain)), tensors)


def test_special_values():
    weight = filters(6, 4, 3, 3)
    weight[0, 0, 0, 0], weight[1, 1, 1, 1], weight[2] = torch.nan, torch.inf, 0.0
    function = lambda weight: by_moments(weight, torch.ones(6, dtype=weight.dtype))  # noqa: E731
    (actual, (gradient,)), (expected, (other,)) = step(function, [weight], []), step(function, [weight])
    assert actual.stride() == expected.stride()
    torch.testing.assert_close((actual, gradient), (expected, other), equal_nan=True)
