"""Plain tensors take a shortcut through private operators and numbers; traces, modes and transforms still see public
operators."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program


def batch_norm(x, w, stride=1):
    return torch_reformer.conv2d_batch_norm_act(x, w, None, None, None, training=True, stride=stride)


FUNCTIONS = {
    "conv2d": lambda x, w, stride=1: torch_reformer.conv2d(x, w, None, stride),
    "conv2d_act": lambda x, w, stride=1: torch_reformer.conv2d_act(x, w, None, stride, activation="gelu"),
    "conv2d_batch_norm_act": batch_norm,
}
each = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def operands(**kind):
    kind = {"dtype": torch.float64, "requires_grad": True, **kind}
    return torch.randn(2, 4, 7, 7, **kind), torch.randn(4, 4, 3, 3, **kind)


@each
@pytest.mark.parametrize("grad", [True, False])
def test_traces_have_public_operators_only(function, grad):
    x, w = operands(requires_grad=grad)
    function(x, w)
    traced = torch.jit.trace(lambda x, w: function(x, w), (x, w), check_trace=False)
    graph = str(traced.graph)
    assert "reformer::" in graph and "reformer::_" not in graph
    torch.testing.assert_close(traced(x, w), function(x, w))


@each
@pytest.mark.parametrize("grad", [True, False])
def test_meta_and_fake_tensors(function, grad):
    with FakeTensorMode():
        fake = operands(requires_grad=grad)
    for x, w in (fake, operands(device="meta", requires_grad=grad)):
        assert function(x, w).shape == (2, 4, 5, 5)


def test_batched_gradients():
    x, w = operands()
    y = torch_reformer.conv2d(x, w)
    many = torch.randn(3, *y.shape, dtype=y.dtype)
    batched = torch.autograd.grad(y, (x, w), many, retain_graph=True, is_grads_batched=True)
    one_by_one = zip(*(torch.autograd.grad(y, (x, w), g, retain_graph=True) for g in many), strict=True)
    torch.testing.assert_close(batched, tuple(torch.stack(grads) for grads in one_by_one))


def fused_evaluation(x, w, bias, residual):
    statistics = torch.full((4,), 0.1, dtype=x.dtype), torch.full((4,), 2.0, dtype=x.dtype)
    options = dict(training=False, activation="silu", residual=residual)
    return torch_reformer.conv2d_batch_norm_act(x, w, bias, *statistics, **options)


def fused_training(x, w, bias, residual):
    statistics = torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)
    options = dict(training=True, activation="silu", residual=residual)
    return torch_reformer.conv2d_batch_norm_act(x, w, bias, *statistics, **options)


def reductions(x, w, bias, residual):
    value = program.silu(program.acc() * program.scalar("share")) + program.channel("bias")
    tested = Program(
        program.moments(value), program.sum(value * program.full("residual"), per="row"), program.max(value, per="all")
    )
    tensors = {"share": bias.mean(), "bias": bias, "residual": residual}
    return torch.cat([each.flatten() for each in torch_reformer.conv2d_epilogue(x, w, tested, tensors)])


def fused_linear(x, w, bias, residual):
    torch.manual_seed(1)
    x = x.flatten(2)
    w = w.mean((1, 2, 3))[:, None].expand(4, x.shape[2])
    return torch_reformer.linear_act(x, w, bias, activation="gelu", dropout=0.3).square().mean() * residual


FUSED = {
    "act": lambda x, w, bias, residual: torch_reformer.conv2d_act(x, w, bias, activation="gelu", residual=residual),
    "training": fused_training,
    "evaluation": fused_evaluation,
    "reductions": reductions,
    "linear": fused_linear,
    "stitch": lambda x, w, bias, residual: torch_reformer.stitch(
        residual * x.mean() * w.mean(),
        Program(program.store(program.tanh(program.acc()) * program.channel("bias"))),
        {"bias": bias},
    ),
}


@pytest.mark.parametrize("create_graph", [False, True], ids=["", "create_graph"])
@pytest.mark.parametrize("function", FUSED.values(), ids=FUSED)
def test_batched_gradients_of_fused_operators(function, create_graph):
    kind = {"dtype": torch.float64, "requires_grad": True}
    tensors = *operands(), torch.randn(4, **kind), torch.randn(2, 4, 5, 5, **kind)
    y = function(*tensors)
    many = torch.randn(3, *y.shape, dtype=y.dtype)
    batched = torch.autograd.grad(y, tensors, many, retain_graph=True, is_grads_batched=True, create_graph=create_graph)
    one_by_one = [torch.autograd.grad(y, tensors, g, retain_graph=True, create_graph=create_graph) for g in many]
    stacked = tuple(torch.stack(grads) for grads in zip(*one_by_one, strict=True))
    torch.testing.assert_close(batched, stacked)
    if create_graph:
        actual, expected = (
            torch.autograd.grad(sum(grad.square().sum() for grad in grads), tensors, retain_graph=True)
            for grads in (batched, stacked)
        )
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("function", FUSED.values(), ids=FUSED)
def test_vectorized_hessian(function):
    x, w = torch.randn(2, 2, 3, 3, dtype=torch.float64), torch.randn(4, 2, 2, 2, dtype=torch.float64)
    tensors = x, torch.randn(4, dtype=torch.float64), torch.randn(2, 4, 2, 2, dtype=torch.float64)

    def loss(x, bias, residual):
        return function(x, w, bias, residual).square().sum()

    actual, expected = (torch.autograd.functional.hessian(loss, tensors, vectorize=each) for each in (True, False))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", ["conv2d", "conv2d_act"])
def test_tangents_go_through_an_earlier_graphs_backward(name):
    x, w = operands()
    y = FUNCTIONS[name](x, w)
    tangent = torch.randn_like(y)
    expected = torch.autograd.grad(y, (x, w), tangent, retain_graph=True)
    with forward_ad.dual_level():
        grads = torch.autograd.grad(y, (x, w), forward_ad.make_dual(torch.ones_like(y), tangent))
        actual = tuple(forward_ad.unpack_dual(grad).tangent for grad in grads)
    torch.testing.assert_close(actual, expected)


@each
def test_a_geometry_is_whole_numbers_also_the_second_time(function):
    x, w = operands()
    function(x, w, 2)
    with pytest.raises(TypeError):
        function(x, w, 2.0)
    stride = torch.tensor(2)
    assert function(x, w, stride).shape[2] == 3
    stride.fill_(1)
    assert function(x, w, stride).shape[2] == 5


def test_running_statistics_are_given_both_or_neither():
    x, w = operands()
    with pytest.raises(ValueError, match="running_mean and running_var must be given both or neither"):
        torch_reformer.conv2d_batch_norm_act(x, w, None, torch.zeros(4), None, training=True)
