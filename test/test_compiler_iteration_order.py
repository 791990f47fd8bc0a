"""Kernels that iterate over a result in another order than that of memory; only GPUs' do, here on CPUs."""

import pytest
import torch
import torch.nn.functional as F
from gpu_rules import as_on_gpus
from marks import needs_aten
from test_compiler_image_orders import COPY, counts

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.ir.access import access_of
from torch_reformer.compiler.ir.axis_map import AxisMap
from torch_reformer.compiler.ir.digits import reordered
from torch_reformer.compiler.ir.index_maps import index_map_of
from torch_reformer.compiler.ir.iteration_space import IterationSpace
from torch_reformer.compiler.ir.layout import Layout

pytestmark = needs_aten


def shuffled(x, factor=2):
    """A pixel shuffle as PyTorch's GPU kernels compute it: contiguous."""
    n, c, h, w = x.shape
    apart = x.reshape(n, c // factor**2, factor, factor, h, w)
    return apart.permute(0, 1, 4, 2, 5, 3).contiguous().view(n, c // factor**2, h * factor, w * factor)


def unshuffled(x, factor=2):
    n, c, h, w = x.shape
    apart = x.view(n, c, h // factor, factor, w // factor, factor)
    return apart.permute(0, 1, 3, 5, 2, 4).contiguous().view(n, c * factor**2, h // factor, w // factor)


def images(*sizes, dtype=torch.float32):
    x = torch.randn(sizes).to(dtype).contiguous(memory_format=torch.channels_last)
    if x.numel():
        x[..., 0, 0] = torch.tensor([float("nan"), float("inf"), -0.0, 1.0]).repeat(x.shape[1])[: x.shape[1]].to(dtype)
    return x


def run(function, *tensors):
    """Compare the result and the gradients with eager's, bit by bit; return the reports."""
    torch._dynamo.reset()
    reports, found = [], []
    for each in (torch.compile(function, backend=reformer, options={"report": reports.append}), function):
        leaves = [tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        with as_on_gpus():
            result = each(*leaves)
            if result.is_floating_point():
                weights = (torch.arange(result.numel()) % 7 - 3).view(result.shape).to(result.dtype)
                result.backward(weights)
        found.append([result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    assert found[0][0].stride() == found[1][0].stride()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(one.signbit(), other.signbit()) or one.isnan().any()
    return reports


FUNCTIONS = {
    "pixel shuffle": (shuffled, lambda: [images(2, 64, 8, 8)]),
    "pixel shuffle by 4": (lambda x: shuffled(x, 4), lambda: [images(2, 64, 4, 8)]),
    "pixel shuffle of bf16": (shuffled, lambda: [images(2, 64, 8, 8, dtype=torch.bfloat16)]),
    "pixel unshuffle": (
        lambda x: unshuffled(x).contiguous(memory_format=torch.channels_last),
        lambda: [torch.randn(2, 16, 16, 32)],
    ),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2).contiguous(), lambda: [images(2, 20, 4, 4)]),
    "reflection pad": (
        lambda x: F.pad(x, (3, 3, 1, 3), mode="reflect").contiguous(),
        lambda: [images(2, 16, 11, 14)],
    ),
    "pad with a number": (lambda x: F.pad(x, (3, 3, 1, 3), value=2.5).contiguous(), lambda: [images(2, 16, 11, 14)]),
    "roll": (lambda x: torch.roll(x, (3, 2), (2, 3)).contiguous() * 2, lambda: [images(2, 16, 11, 14)]),
    "of a mask": (shuffled, lambda: [images(2, 64, 8, 8) > 0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_copies(name):
    function, tensors = FUNCTIONS[name]
    reports = run(function, *tensors())
    assert not any(counts(reports, COPY))


@pytest.mark.parametrize("size", [(1, 4, 1, 1), (2, 12, 3, 5), (0, 16, 8, 8), (2, 20, 7, 9), (1, 36, 2, 34)], ids=str)
@pytest.mark.parametrize("factor", [2, 3])
def test_sizes(size, factor):
    n, c, h, w = size
    run(lambda x: shuffled(x + 1, factor), images(n, c * factor**2, h, w))
    run(lambda x: unshuffled(x, factor), torch.randn(n, c, h * factor, w * factor))


def test_unaligned():
    memory = torch.randn(2 * 64 * 8 * 8 + 1)
    x = memory[1:].view(2, 8, 8, 64).permute(0, 3, 1, 2)
    run(shuffled, x)


def test_sums_read_the_copy():
    """The gradient of a bias is the sum of the copy that is the gradient of the images."""
    x = torch.randn(2, 64, 8, 8).contiguous(memory_format=torch.channels_last)
    y = torch.randn(64, 1, 1)
    weights = torch.randint(-4, 5, (2, 16, 16, 16)).float()
    reports, grads = [], []
    torch._dynamo.reset()

    def function(x, y):
        return shuffled(x + y)

    for each in (torch.compile(function, backend=reformer, options={"report": reports.append}), function):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, y)]
        with as_on_gpus():
            each(*leaves).backward(weights)
        grads.append([leaf.grad for leaf in leaves])
    assert [len(report.lines) for report in reports] == [1, 2] and not any(counts(reports, COPY))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()


def places(digits, numel) -> list[int]:
    """Addresses of a result's elements by digits with strides."""
    return [sum(i // inner % count * stride for inner, count, stride in digits) for i in range(numel)]


def test_orders():
    order = ((1, 2), (6, 4), (2, 3))
    digits = ((1, 6, 4), (6, 4, 1))
    found = reordered(digits, order, 24)
    at = places(tuple((1 if not i else 2 if i == 1 else 8, count, inner) for i, (inner, count) in enumerate(order)), 24)
    before = places(digits, 24)
    assert places(found, 24) == [before[i] for i in at]
    assert reordered(((1, 6, 4), (6, 4, 1)), ((1, 4), (4, 6)), 24) is None


def test_kinds():
    layout = Layout.row_major((4, 16, 32))
    source = index_map_of(layout, Layout((4, 16, 32), (512, 1, 16)))
    plain = IterationSpace(1, 32, 64, 1, True)
    space = IterationSpace(1, 32, 64, 1, True, ((1, 32), (32, 16), (512, 4)))
    assert plain.kind(source) == space.kind(source) == "transposed"
    assert space.kind(((1, 2048),)) == "full" and not space.is_strided(((1, 2048),)) and space.kind(()) == "scalar"
    pairs = index_map_of(Layout.row_major((64, 16, 2)), Layout((64, 16, 2), (2, 128, 1)))
    assert plain.kind(pairs) == "transposed" and plain.adjacent(pairs) == (0, 128)
    repeated = index_map_of(Layout.row_major((64, 16, 2)), Layout((64, 16, 2), (2, 0, 1)))  # a bias before a shuffle
    assert plain.kind(repeated) == "transposed" and plain.adjacent(repeated) == (0, 128)
    threes = index_map_of(Layout.row_major((64, 10, 3)), Layout((64, 10, 3), (3, 192, 1)))
    assert IterationSpace(1, 30, 64, 1, True).kind(threes) is None
    maps = (None, None, AxisMap.choosing(32, range(31, -1, -1)))
    access = access_of(layout, Layout((4, 16, 32), (512, 1, 16)), maps, 0.0)
    assert plain.reads_lines(access) and plain.adjacent(access) == (0, 16)
