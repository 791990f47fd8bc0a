"""Memory formats that the compiler chooses (joint_graph/propagate_memory_format.py); results of graphs keep theirs."""

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.compiler import backend

pytestmark = needs_aten


def images_and_repeated_elements(x, small):
    """A sum that would be computed by PyTorch if the product of repeated elements stayed contiguous."""
    return x + small.expand(x.shape) * 2


def test_what_is_next_to_images_lies_as_they_do():
    reports = []
    x, small = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 1, 1)
    torch._dynamo.reset()
    run = torch.compile(images_and_repeated_elements, backend=backend.reformer, options={"report": reports.append})
    torch.testing.assert_close(run(x, small), images_and_repeated_elements(x, small))
    assert not [line for line in reports[0].lines if line.kind.startswith("aten::")]


@pytest.mark.parametrize(
    "seen",
    [
        lambda t: t,
        lambda t: t.view(2, -1),
        lambda t: t.as_strided((2, 60), (60, 1)),
        lambda t: t.permute(3, 2, 1, 0).contiguous(),
        lambda t: t[1:, :, 2:],
        lambda t: nn.functional.scaled_dot_product_attention(t, t, t),
        lambda t: t.cumsum(1),
        lambda t: t.cumsum(2),
    ],
)
def test_results_lie_as_they_did(seen):
    def function(x, small):
        product = small.expand(x.shape) * 2
        return x + product, seen(product)

    torch._dynamo.reset()
    x, small = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(2, 3, 1, 1)
    found, expected = torch.compile(function, backend=backend.reformer)(x, small), function(x, small)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("size", [(6, 4, 1, 5), (6, 4, 5, 1), (1, 4, 3, 2), (6, 1, 3, 5)], ids=str)
def test_flattened_axes_of_one_element(size):
    """A copy that a view needs stays, although fake tensors give a view without it."""

    def function(x):
        return x.flatten(1).exp().view_as(x).sum((0, 1))

    x = torch.randn(size).contiguous(memory_format=torch.channels_last)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend=backend.reformer)(x), function(x))
