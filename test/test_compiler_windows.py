"""im2col, col2im and the gradient of Tensor.unfold, which the compiler reads through maps of axes."""

import math

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from marks import needs_aten, slow
from test_compiler_index_maps import FORMATS, calls, check, on_cpus  # noqa: F401  used by all tests

pytestmark = needs_aten


def outlook(x):
    """VOLO's values: windows' elements with adjacent channels."""
    windows = F.unfold(x, 3, padding=1, stride=2).reshape(2, 2, 4, 9, -1)
    return windows.permute(0, 1, 4, 3, 2).contiguous()


WINDOWS = {
    "unfold": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "unfold, dilated": lambda x: F.unfold(x, (2, 3), dilation=(3, 2), padding=(1, 2)),
    "unfold, apart": lambda x: F.unfold(x, 2, stride=3),
    "unfold, side by side": lambda x: F.unfold(x, 2, stride=2),
    "unfold, side by side, one image": lambda x: F.unfold(x[0], (4, 3), stride=(4, 3)),
    "unfold, apart in one axis": lambda x: F.unfold(x, (3, 2), stride=2),
    "unfold, single elements": lambda x: F.unfold(x, 1),
    "unfold, single elements apart": lambda x: F.unfold(x, 1, dilation=2, stride=2),
    "unfold, one image": lambda x: F.unfold(x[0], 3),
    "unfold, padded": lambda x: F.unfold(F.pad(x, (1, 0, 2, 0)), 3),
    "unfold, scaled": lambda x: F.unfold(x, 2) * torch.linspace(0, 1, 32, dtype=x.dtype).view(-1, 1),
    "unfold, part": lambda x: F.unfold(x, 3)[:, 9:18].transpose(1, 2).contiguous(),
    "outlook": outlook,
    "fold": lambda x: F.fold(x.reshape(2, 18, 32), (9, 17), 3, stride=2),
    "fold, dilated and padded": lambda x: F.fold(x.reshape(2, 16, 36), (14, 10), 2, (3, 1), (0, 1), (2, 2)),
    "fold, one image": lambda x: F.fold(x[0].reshape(9, 64), (10, 10), 3),
    "fold of a copy": lambda x: F.fold(outlook(x).permute(0, 1, 4, 3, 2).reshape(2, 72, -1), (8, 9), 3, 1, 1, 2),
    "fold to channels": lambda x: F.fold(x.reshape(2, 18, 32), (9, 17), 3, stride=2).permute(0, 2, 3, 1).contiguous(),
    "windows of an axis": lambda x: x.unfold(2, 3, 2),
    "windows of the last axis": lambda x: x.unfold(-1, 4, 1),
    "windows of two axes": lambda x: x.unfold(2, 3, 2).unfold(3, 2, 1),
    "windows with gaps": lambda x: x.unfold(3, 2, 4),
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16, torch.float64)], ids=str)
@pytest.mark.parametrize("name", WINDOWS)
def test_values(name, dtype, layout):
    x = torch.randn(2, 8, 8, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert not calls(check(WINDOWS[name], x.contiguous(memory_format=FORMATS[layout])))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", ["unfold", "unfold, padded", "outlook", "fold", "fold of a copy"])
def test_special_values(name, layout):
    """NaN and infinity reach only windows, or positions, that have them; -0.0 keeps its sign where nothing is added."""
    x = torch.randn(2, 8, 8, 9).contiguous(memory_format=FORMATS[layout])
    x[0, 0, 0, 0], x[-1, -1, -1, -1], x[0, 0, 3, 3] = math.nan, math.inf, -0.0
    actual, expected = without_dynamo(WINDOWS[name], lambda report: None)(x), WINDOWS[name](x)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    if not name.startswith("fold"):
        assert torch.equal(actual.signbit(), expected.signbit())


def test_outlook_reads_the_images():
    """Neither the windows' elements in PyTorch's order nor the images in another one are stored."""
    x = torch.randn(2, 8, 8, 9).contiguous(memory_format=torch.channels_last)
    reports: list = []
    torch.testing.assert_close(without_dynamo(outlook, reports.append)(x), outlook(x))
    (line,) = reports[0].lines
    assert (line.kind, line.read, line.written) == ("stitch", x.numel() * 4, outlook(x).numel() * 4)


def test_gradients_are_sums_of_few():
    """The gradient of windows is read where it lies: no zeros are written before, and nothing is copied."""
    x = torch.randn(2, 8, 8, 9, requires_grad=True)
    reports: list = []
    windows = without_dynamo(lambda x: x.exp().unfold(2, 3, 2), reports.append)(x)
    windows.backward(torch.randn_like(windows))
    assert [line.kind for line in reports[1].lines] == ["stitch"]


def test_other_tensors_stay_calls():
    """Empty tensors, and rows of more elements than kernels read through maps."""
    for x in (torch.randn(0, 2, 8, 8), torch.randn(1, 1, 40, 40)):
        function = lambda x: F.unfold(x, 3) + 1  # noqa: E731
        assert torch.equal(without_dynamo(function, lambda report: None)(x), function(x))


def test_results_keep_their_strides():
    """A copy in another order, and what is copied, as results of one graph."""

    def function(x):
        folded = F.fold(x, (8, 8), 2, stride=2)
        return folded, folded.permute(0, 2, 3, 1).contiguous(), F.unfold(x[:, None], 3).transpose(1, 2).contiguous()

    x = torch.randn(2, 12, 16)
    actual, expected = without_dynamo(function, lambda report: None)(x), function(x)
    torch.testing.assert_close(actual, expected, check_stride=True)
    assert len({each.untyped_storage().data_ptr() for each in actual}) == 3


@pytest.mark.parametrize(
    "read",
    [lambda x: F.unfold(x, 3, stride=2), lambda x: x.index_select(3, torch.arange(8, -1, -1))],
    ids=["unfold", "index"],
)
def test_sources_in_another_order(read):
    """Images in channels_last are copied before rows of them are read, also beside copies that come later."""

    def function(x, y):
        return read(x), y * x

    tensors = torch.randn(2, 8, 8, 9).contiguous(memory_format=torch.channels_last), torch.randn(2, 8, 8, 9)
    reports: list = []
    actual, expected = without_dynamo(function, reports.append)(*tensors), function(*tensors)
    torch.testing.assert_close(actual, expected, check_stride=True)
    assert "reformer::_contiguous" in [line.kind for line in reports[0].lines]
