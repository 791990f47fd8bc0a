"""Instance norm, which is compiled as a group norm (pre_grad/instance_norm.py)."""

import copy

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.pre_grad.instance_norm import replace_instance_norm

pytestmark = needs_aten
NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def results(model, x, weights, has_autocast=False) -> list:
    """The result, and gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=has_autocast):
        y = model(x)
    (y * weights.to(y.dtype)).sum().backward()
    return [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


def given(rank: int, dtype: torch.dtype, channels_last: bool):
    torch.manual_seed(0)
    x = torch.randn(2, 8, *(5, 4, 3)[:rank], dtype=torch.float64).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    return x, torch.randn(x.shape, dtype=torch.float64)


def compiled(model):
    torch._dynamo.reset()
    return torch.compile(model, backend="reformer")


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("rank, channels_last", [(1, False), (2, False), (2, True), (3, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values(dtype, rank, channels_last, affine):
    """With the strides of PyTorch's."""
    model = NORMS[rank](8, affine=affine).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    x, weights = given(rank, dtype, channels_last)
    for one, other in zip(results(compiled(model), x, weights), results(model, x, weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("has_autocast", [True, False])
def test_narrow_images_and_wide_parameters(has_autocast, affine):
    """The result has the input's type, also under autocast, and is as exact as PyTorch's."""
    model = NORMS[2](8, affine=affine)
    x, weights = given(2, torch.bfloat16, True)
    mine = results(compiled(model), x, weights, has_autocast)
    eager = results(model, x, weights, has_autocast)
    exact = results(copy.deepcopy(model).double(), x.double(), weights)
    for one, other, best in zip(mine, eager, exact, strict=True):
        assert one.dtype == other.dtype
        assert (one - best).norm() <= 1.1 * (other - best).norm()


@pytest.mark.parametrize("mean, deviation", [(100, 1), (1000, 1), (200, 0.05)])
def test_large_means(mean, deviation):
    """They do not cancel out: results and gradients are about as exact as PyTorch's, by batch norm."""
    torch.manual_seed(0)
    model = NORMS[2](8, affine=True)
    x, weights = torch.randn(4, 8, 16, 16) * deviation + mean, torch.randn(4, 8, 16, 16, dtype=torch.float64)
    exact = results(copy.deepcopy(model).double(), x.double(), weights)
    for one, other, best in zip(results(compiled(model), x, weights), results(model, x, weights), exact, strict=True):
        assert (one - best).norm() <= 2 * (other - best).norm()


@pytest.mark.parametrize("options", [{"track_running_stats": True}, {"track_running_stats": True, "momentum": None}])
def test_running_statistics(options):
    """They are PyTorch's, in training and in evaluation."""
    models = [NORMS[2](8, affine=True, **options) for _ in range(2)]
    x, weights = given(2, torch.float32, False)
    for run, model in zip((compiled(models[0]), models[1]), models, strict=True):
        model.train()
        results(run, x, weights)
        model.eval()
    for one, other in zip(results(models[0], x, weights), results(models[1], x, weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(models[0].running_var, models[1].running_var)


def test_one_position_raises():
    with pytest.raises((ValueError, RuntimeError), match="Expected more than 1 spatial element"):
        compiled(NORMS[2](8))(torch.randn(2, 8, 1, 1))


def test_replaced():
    """A call that has running statistics, or none of the input, stays."""

    def found(model) -> list:
        modules = []
        torch._dynamo.reset()
        torch.compile(model, backend=lambda module, _: modules.append(module) or module.forward)(torch.randn(2, 8, 4))
        (module,) = modules
        replace_instance_norm(module)
        return [getattr(node.target, "__name__", node.target) for node in module.graph.nodes]

    assert "native_group_norm" in found(NORMS[1](8)) and "instance_norm" not in found(NORMS[1](8, affine=True))
    assert "instance_norm" in found(NORMS[1](8, track_running_stats=True))
    assert "instance_norm" in found(NORMS[1](8, track_running_stats=True).eval())
