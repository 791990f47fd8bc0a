"""Max pooling in compiled graphs, and the operators that compute it."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.joint_graph import max_pool_indices

ops = torch.ops.reformer
POOLS = {
    "3x3 by 2": (3, 2, 1),
    "2x2": (2,),
    "ceil": (3, 2, 1, 1, True),
    "ceil, wider than the images": ((8, 14), None, 1, 1, True),
    "dilated": ((3, 2), (2, 1), (1, 0), (1, 2)),
}
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def geometry(window, stride=None, padding=0, dilation=1, ceil_mode=False):
    def pair(value):
        return [value, value] if isinstance(value, int) else list(value)

    return *map(pair, (window, stride or window, padding, dilation)), ceil_mode


def images(layout="nhwc", size=(2, 8, 9, 11), dtype=torch.float32, device="cpu"):
    """Small integers, so that windows have several maxima."""
    return torch.randint(-3, 4, size, device=device).to(dtype).contiguous(memory_format=FORMATS[layout])


def has_order(tensor, layout):
    return tensor.is_contiguous(memory_format=FORMATS[layout])


def check_operators(x, pool, layout):
    window, stride, padding, dilation, ceil_mode = geometry(*pool)
    wide = x.double().requires_grad_()
    expected = F.max_pool2d(wide, window, stride, padding, dilation, ceil_mode)
    grad = torch.randint(-8, 9, expected.shape, device=x.device).to(x.dtype)
    (expected_grad,) = torch.autograd.grad(expected, wide, grad.double())
    result, places = ops._max_pool2d(x, window, stride, padding, dilation, ceil_mode)
    assert result.dtype == x.dtype and places.dtype == torch.uint8 and has_order(result, layout)
    assert has_order(places, layout) and places.max() < window[0] * window[1]
    assert torch.equal(result.double().nan_to_num(99), expected.detach().nan_to_num(99))
    found = ops._max_pool2d_grad(grad, places, x.shape[2:], window, stride, padding, dilation)
    assert torch.equal(found, expected_grad.to(found.dtype)) and has_order(found, layout)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_operators(pool, layout):
    check_operators(images(layout), pool, layout)


@pytest.mark.parametrize("layout", FORMATS)
def test_opcheck(layout):
    *pairs, ceil_mode = geometry(3, 2, 1)
    for x in (images(layout), images(layout, (0, 3, 4, 4)), images(layout, (2, 1, 4, 4)), images(layout, (2, 3, 1, 1))):
        result, places = ops._max_pool2d(x, *pairs, ceil_mode)
        torch.library.opcheck(ops._max_pool2d.default, (x, *pairs, ceil_mode))
        torch.library.opcheck(ops._max_pool2d_grad.default, (result, places, x.shape[2:], *pairs))


def test_errors():
    x, places = images(), torch.zeros(2, 8, 4, 5, dtype=torch.uint8)
    for arguments, sentence in {
        ((16, 16), (1, 1), (0, 0), (1, 1)): r"a window has more than 255 places: \[16, 16\]",
        ((2, 2), (0, 1), (0, 0), (1, 1)): r"stride must be at least 1",
        ((2, 2), (1, 1), (2, 0), (1, 1)): r"padding must be at most half of the window",
        ((2, 12), (1, 1), (0, 0), (1, 1)): r"the window \[2, 12\] does not fit into the padded input",
    }.items():
        with pytest.raises(RuntimeError, match=f"reformer::_max_pool2d: {sentence}"):
            ops._max_pool2d(x, *arguments, False)
    with pytest.raises(RuntimeError, match=r"_max_pool2d: input must have 4 dimensions, got 3 \(\[8, 9, 11\]\)"):
        ops._max_pool2d(x[0], *geometry(2))
    with pytest.raises(RuntimeError, match=r"grad has size \[2, 8, 4, 4\], but places have \[2, 8, 4, 5\]"):
        ops._max_pool2d_grad(places[..., 1:].float(), places, (9, 11), *geometry(2)[:4])
    with pytest.raises(RuntimeError, match="places must be bytes"):
        ops._max_pool2d_grad(places.float(), places.int(), (9, 11), *geometry(2)[:4])


def step(run, x):
    """Results of the function, and its gradient."""
    x = x.detach().requires_grad_()
    result = run(x)
    results = result if isinstance(result, tuple) else (result,)
    loss = sum((each * torch.arange(each.numel()).view(each.shape).remainder(7)).sum() for each in results)
    return [*results, *torch.autograd.grad(loss, x)]


def compiled_step(run, x, monkeypatch, device="cpu"):
    """Results of the function compiled as if `device` were the GPU whose poolings are replaced, and its kernels."""
    torch._dynamo.reset()
    reports = []
    monkeypatch.setattr(max_pool_indices, "_DEVICES", (device,))
    run = torch.compile(run, backend="reformer", options={"report": reports.append})
    return step(run, x), [line.kind for report in reports for line in report.lines]


@needs_aten
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_compiled(pool, layout, monkeypatch):
    def run(x):
        return F.max_pool2d(x.relu(), *pool).tanh(), F.max_pool2d(x, 2)

    x = images(layout)
    found, kinds = compiled_step(run, x, monkeypatch)
    for one, other in zip(found, step(run, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        assert one.stride() == other.stride()
    assert kinds.count("reformer::_max_pool2d") == kinds.count("reformer::_max_pool2d_grad") == 2
    assert not [kind for kind in kinds if kind.startswith("aten::max_pool2d")]


@needs_aten
def test_the_rest_is_pytorchs(monkeypatch):
    """PyTorch computes poolings whose indices are read, images without a batch, large windows, double precision, and
    all poolings on CPUs."""

    def by_indices(x):
        result, indices = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(result, indices, 2)

    runs = {
        "indices": (by_indices, images(size=(2, 3, 8, 8))),
        "no batch": (nn.MaxPool2d(2), images()[0].contiguous()),
        "large": (nn.MaxPool2d(16), images(size=(1, 2, 33, 32))),
        "double": (nn.MaxPool2d(2), images(dtype=torch.float64)),
    }
    for run, x in runs.values():
        found, kinds = compiled_step(run, x, monkeypatch)
        for one, other in zip(found, step(run, x), strict=True):
            torch.testing.assert_close(one, other)
        assert not [kind for kind in kinds if kind.startswith("reformer::_max_pool2d")]
    monkeypatch.undo()
    _, kinds = compiled_step(nn.MaxPool2d(2), images(), monkeypatch, "cuda")
    assert "aten::max_pool2d_with_indices" in kinds


@pytest.mark.gpu
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_on_a_gpu(dtype, layout):
    for pool in POOLS.values():
        for channels in (64, 5):
            x = images(layout, (3, channels, 23, 30), dtype, "cuda")
            check_operators(x, pool, layout)
            x[x == 2] = torch.nan
            check_operators(x, pool, layout)
