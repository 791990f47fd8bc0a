"""Transposed tensors, parts of tensors and repeated rows in plans."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import differences
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.ir.kernel_limits import MOST_STRIDED

pytestmark = needs_aten


def reports_of(function, *inputs) -> list:
    """Reports of a function's plans; checks that results are PyTorch's, and share no memory with the inputs."""
    torch._dynamo.reset()
    reports = []
    found = torch.compile(function, backend=reformer, options={"report": reports.append})(*inputs)
    expected = function(*inputs)
    for one, other in zip(
        *([each] if isinstance(each, torch.Tensor) else each for each in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert one.stride() == other.stride() and one.dtype == other.dtype
        own = [one.untyped_storage().data_ptr() != each.untyped_storage().data_ptr() for each in inputs]
        assert all(own)
    return reports


SMALL = torch.randn(8, 16)
ROWS = torch.randn(512, 8, 8, 8)
OPERANDS = {
    "as many elements as rows": (lambda x, b: x * (b[:, :8] * 2).reshape(64) + 1, torch.randn(64, 64)),
    "fewer elements than rows": (lambda x, b: x * (b[:, :8] * 2).reshape(64) + 1, torch.randn(100, 64)),
    "one a row": (lambda x, b: x.view(8, 8, 24) * ((b[:, 0] * 2)[:, None].expand(8, 24) * 1.5), torch.randn(8, 192)),
    "every other one": (lambda x, b: x * b[:, ::2].sin()[:, None], torch.randn(8, 64, 8)),
    "transposed": (lambda x, b: (x + b.t()[:8].sin()).softmax(-1), torch.randn(64, 8, 8)),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_parts_of_few_elements(name):
    """Functions of few elements are computed again by each reader, although the elements are not adjacent."""
    function, x = OPERANDS[name]
    reports_of(function, x, SMALL)


def test_vectors_that_are_numbers_of_rows():
    """A group's vector of channels stays one, although random numbers need a space in which it is one of rows."""

    def function(scores):
        dead = scores.ne(-torch.inf).any(-1, keepdim=True).logical_not()
        return F.dropout(torch.where(dead, 0.0, scores.softmax(-1)), 0.5), dead

    torch._dynamo.reset()
    scores = torch.randn(4, 12, 128, 128, requires_grad=True)
    found, dead = torch.compile(function, backend=reformer)(scores)
    found.sum().backward()
    assert not dead.any() and scores.grad.isfinite().all()
    survived = found != 0
    assert 0.4 < survived.float().mean() < 0.6
    torch.testing.assert_close(found, 2 * scores.softmax(-1) * survived)


class Turned(nn.Module):
    """A block of a transformer between layers whose tensors have the sequence as their first dimension."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(32), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x):
        inside = self.first(self.norm(x).transpose(0, 1).contiguous()).tanh()
        return x + self.second(inside).transpose(0, 1)


def test_other_orders_are_no_copies():
    """The norm's kernel writes the order that the product needs; the sum's kernel reads the product's order; kernels
    of the backward do so, too."""
    reports = []
    torch._dynamo.reset()
    model, x = Turned(), torch.randn(6, 5, 32, requires_grad=True)
    run = torch.compile(model, backend=reformer, options={"report": reports.append})
    results = {}
    for name, call in (("ours", run), ("eager", model)):
        found = call(x)
        gradients = torch.autograd.grad(found.square().sum(), [x, *model.parameters()])
        results[name] = [found, *gradients]
    for one, other in zip(results["ours"], results["eager"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    forward, backward = [[line.kind for line in each.lines] for each in reports]
    assert forward == ["stitch", "aten::addmm", "stitch", "aten::addmm", "stitch"]
    assert "reformer::_contiguous" not in backward and backward.count("stitch") <= 5


def fuse_transposes(tensor):
    return tensor.permute(0, 2, 1, 3).contiguous()


def test_copies():
    """A copy is written by the kernel that computes its source. The sum of its columns needs no copy in memory."""
    x = torch.randn(2, 6, 40, 32)
    (report,) = reports_of(lambda x: (x * 2, fuse_transposes(x * 2)), x)
    assert len(report.lines) == 1
    (report,) = reports_of(lambda x: fuse_transposes(x * 2).sum((0, 1, 2)), x)
    assert len(report.lines) == 1 and report.bytes == x.nbytes + 4 * 32


def test_copies_of_copies():
    def function(x):
        first = fuse_transposes(x * 2 + 1)
        second = first.permute(2, 0, 1, 3).contiguous()
        return first, second, second.permute(1, 0, 2, 3).contiguous(), second.sum((0, 1, 2))

    reports_of(function, torch.randn(2, 6, 40, 32))


def test_more_copies_than_a_kernel_takes():
    orders = [(0, 2, 1, 3), (1, 0, 2, 3), (1, 2, 0, 3), (2, 0, 1, 3), (2, 1, 0, 3)]

    def function(x):
        return [copied for i in range(3) for copied in ((x * (i + 2)).permute(each).contiguous() for each in orders)]

    for report in reports_of(function, torch.randn(3, 5, 40, 16)):
        assert all(sum(each.startswith("clone") for each in line.operations) <= MOST_STRIDED for line in report.lines)


SCATTERS = {
    "all": lambda into, of: torch.as_strided_scatter(into, of, (4, 6), (6, 1)),
    "another type": lambda into, of: torch.as_strided_scatter(into, of.double(), (4, 6), (6, 1)),
    "of a part": lambda into, of: torch.as_strided_scatter(into.flatten()[8:12], of[0, :4], (4,), (1,), 0),
    "transposed": lambda into, of: torch.as_strided_scatter(into, of.t() * 2, (6, 4), (1, 6)),
    "written later": lambda into, of: torch.as_strided_scatter(into, of, (4, 6), (6, 1)).add_(1),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scattered_over_all(name):
    reports_of(SCATTERS[name], torch.zeros(4, 6), torch.randn(4, 6))


def check_contiguous(tensor):
    found = torch.ops.reformer._contiguous(tensor)
    assert found.is_contiguous() and torch.equal(found, tensor)
    assert found.numel() == 0 or found.data_ptr() != tensor.data_ptr()


TURNED = [((2, 64, 56, 56), (0, 2, 3, 1)), ((2, 56, 56, 64), (0, 3, 1, 2)), ((70, 33), (1, 0)), ((5, 3), (0, 1))]


@pytest.mark.parametrize(("size", "order"), TURNED)
def test_the_operator_copies(size, order):
    check_contiguous(torch.randn(size).permute(order))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.bool], ids=str)
@pytest.mark.parametrize(("size", "order"), [*TURNED, ((3, 0, 4), (2, 1, 0)), ((4, 3, 700, 5, 48), (1, 4, 0, 3, 2))])
def test_the_operator_copies_on_a_gpu(size, order, dtype):
    tensor = torch.randn(size, device="cuda").to(dtype).permute(order)
    check_contiguous(tensor)
    check_contiguous(tensor[..., 1:])


def test_repeated_elements_of_a_gradient():
    """A sum in another order of memory changes what its gradient repeats, but not the gradient's strides."""
    x = torch.randn(3, 4, 5).permute(2, 1, 0).requires_grad_()

    def function(x):
        sums = x.sum(2)
        return torch.where(sums > 0, sums, sums)

    assert not differences(function, (x,))
