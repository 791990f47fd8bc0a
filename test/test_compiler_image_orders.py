"""Memory formats of images and gradients: which tensors plans copy to other formats."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten
COPY = "reformer::_contiguous"


def step(function, tensors, reports=None):
    """The result, and the gradients as autograd hands them to hooks of inputs, before it changes their strides."""
    torch._dynamo.reset()
    tensors = [each.detach().requires_grad_() for each in tensors]
    grads = {}
    for i, each in enumerate(tensors):
        each.register_hook(lambda grad, i=i: grads.__setitem__(i, grad))
    if reports is not None:
        function = torch.compile(function, backend=reformer, options={"report": reports.append})
    result = function(*tensors)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    (result * weights).sum().backward()
    return result.detach(), [grads[i] for i in range(len(tensors))]


def check(function, tensors, reports=None):
    """Check that results, their strides and gradients are PyTorch's; return our gradients."""
    result, found = step(function, tensors, [] if reports is None else reports)
    expected, others = step(function, tensors)
    assert result.stride() == expected.stride()
    for one, other in zip((result, *found), (expected, *others), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    return found


def randn(*size):
    return torch.randn(*size, dtype=torch.float64)


def images(*size):
    return randn(*size).contiguous(memory_format=torch.channels_last)


def counts(reports, kind) -> list[int]:
    return [sum(line.kind == kind for line in each.lines) for each in reports]


@pytest.mark.parametrize(
    "x", [images(2, 8, 6, 6), randn(24, 16).t(), randn(4, 6, 8).permute(2, 0, 1), randn(4, 6)], ids=lambda x: x.dim()
)
def test_gradients_have_the_order_of_their_inputs(x):
    """Gradients have their inputs' strides even if they are computed in row-major order."""
    (found,) = check(lambda x: (x.contiguous().tanh() + 1).square(), [x])
    assert found.stride() == x.stride()


def test_gradients_in_an_inputs_order_are_no_copies():
    reports = []
    found = check(lambda x, y: x * y.tanh(), [images(2, 8, 6, 6), images(2, 8, 6, 6)], reports)
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in found)
    assert [len(each.lines) for each in reports] == [1, 1]


def test_gradients_of_what_is_repeated_are_left_alone():
    x, y = randn(6, 1).expand(6, 5), randn(5, 6)
    found = check(lambda x, y: x * y.t().contiguous(), [x, y])
    assert found[0].is_contiguous()


def test_a_gradient_of_two_inputs():
    """Both inputs have one gradient, each in its own strides."""
    x, y = images(2, 8, 6, 6), randn(2, 8, 6, 6)
    found = check(lambda x, y: (x.contiguous() + y).tanh(), [x, y])
    assert [each.stride() for each in found] == [x.stride(), y.stride()]


def test_casts_are_turned_while_they_are_narrow():
    """The bf16 gradient is transposed, and cast to fp32 by the kernel that reads it."""
    reports = []

    def function(x):
        return F.silu(x.contiguous().float() * 2).to(x.dtype)

    x = images(2, 8, 24, 24).to(torch.bfloat16)
    result, (grad,) = step(function, [x], reports)
    exact, (exact_grad,) = step(function, [x.double()])
    torch.testing.assert_close(result.double(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(grad.double(), exact_grad, rtol=2e-2, atol=2e-2)
    assert result.is_contiguous() and grad.stride() == x.stride()
    assert [(len(each.lines), n) for each, n in zip(reports, counts(reports, COPY), strict=True)] == [(2, 1), (2, 1)]


def test_images_keep_their_order_before_convolutions():
    """A norm that calls contiguous() causes no transposes in a network in channels_last."""

    def function(x, weight):
        y = x.contiguous()
        mean = y.mean((2, 3), keepdim=True)
        return F.conv2d(F.silu((y - mean) * 2), weight, padding=1)

    reports = []
    x = images(2, 32, 24, 24)
    check(function, [x, images(8, 32, 3, 3)], reports)
    assert counts(reports, COPY) == [0, 0]


def test_results_are_brought_into_their_order_once():
    reports = []
    (found,) = check(lambda x: F.silu(x.contiguous() * 2) + 1, [images(2, 32, 24, 24)], reports)
    assert counts(reports, COPY) == [1, 1]  # the result, and its gradient
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_copy_alone():
    reports = []
    check(lambda x: x.contiguous(), [images(2, 32, 24, 24)], reports)
    assert [len(each.lines) for each in reports] == counts(reports, COPY) == [1, 1]


def test_images_that_are_needed_in_their_dimensions_order():
    """A matrix product whose rows are channel maps, and a sum with row-major tensors, need row-major images."""

    def product(x, weight):
        return x.contiguous().tanh().view(-1, 36) @ weight

    def sums(x, y, z):
        return (x.contiguous() * y).sum() + (x.contiguous() * z).sum()

    x, y = images(2, 8, 6, 6), randn(2, 8, 6, 6)
    reports = []
    check(product, [x, randn(36, 5)], reports)
    assert counts(reports, COPY)[0] == 1
    reports = []
    check(sums, [x, y, y * 2], reports)
    assert counts(reports, COPY)[0] == 1
