"""Concatenations that the compiler computes by programs, which read each part where it lies."""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from marks import needs_aten, slow
from test_compiler_index_maps import FORMATS, calls, check, check_chain, on_cpus  # noqa: F401  a fixture
from test_compiler_index_maps import STEPS as CHAINED

pytestmark = needs_aten


def joined(x, *dims):
    """Concatenations of unequal parts along these dimensions, one after the other."""
    for d in dims:
        x = torch.cat([x.narrow(d, 1, 1), x, x.narrow(d, 0, 2)], d)
    return x


CONCATENATIONS = {
    "channels": lambda x: joined(x, 1),
    "lines": lambda x: joined(x, 2) * 2,
    "columns": lambda x: joined(x, 3),
    "images": lambda x: joined(x, 0),
    "of concatenations": lambda x: joined(x, 1, 2),
    "stack": lambda x: torch.stack([x, x[:, [0]].expand_as(x), x * 2], 2).tanh(),
    "stack of columns": lambda x: torch.stack([x, x.flip(1)], -1).flatten(-2),
    "upsampled": lambda x: torch.cat([F.interpolate(x[:, :, :1, :1], size=x.shape[2:], mode="bilinear"), x], 1),
    "upsampled, odd": lambda x: torch.cat([x, F.interpolate(x[:, :, 1:], size=x.shape[2:])], 1).exp(),
    "with zeros": lambda x: torch.cat([torch.zeros_like(x), x, torch.ones_like(x)], 1),
    "norm": lambda x: F.batch_norm(joined(x, 1), None, None, training=True),
    "heads": lambda x: torch.stack([x, x * 2, x * 3]).permute(1, 3, 2, 0, 4).flatten(2),
    "a slice of it": lambda x: joined(x, 1)[:, 1:3].exp(),
    "as its own operand": lambda x: joined(x, 2)[:, :, : x.shape[2]] + x,
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", [(2, 3, 8, 9), *slow((4, 16, 4, 8), (2, 5, 2, 2))], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16, torch.float64)], ids=str)
@pytest.mark.parametrize("name", CONCATENATIONS)
def test_concatenations(name, dtype, size, layout):
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    check(CONCATENATIONS[name], x.contiguous(memory_format=FORMATS[layout]))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("d", range(4))
def test_concatenations_of_special_values(d, layout):
    """Each element is a part's, bit by bit: NaN, infinity and -0.0 stay where they are."""
    x = torch.randn(2, 3, 8, 9).contiguous(memory_format=FORMATS[layout])
    x[0, 0, 0, 0], x[-1, -1, -1, -1], x[0, 0, 3, 3], x[0, 0, 4, 4] = math.nan, math.inf, -0.0, 0.0

    def function(x):
        return torch.cat([x, x.narrow(d, 0, 1)], d) * 1.0

    reports: list = []
    actual, expected = without_dynamo(function, reports.append)(x), function(x)
    assert calls(reports) == set() and len(reports[0].lines) == 1
    assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))


def test_concatenations_of_truths():
    x = torch.randn(4, 6)
    function = lambda x: torch.cat([x > 0, x[:1] < 0, x > 1]).logical_not()  # noqa: E731
    reports: list = []
    assert torch.equal(without_dynamo(function, reports.append)(x), function(x)) and not calls(reports)


def test_concatenations_that_stay():
    """Whole numbers, empty parts of one dimension, and more parts than a kernel reads."""
    x = torch.randn(4, 6)
    for function in (
        lambda x: torch.cat([x.argmax(1), x.argmin(1)]) + 1,
        lambda x: torch.cat([x, x.new_empty(0), x[:0]]) * 2,
        lambda x: torch.cat([x + i for i in range(9)] + [x]) * 2,
        lambda x: torch.cat([x[:0], x[:0]]) * 2,
    ):
        assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))


def test_concatenations_are_read_in_place():
    """A concatenation of unequal channels, its batch norm's sums and what follows read the parts only."""

    def function(x, y):
        return torch.relu(F.batch_norm(torch.cat([x, y], 1), None, None, training=True))

    x, y = (torch.randn(4, c, 8, 8).contiguous(memory_format=torch.channels_last) for c in (16, 40))
    reports: list = []
    with torch.no_grad():
        actual = without_dynamo(function, reports.append)(x, y)
    torch.testing.assert_close(actual, function(x, y))
    bytes_of_parts = 4 * (x.numel() + y.numel())
    sums, norm = reports[0].lines
    assert sums.read == bytes_of_parts and sums.written < 1000
    assert norm.read < bytes_of_parts + 1000 and norm.written == bytes_of_parts


