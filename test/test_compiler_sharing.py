"""Equal operations are shared, and operations on few elements share a kernel."""

import pytest
import torch
from marks import needs_aten

from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


def operations(function, *inputs) -> list[tuple[str, ...]]:
    """Operations of each kernel; results are compared with PyTorch's, and share no memory."""
    torch._dynamo.reset()
    reports, copies = [], [each.clone() for each in inputs]
    found = torch.compile(function, backend=reformer, options={"report": reports.append})(*inputs)
    expected = function(*copies)
    for one, other in zip((*found, *inputs), (*expected, *copies), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert len({each.untyped_storage().data_ptr() for each in found}) == len(found)
    return [line.operations for report in reports for line in report.lines]


def test_equal_operations_are_one():
    """Equal operations on different views, which AOTAutograd does not recognise."""
    x, y = torch.randn(300, 100), torch.randn(300, 100)
    twice = lambda x, y: ((x * y).exp() + (x.view(-1) * y.view(-1)).view(300, 100), x + y)  # noqa: E731
    (found,) = operations(twice, x, y)
    assert sum(each.startswith("mul") for each in found) == 1


def test_results_are_not_shared():
    operations(lambda x: (x * 2, (x.view(-1) * 2).view(300, 100), (x.view(-1) * 2).tanh()), torch.randn(300, 100))


def test_other_numbers_are_other_operations():
    """Operations with different constants, such as the factors of means, are not shared."""
    x = torch.randn(4, 6)
    operations(lambda x: (x[:, :1].mean(1) + x.mean(1), x.mean(1) * 3, x.clamp(-1, 1) + x.clamp(-1, 2)), x)


@pytest.mark.parametrize("of_input", [True, False])
def test_what_is_written_in_between(of_input):
    def function(x, y):
        first = x * 2
        into = x if of_input else first
        into.add_(y)
        return first + 0, (x.view(-1) * 2).view(30, 10)

    operations(function, torch.randn(30, 10), torch.randn(30, 10))


def test_few_elements_are_one_kernel():
    """Sums of unrelated tensors of equal size."""
    tensors = [torch.randn(16, 32) for _ in range(3)]
    assert len(operations(lambda *tensors: [each.exp().sum(0) for each in tensors], *tensors)) == 1


def test_one_that_needs_the_other_is_another_kernel():
    def function(x, y):
        sums = x.exp().sum(0)
        return sums, (y * sums).sum(0)

    assert len(operations(function, torch.randn(16, 32), torch.randn(16, 32))) == 2


def test_few_elements_of_other_types():
    operations(lambda x, y: (x.exp().sum(0), y.exp().sum(0)), torch.randn(16, 32), torch.randn(16, 32).double())


def test_copies_are_what_they_are_copies_of():
    """Copies are replaced by their sources, except results, which need their own memory."""
    (found,) = operations(lambda x: (x.clone().tanh() + 1, x.clone().exp()), torch.randn(300, 100))
    assert not [each for each in found if each.startswith("clone")]
    operations(lambda x: (x.clone(), x.clone(), x.tanh()), torch.randn(300, 100))


def test_copies_of_what_is_written_later():
    def function(x):
        before = x.clone()
        x.mul_(2)
        return before + 1, before * x

    operations(function, torch.randn(300, 100))
