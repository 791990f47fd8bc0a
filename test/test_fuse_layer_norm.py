"""Layer norms of models that fuse() went through: which of them kernels of ours compute, and that they are right."""

import copy

import pytest
import torch
from test_fuse import check_errors, filled, outcome
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from torch_reformer import fuse
from torch_reformer.fuse import calls
from torch_reformer.operators import layer_norm as layer_norms
from torch_reformer.operators.layer_norm import layer_norm


class Normalised(nn.Module):
    """A layer norm before a linear layer with an activation."""

    def __init__(self, c=64, k=48, **norm):
        super().__init__()
        self.norm, self.linear, self.act = nn.LayerNorm(c, **norm), nn.Linear(c, k), nn.Tanh()

    def forward(self, x):
        return self.act(self.linear(self.norm(x)))


class Fp32Norm(nn.LayerNorm):
    """As autocast on a GPU computes it, in fp32. That on the CPU casts nothing."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


@pytest.fixture
def norms_as_on_gpus(monkeypatch):
    monkeypatch.setattr(calls, "DEVICES_OF_LAYER_NORMS", {"cpu", "cuda"})


def check_under_autocast(x, exact, block, fused):
    """exact: the model in fp64; block: as PyTorch's autocast on a GPU."""
    found = []
    for model in (exact, block, fused):
        with torch.autocast("cpu", torch.bfloat16, enabled=model is not exact):
            (y, of_x), of_parameters, _ = outcome(model, x if model is not exact else x.double())
        found.append({"y": y, "x": of_x, **of_parameters})
    check_errors(*found)
    assert found[2]["y"].stride() == found[1]["y"].stride()


@pytest.mark.parametrize("norm", [{}, dict(elementwise_affine=False), dict(bias=False)], ids=str)
@pytest.mark.parametrize("size", [(400, 64), (2, 8, 8, 64)], ids=str)
def test_layer_norm_under_autocast(size, norm, norms_as_on_gpus):
    """It is computed in bf16, with at most twice the error that PyTorch's way has, in the gradients too."""
    torch.manual_seed(6)
    exact, x = filled(Normalised(**norm)), torch.randn(size).bfloat16()
    block, fused = (copy.deepcopy(exact).float() for _ in range(2))
    assert fuse(fused).fused == {"linear": "layer norm before it, tanh"}
    block.norm.__class__ = Fp32Norm
    check_under_autocast(x, exact, block, fused)


class LayerNorm2d(nn.LayerNorm):
    """torchvision's."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        x = x.permute(0, 3, 1, 2)
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_layer_norm_of_channels_under_autocast(memory_format, dtype, norms_as_on_gpus):
    """The layer norm of images before a convolution: downsampling in ConvNeXt. What else reads it gets it as before."""
    torch.manual_seed(7)
    exact = filled(nn.Sequential(LayerNorm2d(24), nn.Conv2d(24, 16, 2, 2)))
    x = torch.randn(4, 24, 8, 8).to(dtype).to(memory_format=memory_format)
    block, fused = (copy.deepcopy(exact).float() for _ in range(2))
    assert fuse(fused).fused == {"1": "layer norm before it"}
    check_under_autocast(x, exact, block, fused)
    alone = nn.Sequential(LayerNorm2d(24), nn.ReLU(), nn.Conv2d(24, 16, 2, 2))
    assert fuse(alone).fused == {"0": "a kernel of its own on GPUs"}


class ChangedBetween(nn.Module):
    """The input changes after the layer norm has read it, and before its result is permuted back."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = LayerNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = x + 1
        y = F.layer_norm(x.permute(0, 2, 3, 1), (8,), self.norm.weight)
        x = F.relu(x, inplace=True)
        return self.conv(y.permute(0, 3, 1, 2)) + x.mean()


