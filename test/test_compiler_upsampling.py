"""Upsamplings, which stay one operator each, with one for the gradient (decompositions/tracing.py)."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.decompositions.tracing import tracing
from torch_reformer.compiler.ir.fx_utils import UPSAMPLINGS, gradient_of

pytestmark = needs_aten
IMAGES = {1: torch.randn(2, 3, 6), 2: torch.randn(2, 3, 6, 5), 3: torch.randn(2, 3, 4, 5, 6)}
CASES = [
    *((d, {"mode": mode, "size": (9, 7, 8)[:d]}) for d in (1, 2, 3) for mode in ("nearest", "nearest-exact")),
    *((d, {"mode": mode, "scale_factor": 1.7}) for d, mode in ((1, "linear"), (2, "bilinear"), (3, "trilinear"))),
    (2, {"mode": "bicubic", "size": (9, 9)}),
    (2, {"mode": "bilinear", "size": (9, 9), "align_corners": True}),
    (2, {"mode": "bilinear", "scale_factor": (2.5, 1.5), "recompute_scale_factor": True}),
    (2, {"mode": "bilinear", "size": (3, 3), "antialias": True}),
]
NAMES = [f"{d}d-{'-'.join(map(str, options.values()))}" for d, options in CASES]


def gradient(function, images):
    images = images.detach().requires_grad_()
    result = function(images)
    return result.detach(), *torch.autograd.grad(result.square().sum(), images)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("d, options", CASES, ids=NAMES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_as_in_eager_mode(d, options, dynamic):
    images, reports = IMAGES[d], []
    images = images.to(memory_format=torch.channels_last) if d == 2 else images

    def upsampled(images):
        return F.interpolate(images * 2, **options)

    compiled = torch.compile(upsampled, backend=reformer, dynamic=dynamic, options={"report": reports.append})
    found, expected = gradient(compiled, images), gradient(upsampled, images)
    torch.testing.assert_close(found, expected)
    assert found[0].stride() == expected[0].stride()
    operators = [word for word in "".join(map(str, reports)).split() if word.startswith("aten::")]
    assert len(operators) == 2 and all("upsample" in operator for operator in operators)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("d", IMAGES)
def test_no_images(d, mode):
    """PyTorch's fake operators raise."""

    def upsampled(images):
        return F.interpolate(images * 2, scale_factor=2, mode=mode) + 1

    found, expected = (
        gradient(torch.compile(upsampled, backend=reformer), IMAGES[d][:0]),
        gradient(upsampled, IMAGES[d][:0]),
    )
    torch.testing.assert_close(found, expected, check_stride=True)


@pytest.mark.parametrize("packet", UPSAMPLINGS, ids=str)
def test_strides_of_fake_gradients(packet):
    """The fake gradient of symbolic sizes has the strides that PyTorch's own has."""
    linear, d = [False] * ("nearest" not in packet.__name__), int(packet.__name__[-2])
    images = IMAGES[d].to("meta")
    formats = [torch.contiguous_format, *([torch.channels_last] if d == 2 else [torch.channels_last_3d] * (d == 3))]
    for format in formats:
        grad = images.to(memory_format=format)
        arguments = grad, grad.shape[2:], [2, 3, *[2] * d], *linear
        expected = gradient_of(packet)(*arguments)
        with tracing():
            found = gradient_of(packet).py_kernels[torch._C.DispatchKey.Meta](*arguments)
        assert found.stride() == expected.stride() and found.shape == expected.shape


def test_kernels_are_put_back():
    operators = [operator for packet in UPSAMPLINGS for operator in (packet.default, packet.vec, gradient_of(packet))]
    before = [dict(operator.py_kernels) for operator in operators]
    with pytest.raises(ZeroDivisionError), tracing(), tracing():
        assert [dict(operator.py_kernels) for operator in operators] != before
        raise ZeroDivisionError
    assert [dict(operator.py_kernels) for operator in operators] == before
