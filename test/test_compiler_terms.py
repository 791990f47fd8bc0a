"""Softmaxes over a few elements of a middle dimension take no kernels of their own, or one: parts of small tensors are
recomputed where they are read (compiler/fusion/group.py, passes/split_into_terms.py)."""

import itertools

import pytest
import torch
from against_eager import without_dynamo
from hypothesis import given
from hypothesis import strategies as st
from marks import needs_aten

from torch_reformer.compiler.ir.access import operand_of_view
from torch_reformer.compiler.ir.digits import with_strides
from torch_reformer.compiler.ir.graph import Value, View
from torch_reformer.compiler.ir.index_maps import index_map_of
from torch_reformer.compiler.ir.layout import Layout

pytestmark = needs_aten


def radix(x, scores, parts=2):
    """Split attention, as in ResNeSt: channels weighted by a softmax over the parts."""
    n, c, h, w = x.shape
    gates = scores.view(n, 1, parts, c // parts).transpose(1, 2).softmax(1).reshape(n, c, 1, 1)
    return (x * gates).view(n, parts, c // parts, h, w).sum(1)


def branches(x, scores):
    """Selective kernels, as in SKNet: the branches are stacked first."""
    n, c, h, w = x.shape
    stacked, gates = x.view(n, 2, c // 2, h, w), scores.view(n, 2, c // 2, 1, 1).softmax(1)
    return (stacked * gates).sum(1)


def outcome(function, *tensors):
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    result = function(*tensors)
    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape).to(result.dtype)
    return [result.detach(), *torch.autograd.grad(result, tensors, weights)]


def check(function, *tensors, tolerance=1e-5):
    """Compare with eager in fp64; returns the reports of forward and backward."""
    reports = []
    actual = outcome(without_dynamo(function, reports.append), *tensors)
    expected = outcome(function, *(tensor.double() for tensor in tensors))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance, equal_nan=True)
    return reports


def images(n, c, h, w, dtype=torch.float32):
    return torch.randn(n, c, h, w).to(dtype).contiguous(memory_format=torch.channels_last)


def of_gates(report):
    """Kernels that neither read nor write images."""
    return [line for line in report.lines if line.kind == "stitch" and line.read + line.written < 1 << 20]


@pytest.mark.parametrize("function", [radix, branches])
@pytest.mark.parametrize("channels", [64, 1024])
def test_softmaxes_of_parts(function, channels):
    """A softmax over parts of a small tensor takes one kernel at most."""
    x, scores = images(32, channels, 12, 12), torch.randn(32, channels, 1, 1)
    forward, backward = check(function, x, scores)
    assert len(of_gates(forward)) <= 1
    assert len(of_gates(backward)) <= 2  # the gates, and the gradient of the scores


def test_gradients_of_sums_of_parts():
    """They are contiguous, as the sums are. They are copied to the order of the images, not the images to theirs."""
    x, scores = images(4, 64, 24, 24), torch.randn(4, 64, 1, 1)
    _, backward = check(radix, x, scores)
    copies = [line for line in backward.lines if line.kind == "reformer::_contiguous"]
    assert sum(line.read for line in copies) <= x.nbytes // 2


def test_repeated_parts_that_are_no_images():
    """Copies of repeated elements that are read in another shape keep their order."""

    def function(x, y):
        repeated = y[:, None].expand(2, 3, 4, 5).reshape(2, 12, 5, 1)
        return (
            repeated * x,
            repeated.reshape(24, 5) @ y[0].t(),
            y[:, :, None].expand(2, 4, 3, 5).reshape(2, 12, 5, 1) + x,
        )

    x = torch.randn(2, 12, 5, 1).contiguous(memory_format=torch.channels_last)
    y = torch.randn(2, 4, 5)
    actual, expected = without_dynamo(function, lambda _: None)(x, y), function(x, y)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    images_of = lambda x, y: y[:, None].expand(2, 3, 4, 5, 6).reshape(2, 12, 5, 6) * x  # noqa: E731
    x, y = images(2, 12, 5, 6), torch.randn(2, 4, 5, 6)
    actual, expected = without_dynamo(images_of, lambda _: None)(x, y), images_of(x, y)
    assert torch.equal(actual, expected) and actual.stride() == expected.stride()


@pytest.mark.parametrize("parts", [2, 3, 4, 7, 8])
def test_counts_of_parts(parts):
    check(lambda x, scores: radix(x, scores, parts), images(3, 8 * parts, 5, 4), torch.randn(3, 8 * parts, 1, 1))


def test_16_bits():
    check(radix, images(2, 64, 6, 6, torch.bfloat16), torch.randn(2, 64, 1, 1).bfloat16(), tolerance=0.03)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_special_values(special):
    x, scores = images(2, 16, 3, 3), torch.randn(2, 16, 1, 1)
    scores[0, 1], scores[1, 4], x[1, 5, 1, 1] = special, special, special
    scores[1, 12] = special  # both parts
    check(radix, x, scores)


@pytest.mark.parametrize("sizes", [(1, 2, 1, 1), (0, 4, 3, 3), (1, 16, 1, 5)])
def test_small_sizes(sizes):
    check(radix, images(*sizes), torch.randn(*sizes[:2], 1, 1))


def test_parts_of_a_result():
    """A result of the graph is stored, whoever recomputes parts of it."""
    check(lambda x, y: torch.cat([*(p * y for p in (x * 2 + 1).tanh().chunk(4, 1)), x], 1), *torch.randn(2, 4, 1, 5))
    x, y = torch.randn(4, 12, 5), torch.randn(4, 3, 5)

    def function(x, y):
        whole = (x * 2).tanh().exp()
        return torch.stack([whole.view(4, 4, 3, 5).amax(1) * y, whole[:, 2:5] - y, whole[:, :3]])

    check(function, x, y)


def addresses(layout):
    places = itertools.product(*map(range, layout.sizes))
    return [layout.offset + sum(i * s for i, s in zip(place, layout.strides, strict=True)) for place in places]


def in_memory(layout, index_map, numel):
    """Addresses that a result of so many elements reads by an index map."""
    digits = with_strides(index_map, numel)
    return [layout.offset + sum(i // inner % count * stride for inner, count, stride in digits) for i in range(numel)]


@given(st.data())
def test_operands_of_views(data):
    """An operand of a view has the elements from which the view's are computed, or there is no index map of it."""
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    order = data.draw(st.permutations(range(len(sizes))))
    permuted = Layout.row_major(tuple(sizes[d] for d in order))
    result = Layout(sizes, tuple(permuted.strides[order.index(d)] for d in range(len(sizes))))
    repeated = [data.draw(st.booleans()) for _ in sizes]
    kept = Layout(tuple(1 if r else n for n, r in zip(sizes, repeated, strict=True)), result.strides).packed
    operand = Layout(sizes, tuple(0 if r else s for s, r in zip(kept.strides, repeated, strict=True)), 3)
    starts = [data.draw(st.integers(0, n - 1)) for n in sizes]
    extents = tuple(data.draw(st.integers(1, n - start)) for n, start in zip(sizes, starts, strict=True))
    offset = sum(start * stride for start, stride in zip(starts, result.strides, strict=True))
    view, device = Layout((4, *extents), (0, *result.strides), offset), torch.device("cpu")
    reader = Layout(view.sizes, (1, *(4 * s for s in Layout(extents, result.strides).packed.strides)))
    value, source = Value(0, result, torch.float32, device), Value(1, kept, torch.float32, device)
    index_map = index_map_of(reader, view)
    operand_map = index_map_of(result, operand)
    found = operand_of_view(View(source, operand), operand_map, View(value, view), index_map, reader.numel)
    if found is None:
        return
    of_result = dict(zip(addresses(result), addresses(operand), strict=True))
    read = in_memory(view, index_map, reader.numel)
    assert in_memory(found[0].layout, found[1], reader.numel) == [of_result[address] for address in read]
    assert found[0].layout.numel == found[0].elements