def test_results_that_are_concatenations_are_new():
    def function(x):
        whole = torch.cat([x, x[:, :1]], 1)
        return whole, whole * 2

    x = torch.randn(4, 8)
    whole, _ = without_dynamo(function, lambda report: None)(x)
    x.zero_()
    assert whole.abs().min() > 0


def test_casts_are_parts():
    """A part that is a cast is read before the cast, and a wider part keeps its precision."""

    def function(x, y):
        return torch.cat([x.float(), y], 1) * 3

    x, y = torch.randn(4, 6).bfloat16(), torch.randn(4, 3)
    reports: list = []
    assert torch.equal(without_dynamo(function, reports.append)(x, y), function(x, y))
    (line,) = reports[0].lines
    assert line.read == x.numel() * 2 + y.numel() * 4


def heads(x, pairs: bool):
    """Rotary embeddings of heads that lie outside, from a product's result where they lie inside."""
    x = x.view(2, 24, 4, 16).transpose(1, 2)
    cosine, sine = torch.linspace(-1, 2, 2 * 24 * 16, dtype=x.dtype).view(2, 24, 16)
    if pairs:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        turned = torch.cat([-x[..., 8:], x[..., :8]], -1)
    return x * cosine + turned * sine


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rotary_embeddings(pairs, dtype):
    """One kernel reads the product's result where it lies."""
    reports = check(lambda x: heads(x, pairs), torch.randn(2, 24, 64, dtype=dtype))
    assert not calls(reports) - {"aten::arange", "aten::linspace"}
    reports = []
    x = torch.randn(2, 24, 64)
    torch.testing.assert_close(without_dynamo(lambda x: heads(x, pairs), reports.append)(x), heads(x, pairs))
    assert [line.kind for line in reports[0].lines].count("stitch") == 1


