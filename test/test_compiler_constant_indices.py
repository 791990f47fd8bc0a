"""Operators that read or add elements by an index that is known at compile time, and circular pads."""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import with_dynamo, without_dynamo
from gpu_rules import as_on_gpus
from marks import needs_aten, slow
from test_compiler_index_maps import FORMATS, calls, check, on_cpus  # noqa: F401  used by all tests

pytestmark = needs_aten
INDEX = [5, 3, 3, 0, 1, 7, 2]


def index(*numbers):
    """An index that tracing sees being made."""
    return torch.arange(8).index_select(0, torch.tensor(numbers or INDEX)) + 0


FUNCTIONS = {
    "index_select": lambda x: x.index_select(2, index()),
    "index_select of channels": lambda x: x.index_select(1, index(2, 0, 0, 1)),
    "index_select of batches": lambda x: x.index_select(0, index(1, 0, 1)),
    "index_select of a table's columns": lambda x: x[0, 0].index_select(1, index()),
    "index": lambda x: x[:, :, index()],
    "index from the end": lambda x: x[..., index() - 8],
    "index of one place": lambda x: x[:, :, [-2]] * 2,
    "index of one place, repeated": lambda x: x[..., torch.full((4,), 3)],
    "index, reversed": lambda x: x[:, :, torch.arange(7, -1, -1)],
    "gather": lambda x: x.gather(2, index()[:, None].expand(2, 3, -1, 9)),
    "gather of a part": lambda x: x.gather(2, index()[:, None].expand(1, 2, -1, 5)),
    "take_along_dim": lambda x: torch.take_along_dim(x, index()[None, None, :, None], 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "two after another": lambda x: x.index_select(2, index()).index_select(3, index()),
    "circular": lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"),
    "circular, one axis": lambda x: F.pad(x[0], (2, 3), mode="circular"),
    "circular, whole": lambda x: F.pad(x, (9, 9, 8, 0), mode="circular"),
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16, torch.float64)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, dtype, layout):
    x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    reports = check(FUNCTIONS[name], x.contiguous(memory_format=FORMATS[layout]))
    assert calls(reports) <= ({"aten::scatter_add"} if name == "gather of a part" else set())


OF_TWO_DIMENSIONS = {
    "rows": lambda x: x[torch.stack([index(), index() - 8])],
    "of a slice": lambda x: x[1:][torch.stack([index(), index()]).clamp(max=2)],
    "columns": lambda x: x[:, torch.stack([index(), index() - 8])].exp(),
    "transposed": lambda x: x.t()[torch.stack([index(), index()])] * 2,
}


@pytest.mark.parametrize("name", OF_TWO_DIMENSIONS)
def test_indices_of_two_dimensions(name):
    """As of relative positions, whose table is a parameter."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    reports = check(OF_TWO_DIMENSIONS[name], x)
    assert calls(reports) <= (set() if name in ("rows", "columns") else {"aten::index.Tensor", "aten::index_put"})


@pytest.mark.parametrize("name", ["index", "gather", "circular"])
def test_special_values(name):
    """NaN, infinity and -0.0 are only where they are read."""
    x = torch.randn(2, 3, 8, 9)
    x[0, 0, 0, 0], x[1, 1, 1, 1], x[0, 0, 3, 3] = math.nan, math.inf, -0.0
    actual, expected = without_dynamo(FUNCTIONS[name], lambda report: None)(x), FUNCTIONS[name](x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(actual.signbit(), expected.signbit())


def test_truths():
    x = torch.randn(2, 3, 8, 9) > 0
    for name in ("index", "gather", "circular"):
        actual = without_dynamo(FUNCTIONS[name], lambda report: None)(x)
        assert actual.dtype == torch.bool and torch.equal(actual, FUNCTIONS[name](x))


@pytest.mark.parametrize("number", [8, -1, 100])
def test_out_of_bounds(number):
    """PyTorch's own call raises its error."""

    def places():
        return torch.arange(1) + number

    for function in (lambda x: x.index_select(2, places()), lambda x: x.gather(2, places().expand(2, 3, 1, 8))):
        with pytest.raises((IndexError, RuntimeError)):
            without_dynamo(function, lambda report: None)(torch.randn(2, 3, 8, 8))


def test_bases_that_are_no_zeros():
    def function(x, y):
        put = torch.ops.aten.index_put(x, [None, index(1, 1, 0)], y, True)
        return x.index_add(1, index(2, 0, 2), y), put, torch.zeros_like(x).index_add(1, index(2, 0, 2), y, alpha=2)

    tensors = torch.randn(4, 3, 5), torch.randn(4, 3, 5)
    torch.testing.assert_close(without_dynamo(function, lambda report: None)(*tensors), function(*tensors))


def test_strides_and_dynamo():
    """Circular pads of images in channels_last are contiguous, also where nothing is padded; none is its source."""
    x = torch.randn(2, 3, 8, 9).contiguous(memory_format=torch.channels_last)

    def function(x):
        return F.pad(x, (1, 1, 1, 1), mode="circular"), F.pad(x, (0, 0, 0, 0), mode="circular")

    with as_on_gpus():
        actual = with_dynamo(function, lambda report: None)(x)
    torch.testing.assert_close(actual, function(x), check_stride=True)
    assert actual[1].data_ptr() != x.data_ptr()


def test_other_circular_pads():
    """Crops, which PyTorch reads otherwise, and pads that are too long."""
    x = torch.randn(2, 3, 8, 9)
    for pads in ((-1, 2, 3, -2), (-2, -1)):
        function = lambda x, pads=pads: F.pad(x[0] if len(pads) == 2 else x, pads, mode="circular")  # noqa: E731
        assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))
    for pads in ((10, 0), (0, 10, 0, 0)):
        function = lambda x, pads=pads: F.pad(x[0] if len(pads) == 2 else x, pads, mode="circular")  # noqa: E731
        with pytest.raises(RuntimeError):
            without_dynamo(function, lambda report: None)(x)
