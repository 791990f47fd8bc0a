"""The operators behave under autocast as aten::conv2d does."""

import itertools

import pytest
import torch
from cases import strided

import torch_reformer
from torch_reformer import conv2d_act, linear_act

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
CONVS = (torch.conv2d, torch_reformer.conv2d)


def outcome(conv, x, w, bias):
    """The result's data type, or the error."""
    try:
        return conv(x, w, bias).dtype
    except RuntimeError:
        return RuntimeError


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES, [None, *DTYPES])), ids=str)
def test_data_types_are_those_of_aten(dtypes, autocast):
    sizes = (2, 3, 5, 5), (4, 3, 3, 3), (4,)
    tensors = [dtype and torch.randn(size).to(dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        theirs, ours = (outcome(conv, *tensors) for conv in CONVS)
    assert ours == theirs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_keep_the_data_type_of_their_tensor(dtype):
    results = []
    for conv in CONVS:
        torch.manual_seed(0)
        x, w, bias = (torch.randn(s, requires_grad=True) for s in ((2, 3, 6, 6), (4, 3, 3, 3), (4,)))
        with torch.autocast("cpu", dtype):
            y = conv(x, w, bias)
        y.float().square().mean().backward()
        assert y.dtype == dtype
        assert all(t.grad.dtype == torch.float32 for t in (x, w, bias))
        results.append([y, x.grad, w.grad, bias.grad])
    torch.testing.assert_close(*results, atol=0.03, rtol=0.03)


def test_nested():
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            assert torch_reformer.conv2d(x, w).dtype == torch.float32
            with torch.autocast("cpu", torch.float16):
                assert torch_reformer.conv2d(x, w).dtype == torch.float16
        assert torch_reformer.conv2d(x, w).dtype == torch.bfloat16
    assert torch_reformer.conv2d(x, w).dtype == torch.float32


def test_a_weight_is_cast_once():
    """Autocast stores its copy of a parameter, as for PyTorch's own operators."""
    w = torch.randn(4, 3, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = (torch_reformer.conv2d(torch.randn(1, 3, 5, 5), w) for _ in range(2))
    (first.sum() + second.sum()).backward()
    assert w.grad.dtype == torch.float32


def test_autocast_of_another_device_changes_nothing():
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    with torch.autocast("cuda", torch.float16, enabled=torch.cuda.is_available()):
        assert torch_reformer.conv2d(x, w).dtype == torch.float32


# --- weights, which fused operators cast themselves -------------------------------------------------------------------


def norm_act(x, w):
    return torch_reformer.conv2d_batch_norm_act(x, w, None, None, None, training=True)


WEIGHTED = {
    "conv2d": (lambda x, w: conv2d_act(x, w, activation="silu"), (4, 6, 9, 9), (5, 6, 3, 3)),
    "linear": (lambda x, w: linear_act(x, w, activation="gelu"), (9, 8), (6, 8)),
    "batch norm": (norm_act, (4, 6, 9, 9), (5, 6, 3, 3)),
}
weighted = pytest.mark.parametrize("call, size, weight", WEIGHTED.values(), ids=WEIGHTED)


@weighted
@pytest.mark.parametrize("kind", ["contiguous", "channels_last", "sliced", "bf16", "frozen"])
@pytest.mark.parametrize("again", ["once", "twice", "batched"])
def test_weights_that_are_cast(again, kind, call, size, weight):
    """Results equal those of a weight that was cast before, bit by bit; gradients have the weight's own data type.

    Only second derivatives without batch norm differ: these sums are added up in another data type.
    """
    x, w, results = torch.randn(size).bfloat16(), torch.randn(weight), []
    if kind in ("channels_last", "sliced"):
        w = strided(w, kind) if w.dim() == 4 else w.T.contiguous().T
    w = w.bfloat16() if kind == "bf16" else w
    for autocast in (False, True):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_(kind != "frozen")]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = call(leaves[0], leaves[1] if autocast else leaves[1].bfloat16())
        expected = [leaf for leaf in leaves if leaf.requires_grad]
        grad = torch.sin(torch.arange(2 * y.numel())).view(2, *y.shape).bfloat16()
        if again == "batched":
            grads = torch.autograd.grad(y, expected, grad, is_grads_batched=True)
        else:
            grads = torch.autograd.grad(y, expected, grad[0], create_graph=again == "twice")
        assert [g.dtype for g in grads] == [leaf.dtype for leaf in expected]
        if again == "twice":
            grads += torch.autograd.grad(sum(g.float().square().mean() for g in grads), expected)
        results.append([y, *grads])
    adds_up = again == "twice" and call is not norm_act
    torch.testing.assert_close(*results, **(dict(rtol=2**-7, atol=2**-10) if adds_up else dict(rtol=0, atol=0)))


@weighted
def test_weights_that_change_before_the_backward(call, size, weight):
    """Under autocast the backward and its derivatives use a copy of the weight, as in PyTorch."""
    x, w = torch.randn(size, requires_grad=True), torch.randn(weight, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = call(x, w)
    expected = torch.autograd.grad(y.float().square().sum(), (x, w), retain_graph=True)
    with torch.no_grad():
        w.mul_(2)
    torch.testing.assert_close(torch.autograd.grad(y.float().square().sum(), (x, w), retain_graph=True), expected)
    grads = torch.autograd.grad(y.float().square().sum(), (x, w), create_graph=True)
    torch.testing.assert_close([grad.detach() for grad in grads], [*expected], rtol=2**-7, atol=2**-7)
    (again,) = torch.autograd.grad(grads[0].float().square().sum(), w)
    assert again.dtype == w.dtype and again.isfinite().all() and again.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16])
def test_biases_of_any_type(weight, dtype):
    """Each operand is cast by itself.

    The values are compared with those of the cast operands in fp64: PyTorch's own are farther from these on CPUs
    without bf16 instructions.
    """
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    w = torch.randn(3, 4, 3, 3).to(weight).requires_grad_()
    b = torch.randn(3).to(dtype).requires_grad_()
    types, results = [], []
    for conv2d in (torch.nn.functional.conv2d, torch_reformer.conv2d):
        with torch.autocast("cpu", torch.bfloat16):
            y = conv2d(x, w, b)
        results = [y, *torch.autograd.grad(y.float().sum(), (x, w, b))]
        types.append([result.dtype for result in results])
    assert types[0] == types[1]
    wide = [each.to(torch.bfloat16).double() for each in (x, w, b)]
    y = torch.nn.functional.conv2d(*wide)
    exact = [y, *torch.autograd.grad(y.sum(), wide)]
    torch.testing.assert_close([each.double() for each in results], exact, rtol=2**-7, atol=2**-7)


@weighted
def test_second_derivatives_inside_of_autocast(call, size, weight):
    """The forward runs outside of autocast, which may round, as in PyTorch; but data types must match."""
    x, w = torch.randn(size, requires_grad=True), torch.randn(weight, requires_grad=True)
    y = call(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(grad.square().sum(), w)
    assert again.dtype == torch.float32 and again.isfinite().all()


@weighted
def test_autocast_of_meta_tensors(call, size, weight):
    x, w = torch.randn(size, device="meta"), torch.randn(weight, device="meta", requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, w).shape[0] == size[0]


@pytest.mark.parametrize("call", [conv2d_act, norm_act])
@pytest.mark.parametrize("size", [(4, 3), (4, 3, 3)], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_weights_that_are_none(call, size, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        with pytest.raises(RuntimeError, match=f"conv2d: weight must have 4 dimensions, got {len(size)} "):
            call(torch.zeros(2, 3, 6, 6), torch.zeros(size, requires_grad=True))