def test_negated_parts():
    """-0.0, NaN and infinity of what is negated, and numbers of pads, keep their signs."""
    x = torch.tensor([[0.0, -0.0, math.nan, math.inf, -math.inf, 1.0]]).repeat(4, 1)

    def function(x):
        negated = -x
        first = torch.cat([negated, x], 1) * 1.0
        return first, F.pad(negated, (1, 1)) * 1.0, F.pad(-x, (1, 1), value=2.0) * 1.0, torch.roll(-x, 1, 1) * 1.0

    for actual, expected in zip(without_dynamo(function, lambda report: None)(x), function(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        is_number = ~expected.isnan()
        assert torch.equal(actual.signbit()[is_number], expected.signbit()[is_number])


@pytest.mark.parametrize("step", [2, 3, 8, 9])
def test_slices_with_a_step(step):
    def function(x):
        return x[..., 1::step].exp() + x[..., ::step][..., : x[..., 1::step].shape[-1]]

    check(function, torch.randn(3, 4, 5, 40))


def test_orders_of_readers():
    """A value that is read in two orders, is a result, or is made of random numbers, keeps its order."""

    def function(x, y):
        y = y.transpose(1, 2)
        one, two, three = torch.stack([x, -x], -1).flatten(-2) * 2, x.exp(), x.sin()
        return (y * one), (y[..., :8] + two), two.sum(), three, three * y[..., :8], one.flatten() * 2

    x, y = torch.randn(2, 4, 24, 8), torch.randn(2, 24, 4, 16)
    for actual, expected in zip(without_dynamo(function, lambda report: None)(x, y), function(x, y), strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_parts_that_several_kernels_write():
    """Kernels of different sizes write their parts of a concatenation that a product reads; what none computes is
    copied, and a part that others need is stored, too."""

    def function(x, y, weight):
        one, two = x.exp(), y.tanh()
        return torch.cat([one, two, x[:, :8], two[:, :3].sin()], 1) @ weight, two

    tensors = torch.randn(64, 96), torch.randn(64, 48), torch.randn(155, 16)
    reports: list = []
    for actual, expected in zip(without_dynamo(function, reports.append)(*tensors), function(*tensors), strict=True):
        torch.testing.assert_close(actual, expected)
    assert "aten::cat" not in calls(reports)


def test_parts_that_need_each_other():
    """A part is computed from another one, by a call in between, and the result is read at once."""

    def function(x, weight):
        one = torch.relu(x)
        two = torch.relu(one[:, :32] @ weight)
        whole = torch.cat([one, two], 1)
        return whole @ whole.t(), whole.sum(1)

    tensors = torch.randn(64, 96), torch.randn(32, 48)
    reports: list = []
    for actual, expected in zip(without_dynamo(function, reports.append)(*tensors), function(*tensors), strict=True):
        torch.testing.assert_close(actual, expected)
    assert "aten::cat" not in calls(reports)


def test_images_written_by_several_kernels():
    """Branches of an inception block: each batch norm writes its channels."""

    def function(x, *weights):
        branches = [F.conv2d(x, weight) for weight in weights]
        branches = [torch.relu(F.batch_norm(each, None, None, training=True)) for each in branches]
        return F.conv2d(torch.cat([*branches, x], 1), torch.ones_like(weights[0][:1, :1]).expand(8, 64, 1, 1))

    x = torch.randn(2, 24, 9, 9).contiguous(memory_format=torch.channels_last)
    weights = [torch.randn(c, 24, 1, 1) for c in (8, 16, 16)]
    reports: list = []
    torch.testing.assert_close(
        without_dynamo(function, reports.append)(x, *weights), function(x, *weights), rtol=1e-4, atol=1e-4
    )
    assert "aten::cat" not in calls(reports)


def test_parts_that_do_not_pay():
    """A call copies many inputs at once; a kernel for each takes longer than reading one small part."""

    def function(x, y, z, weight):
        return torch.cat([x, y, z, x.exp()], 1) @ weight

    tensors = *(torch.randn(64, columns) for columns in (9, 8, 8)), torch.randn(34, 16)
    reports: list = []
    torch.testing.assert_close(without_dynamo(function, reports.append)(*tensors), function(*tensors))
    assert "aten::cat" in calls(reports)


def test_parts_in_another_order():
    """A kernel writes heads that it computes inside to a concatenation in which they lie outside."""

    def function(x, token):
        x = x.view(2, 24, 4, 16).transpose(1, 2)
        return torch.cat([token, x.exp() * 2], 2) @ token.transpose(2, 3)

    tensors = torch.randn(2, 24, 64), torch.randn(2, 4, 1, 16)
    reports: list = []
    torch.testing.assert_close(without_dynamo(function, reports.append)(*tensors), function(*tensors))
    assert "aten::cat" not in calls(reports)


STEPS = {
    **{
        name: CHAINED[name]
        for name in ("roll", "flip", "pad", "nearest", "avg_pool", "tanh", "softmax", "sum", "permute")
    },
    "channels": lambda x: torch.cat([x, x.tanh() * 2], 1),
    "lines": lambda x: torch.cat([x[:, :, -1:], x, x[:, :, :2].sin()], 2),
    "columns": lambda x: torch.cat([x[..., 1:] + 1, -x], 3),
    "images": lambda x: torch.cat([x, x[:1].flip(0)], 0),
    "pairs": lambda x: torch.stack([-x[..., 1::2], x[..., : x[..., 1::2].shape[-1] * 2 : 2]], -1).flatten(-2),
    "step": lambda x: x[..., ::2].sin() + 1,
    "negative": lambda x: -x,
    "transpose": lambda x: x.transpose(1, 2) * 2,
    "transposed sum": lambda x: x + (x.transpose(2, 3).contiguous() * 0.5).transpose(2, 3),
    "heads": lambda x: torch.stack([x, x * 2]).permute(1, 2, 0, 3, 4).flatten(1, 2),
    "assignment": lambda x: torch.slice_scatter(x * 2, x[:, :, 1:2].exp(), 2, 0, 1),
    "repeat": lambda x: x.repeat(1, 1, 1, 2) / 2,
    "product": lambda x: (x.flatten(0, 2) @ (x.mean((0, 1, 2))[:, None] * x[0, 0, 0]).tanh()).view(x.shape),
}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=6),
    st.sampled_from(sorted(FORMATS)),
    st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(4, 8), st.integers(4, 8)),
)
@example(["heads", "channels", "assignment"], "nchw", (1, 2, 4, 4))  # a copy that its reader recomputed
def test_chains(names, layout, size):
    check_chain([STEPS[name] for name in names], layout, size, relative=True)


def test_parts_of_operators_that_only_an_operator_reads():
    """Unequal ones are read by one program, equal ones by the kernel that copies all."""
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64)

    def function(x):
        passing = x.cumsum(2)
        return torch.cat([x[:, :2].cumsum(1), passing[:, 2:]], 1).cumsum(0)

    reports = []
    torch.testing.assert_close(without_dynamo(function, reports.append)(x), function(x))
    assert not calls(reports) & {"aten::cat"}
