"""Autocast: the operators behave as aten::conv2d does."""

import itertools

import pytest
import torch

import torch_reformer

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
CONVS = (torch.conv2d, torch_reformer.conv2d)


def outcome(conv, x, w, bias):
    """The result's data type, or that there is none."""
    try:
        return conv(x, w, bias).dtype
    except RuntimeError:
        return RuntimeError


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES, [None, *DTYPES])), ids=str)
def test_data_types_are_those_of_aten(dtypes, autocast):
    sizes = (2, 3, 5, 5), (4, 3, 3, 3), (4,)
    tensors = [dtype and torch.randn(size).to(dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        theirs, ours = (outcome(conv, *tensors) for conv in CONVS)
    assert ours == theirs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_keep_the_data_type_of_their_tensor(dtype):
    results = []
    for conv in CONVS:
        torch.manual_seed(0)
        x, w, bias = (torch.randn(s, requires_grad=True) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4,)))
        with torch.autocast("cpu", dtype):
            y = conv(x, w, bias)
        y.float().square().mean().backward()
        assert y.dtype == dtype
        assert all(t.grad.dtype == torch.float32 for t in (x, w, bias))
        results.append([y, x.grad, w.grad, bias.grad])
    torch.testing.assert_close(*results, atol=0.03, rtol=0.03)


def test_nested():
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert torch_reformer.conv2d(x, w).dtype == torch.float32
            with torch.autocast("cpu", torch.float16):
                assert torch_reformer.conv2d(x, w).dtype == torch.float16
        assert torch_reformer.conv2d(x, w).dtype == torch.bfloat16
    assert torch_reformer.conv2d(x, w).dtype == torch.float32


def test_a_weight_is_cast_once():
    """Autocast remembers its copy of a parameter, as for PyTorch's own operators."""
    w = torch.randn(4, 3, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = (torch_reformer.conv2d(torch.randn(1, 3, 5, 5), w) for _ in range(2))
    (first.sum() + second.sum()).backward()
    assert w.grad.dtype == torch.float32


def test_autocast_of_another_device_changes_nothing():
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with torch.autocast("cuda", torch.float16, enabled=torch.cuda.is_available()):
        assert torch_reformer.conv2d(x, w).dtype == torch.float32
