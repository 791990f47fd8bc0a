"""Cross entropy with class indices, as the compiler decomposes it (decompositions/nll_loss.py)."""

import functools

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

import torch_reformer  # noqa: F401  registers the operators
from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def loss_and_gradient(function, scores, *others):
    scores = scores.detach().requires_grad_()
    loss = function(scores, *others)
    return loss.detach(), *torch.autograd.grad((loss * loss).sum(), scores)


SCORES, CLASSES = torch.randn(70, 33, dtype=torch.float64), torch.randint(33, (70,))
CLASSES[::5] = -100
CLASSES[::7] = 32  # the last class
WEIGHT = torch.rand(33, dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "options",
    [{}, {"label_smoothing": 0.1}, {"ignore_index": 32}, {"weight": WEIGHT}],
    ids=["plain", "smooth", "ignored", "weighted"],
)
def test_cross_entropy(options, reduction):
    classes = CLASSES.clamp(0) if "ignore_index" in options else CLASSES

    def loss(scores, classes):
        return F.cross_entropy(scores, classes, reduction=reduction, **options)

    found = loss_and_gradient(torch.compile(loss, backend=reformer), SCORES, classes)
    torch.testing.assert_close(found, loss_and_gradient(loss, SCORES, classes), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("options", [{}, {"ignore_index": 4}], ids=["plain", "ignored"])
def test_cross_entropy_of_pixels(options, format, reduction):
    scores = torch.randn(3, 5, 6, 7, dtype=torch.float64).to(memory_format=format)
    classes = torch.randint(5, (3, 6, 7))
    classes[:, 2] = 4 if options else -100

    def loss(scores, classes):
        return F.cross_entropy(scores * 2, classes, reduction=reduction, **options)

    reports = []
    compiled = torch.compile(loss, backend=reformer, options={"report": reports.append})
    found = loss_and_gradient(compiled, scores, classes)
    torch.testing.assert_close(found, loss_and_gradient(loss, scores, classes), rtol=1e-11, atol=1e-13)
    assert "nll_loss" not in "".join(map(str, reports))


def test_nothing_to_guess_is_no_number():
    ignored = torch.full((70,), -100)
    assert torch.compile(F.cross_entropy, backend=reformer)(SCORES, ignored).isnan()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("wrong", [33, -1, -2, 2**25 + 1])
def test_a_class_that_is_not_there(wrong, reduction):
    """The error names the first wrong target, as in PyTorch."""
    classes = CLASSES.clamp(0)
    classes[3], classes[7] = wrong, 1000
    loss = functools.partial(F.cross_entropy, reduction=reduction)
    for each in (loss, torch.compile(loss, backend=reformer)):
        with pytest.raises(IndexError, match=f"^Target {wrong} is out of bounds"):
            each(SCORES, classes)


def test_one_pass_a_way():
    """In each pass exactly one kernel, of the plan's own, reads or writes all scores."""
    reports = []

    def loss(scores, classes):
        return F.cross_entropy(scores, classes)

    function = torch.compile(loss, backend=reformer, options={"report": reports.append})
    loss_and_gradient(function, SCORES, CLASSES)
    large = [[line for line in report.lines if line.read + line.written >= SCORES.nbytes] for report in reports]
    assert [line.kind for lines in large for line in lines] == ["stitch", "stitch"]