class ChangedAfter(nn.Module):
    """A residual in place: of an input that PyTorch's autocast has copied."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.act = nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()

    def forward(self, x):
        x = x * 2
        x += self.act(self.linear(self.norm(x)))
        return x


class PermutedByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.conv(torch.permute(input=x, dims=(0, 1, 3, 2))).relu()


@pytest.mark.parametrize("kind", [ChangedBetween, ChangedAfter, PermutedByName])
def test_layer_norms_and_changes_in_place(kind, norms_as_on_gpus):
    model, x = kind(), torch.randn(2, 8, 8, 8)
    expected = copy.deepcopy(model)(x)
    fuse(model)
    torch.testing.assert_close(model(x), expected)
    assert type_given(model, x.bfloat16()) is None


def test_meta_tensors_under_autocast():
    model = nn.Sequential(Normalised(), nn.Linear(48, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 8), nn.Tanh())
    fuse(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.to("meta")(torch.randn(3, 64, device="meta")).shape == (3, 8)


def test_other_modules_in_the_place_of_those_that_were_traced(norms_as_on_gpus):
    x = torch.randn(4, 8)
    for other in (nn.Dropout(0.0), nn.LayerNorm(8), nn.BatchNorm1d(8)):
        model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())
        fuse(model)
        model[1] = other
        expected = nn.Sequential(*model)(x)
        torch.testing.assert_close(model(x), expected)
    assert type_given(model, x) is None  # its own forward is called


@pytest.mark.parametrize("names", [(), ("weight",), ("weight", "bias")], ids=str)
def test_derivatives_of_layer_norm(names):
    x, *parameters = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((2, 3, 4), (4,), (4,)))
    given = [
        parameter if name in names else None for name, parameter in zip(("weight", "bias"), parameters, strict=True)
    ]

    def norm(x, *_):
        return layer_norm(x, *given, 1e-3, torch.float64)

    leaves = [x, *(parameter for parameter in given if parameter is not None)]
    torch.testing.assert_close(norm(x), F.layer_norm(x, (4,), *given, 1e-3))
    assert gradcheck(norm, leaves) and gradgradcheck(norm, leaves)


def type_given(model, x, autocast=True):
    """The data type in which a kernel of ours gives the layer norm's result, or None if it is PyTorch's."""
    given = []
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        patch.setattr(
            layer_norms, "layer_norm", lambda *arguments: given.append(arguments[-1]) or layer_norm(*arguments)
        )
        model(x)
    return given[0] if given else None


class Alone(nn.Module):
    """What reads the layer norm is no linear layer, or not the only one."""

    def __init__(self, is_read_twice):
        super().__init__()
        self.norm, self.linear, self.is_read_twice = nn.LayerNorm(64), nn.Linear(64, 48), is_read_twice

    def forward(self, x):
        y = self.norm(x)
        return (self.linear(y), y) if self.is_read_twice else y.sin()


def test_types_of_layer_norms(norms_as_on_gpus):
    """A reader that autocast rounds for gets it rounded; others get what they did before: fp32 from autocast."""
    x, model = torch.randn(3, 64), Normalised()
    fuse(model)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert type_given(model, x.to(dtype)) == torch.bfloat16
    assert type_given(model, x, autocast=False) == torch.float32
    assert type_given(model.bfloat16(), x.bfloat16(), autocast=False) == torch.bfloat16
    for is_read_twice in (False, True):
        model = Alone(is_read_twice)
        fuse(model)
        assert type_given(model, x.bfloat16()) == torch.float32
        assert type_given(model, x, autocast=False) == torch.float32


def test_layer_norms_of_pytorch(norms_as_on_gpus):
    """What the kernels do not compute, or somebody would notice."""
    x, model = torch.randn(3, 64), Normalised()
    fuse(model)
    assert type_given(model.double(), x.double()) is None
    assert type_given(model.double(), x.double(), autocast=False) is None
    model.float().linear.register_forward_pre_hook(lambda *_: None)
    fuse(model)
    assert type_given(model, x.bfloat16()) == torch.float32
    model.norm.register_forward_pre_hook(lambda *_: None)
    assert type_given(model, x.bfloat16()) is None
    for width, is_ours in {768: True, 1024: True, 1032: False, 770: False, 0: False}.items():
        model, rows = Alone(False), torch.randn(2, width)
        model.norm = nn.LayerNorm(width)
        fuse(model)
        assert (type_given(model, rows, autocast=False) is not None) == is_ours
    model = Normalised()
    model.norm = nn.LayerNorm((1, 64))
    fuse(model)
    assert type_given(model, x.bfloat16()[:, None]) is None
    model = Alone(False)
    fuse(model)
    model.norm.bfloat16()  # of which PyTorch says what is wrong
    with pytest.raises(RuntimeError, match="parameter to have scalar type"):
        model(x)


def test_layer_norms_on_the_cpu():
    """There are no kernels for them."""
    model, x = Normalised(), torch.randn(3, 64)
    fuse(model)
    assert type_given(model, x.bfloat16()) is type_given(model, x, autocast=False) is None
