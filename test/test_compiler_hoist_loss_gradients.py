"""Gradients of losses hoisted into the forward (joint_graph/hoist_loss_gradients.py), and the operator that scales
them."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler.joint_graph import hoist_loss_gradients

pytestmark = needs_aten
ROWS, CLASSES = 300, 70


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function):
    """The compiled function, and the list that reports of its forward and backward are added to as texts."""
    reports = []
    options = {"report": lambda report: reports.append(str(report))}
    return torch.compile(function, backend="reformer", options=options), reports


def gradients(function, tensors, factor=1.0):
    """The loss, and the gradients of its product with a factor from outside the graph."""
    tensors = [each.detach().requires_grad_() for each in tensors]
    loss = function(*tensors)
    return loss.detach(), *torch.autograd.grad(loss, tensors, torch.full_like(loss, factor))


def is_early(reports):
    return "_scale_" in reports[1] and "_scale_" not in reports[0]


def cross_entropy(x):
    return F.cross_entropy(x, torch.arange(ROWS) % CLASSES, label_smoothing=0.1)


def binary(x):
    return F.binary_cross_entropy_with_logits(x, (torch.arange(x.numel()) % 3 == 0).to(x.dtype).view(x.shape))


def with_layer(x):
    weight = torch.linspace(-1, 1, 90 * CLASSES, dtype=x.dtype).view(90, CLASSES)
    return F.cross_entropy(x @ weight.t(), torch.arange(ROWS) % 90)


def squares(x):
    return (x - 1).square().mean()


def two_losses(x):
    return cross_entropy(x) + 2 * squares(x)


@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("loss", [cross_entropy, binary, with_layer, squares, two_losses])
def test_gradients(loss, factor):
    x = torch.randn(ROWS, CLASSES, dtype=torch.float64)
    function, reports = compiled(loss)
    for found, expected in zip(gradients(function, [x], factor), gradients(loss, [x], factor), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)
    assert is_early(reports)


def labels_with_bias(x, bias):
    return binary(F.linear(x, torch.linspace(-1, 1, 170 * CLASSES, dtype=x.dtype).view(170, CLASSES), bias))


def classes_with_bias(x, bias):
    scores = F.linear(x, torch.linspace(-1, 1, 170 * CLASSES, dtype=x.dtype).view(170, CLASSES), bias)
    return F.cross_entropy(scores, torch.arange(ROWS) % 170)


@pytest.mark.parametrize("factor", [1.0, 0.3])
@pytest.mark.parametrize("longest", [4096, 128], ids=["short rows", "long rows"])
@pytest.mark.parametrize("loss", [labels_with_bias, classes_with_bias])
def test_sums_over_rows(loss, longest, factor, monkeypatch):
    """Sums of a hoisted gradient over rows are hoisted with it if one kernel can compute both."""
    monkeypatch.setattr(hoist_loss_gradients, "LONGEST_ROW", longest)
    x, bias = torch.randn(ROWS, CLASSES, dtype=torch.float64), torch.randn(170, dtype=torch.float64)
    function, reports = compiled(loss)
    for _ in range(2):
        found, expected = (gradients(each, [x, bias], factor) for each in (function, loss))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)
    assert is_early(reports)
    assert ("sum" in reports[1]) is (loss is classes_with_bias and longest == 128)


def test_each_loss_has_its_own():
    x, y = (torch.randn(ROWS, CLASSES, dtype=torch.float64) for _ in range(2))

    def losses(x, y):
        return cross_entropy(x), squares(y)

    def results(function):
        given = [each.detach().requires_grad_() for each in (x, y)]
        one, other = function(*given)
        return torch.autograd.grad(3 * one - other, given)

    function, reports = compiled(losses)
    torch.testing.assert_close(results(function), results(losses), rtol=1e-11, atol=1e-14)
    assert reports[1].count("_scale_") == 2


def test_equal_gradients_of_two_losses():
    """Each is scaled by the gradient of its own loss."""
    x, a, b, factor = (torch.randn(200, 70, dtype=torch.float64) for _ in range(4))

    def losses(x, a, b):
        return ((x * a) * factor).sum(), ((x * b) * factor).sum()

    def results(function):
        given = [each.detach().requires_grad_() for each in (x, a, b)]
        one, other = function(*given)
        return torch.autograd.grad(2 * one + 3 * other, given)

    torch.testing.assert_close(results(compiled(losses)[0]), results(losses), rtol=1e-11, atol=1e-12)


def test_a_result_that_is_the_gradient():
    """The result keeps its value when the gradient is scaled in place."""
    x = torch.randn(200, 70, dtype=torch.float64)

    def both(x):
        return x.square().sum(), 2 * x

    def results(function):
        given = x.detach().requires_grad_()
        loss, double = function(given)
        (grad,) = torch.autograd.grad(3 * loss, given)
        return grad, double.detach()

    torch.testing.assert_close(results(compiled(both)[0]), results(both), rtol=1e-11, atol=1e-12)


def test_compiled_autograd():
    x = torch.randn(ROWS, CLASSES, dtype=torch.float64, requires_grad=True)
    loss = compiled(cross_entropy)[0](x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="reformer")):
        (2 * loss).backward()
    torch.testing.assert_close(x.grad, gradients(cross_entropy, [x], 2.0)[1], rtol=1e-11, atol=1e-14)


def test_rows_that_are_ignored_may_be_anything():
    x, classes = torch.randn(ROWS, CLASSES, dtype=torch.float64), torch.arange(ROWS) % CLASSES
    x[::7], classes[::7] = torch.nan, -100

    def loss(x):
        return F.cross_entropy(x, classes)

    found, expected = gradients(compiled(loss)[0], [x]), gradients(loss, [x])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-11, atol=1e-14, equal_nan=True)


def test_scores_that_are_results_too():
    """The gradient of the returned scores is added to the loss's."""
    x = torch.randn(ROWS, CLASSES, dtype=torch.float64)

    def both(x):
        scores = x.sin()
        return cross_entropy(scores), scores

    def results(function):
        given = x.detach().requires_grad_()
        loss, scores = function(given)
        return torch.autograd.grad(loss + scores.square().sum(), given)

    torch.testing.assert_close(results(compiled(both)[0]), results(both), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype, is_moved", [(torch.bfloat16, True), (torch.float16, False)], ids=str)
def test_half_precision(dtype, is_moved):
    """fp16 gradients, which might underflow before they are scaled, are not hoisted."""
    x = torch.randn(ROWS, CLASSES).to(dtype)
    function, reports = compiled(cross_entropy)
    found, expected = (gradients(each, [x], 4.0)[1] for each in (function, cross_entropy))
    exact = gradients(cross_entropy, [x.double()], 4.0)[1]
    assert is_early(reports) == is_moved
    assert (found - exact).norm() <= 1.5 * (expected - exact).norm()


def test_norms_stay():
    """Gradients that batch norm's backward reads, which are no operands of matrix products, are not hoisted."""
    function, reports = compiled(lambda x, w: F.batch_norm(x, None, None, w, training=True).relu().square().mean())
    gradients(function, [torch.randn(8, 16, 12, 12), torch.rand(16)])
    assert not is_early(reports)


def test_what_is_recomputed_stays():
    x = torch.randn(ROWS, CLASSES, dtype=torch.float64)

    def loss(x):
        return checkpoint(cross_entropy, x, use_reentrant=False)

    function, reports = compiled(loss)
    torch.testing.assert_close(gradients(function, [x]), gradients(loss, [x]), rtol=1e-11, atol=1e-14)
    assert not is_early(reports)


@pytest.mark.parametrize("donated", [True, False])
def test_a_second_backward(donated):
    """A gradient can be scaled in place only once: it is copied if the graph is retained."""
    x = torch.randn(ROWS, CLASSES, requires_grad=True)
    with torch._functorch.config.patch(donated_buffer=donated):
        function, reports = compiled(cross_entropy)
        loss = 3 * function(x)
        loss.backward(retain_graph=True)
        loss.backward()
    assert is_early(reports) == donated
    torch.testing.assert_close(x.grad, 6 * gradients(cross_entropy, [x])[1])


def test_training():
    """With scaled losses, as in gradient accumulation, training follows PyTorch's."""

    def losses(wrap):
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 500)).double()
        step = wrap(lambda x, y: F.cross_entropy(model(x), y))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        found = []
        for i in range(12):
            x = torch.randn(40, 20, dtype=torch.float64)
            loss = step(x, (x.sum(1).abs() * 20).long())
            (loss / 4).backward()
            found.append(loss.item())
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return found

    assert losses(lambda step: compiled(step)[0]) == pytest.approx(losses(lambda step: step), rel=1e-10)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(7,), (64, 65), (3, 8, 40)], ids=str)
@pytest.mark.parametrize("of_factor", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_scale(dtype, of_factor, size, device):
    x = torch.randn(size, device=device).to(dtype)
    x.view(-1)[0] = torch.nan
    for factor in (1.0, 0.0, -2.5, torch.inf):
        factor = torch.tensor(factor, dtype=of_factor, device=device)
        found = x.clone()
        result = torch.ops.reformer._scale_(found, factor)
        assert result.data_ptr() == found.data_ptr()
        torch.testing.assert_close(found, x * factor, equal_nan=True)


def test_scale_says_what_is_wrong():
    x = torch.randn(4)
    with pytest.raises(RuntimeError, match=r"_scale_: factor has size \[2\], which is not one element"):
        torch.ops.reformer._scale_(x, x[:2])
    assert torch.ops.reformer._scale_(x[:0], x[0]).numel() == 0
