"""Derivatives of the operators: first and second order, both modes, under torch.func, and only the needed ones."""

import itertools

import pytest
import torch
from cases import Case, directions, ops
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torch_reformer

CASES = {
    "plain": Case(n=2, c=2, h=4, w=3, k=3, r=3, s=2),
    "asymmetric": Case(2, 4, 5, 4, 6, 3, 2, padding=(1, 2), stride=(2, 1), dilation=(1, 2), groups=2),
    "depthwise": Case(2, 3, 4, 4, 6, 3, 3, padding=(1, 1), groups=3),
    "strided 1x1": Case(2, 2, 4, 5, 3, 1, 1, stride=(2, 2)),
}


def operands(case, requires_grad=True):
    sizes = case.input_size, case.weight_size, case.output_size, (case.k,)
    return [torch.randn(size, dtype=torch.float64, requires_grad=requires_grad) for size in sizes]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gradcheck(case, direction, channels_last):
    x, w, y, bias = operands(case)
    if channels_last:
        x, w, y = (t.detach().contiguous(memory_format=torch.channels_last).requires_grad_() for t in (x, w, y))
    inputs, run = directions(case, x, w, y)[direction]
    if direction == "F":
        inputs, run = (x, w, bias), lambda x, w, bias: ops.conv2d(x, w, bias, *case.geometry)
    assert gradcheck(run, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)


@pytest.mark.parametrize("direction", "FBW")
@pytest.mark.parametrize("case", [CASES["asymmetric"]], ids=["asymmetric"])
def test_gradgradcheck(case, direction):
    x, w, y, bias = operands(case)
    inputs, run = directions(case, x, w, y)[direction]
    if direction == "F":
        inputs, run = (x, w, bias), lambda x, w, bias: ops.conv2d(x, w, bias, *case.geometry)
    assert gradgradcheck(run, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


CASE = CASES["asymmetric"]


def ours(x, w, bias=None):
    return torch_reformer.conv2d(x, w, bias, *CASE.geometry)


def theirs(x, w, bias=None):
    return torch.conv2d(x, w, bias, *CASE.geometry)


def cubed(conv):
    return lambda *tensors: conv(*tensors).pow(3).sum()


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("outer, inner", list(itertools.product([jacrev, jacfwd], repeat=2)))
def test_nested_transforms(outer, inner, with_bias):
    """Every second derivative, both modes in both orders: the outer level must see the inner level's computation."""
    x, w, _, bias = (t.detach() for t in operands(CASE))
    tensors = (x, w, bias) if with_bias else (x, w)
    expected = hessian(cubed(theirs), tuple(range(len(tensors))))(*tensors)
    for i, j in itertools.product(range(len(tensors)), repeat=2):
        torch.testing.assert_close(outer(inner(cubed(ours), i), j)(*tensors), expected[i][j])


def test_grad_of_grad_of_grad():
    x, w, *_ = operands(CASE, requires_grad=False)

    def third(conv):
        def penalty(w):
            return grad(cubed(conv), 1)(x, w).pow(2).sum()

        return grad(lambda w: grad(penalty)(w).sum())(w)

    torch.testing.assert_close(third(ours), third(theirs))


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 2)], ids=str)
@pytest.mark.parametrize("direction", "BW")
def test_vmap_of_gradients(direction, dims):
    x, w, y, _ = operands(CASE, requires_grad=False)
    (first, second), run = directions(CASE, x, w, y)[direction]
    batched = [
        t if dim is None else torch.randn(3, *t.shape, dtype=t.dtype).movedim(0, dim)
        for t, dim in zip((first, second), dims, strict=True)
    ]
    one_by_one = [
        run(*(t if d is None else t.select(d, i) for t, d in zip(batched, dims, strict=True))) for i in range(3)
    ]
    torch.testing.assert_close(vmap(run, dims)(*batched), torch.stack(one_by_one))


def test_nested_vmap():
    x, w, *_ = operands(CASE, requires_grad=False)
    xs, ws = torch.stack([x, 2 * x]), torch.stack([w, w + 1, w - 1])
    result = vmap(vmap(ours, (None, 0)), (0, None))(xs, ws)
    torch.testing.assert_close(result, torch.stack([torch.stack([theirs(x, w) for w in ws]) for x in xs]))


def check_per_sample_gradients(model, images):
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, image):
        return functional_call(model, parameters, (image[None],)).square().sum()

    per_sample = vmap(grad(loss), (None, 0))(parameters, images)
    for i, image in enumerate(images):
        expected = torch.autograd.grad(loss(dict(model.named_parameters()), image), list(model.parameters()))
        torch.testing.assert_close([gradients[i] for gradients in per_sample.values()], list(expected))


def test_per_sample_gradients():
    model = torch_reformer.nn.Conv2d(4, 6, 3, padding=1).double()
    check_per_sample_gradients(model, torch.randn(5, 4, 6, 6, dtype=torch.float64))


@pytest.mark.parametrize("which", [w for n in (1, 2, 3) for w in itertools.combinations(range(3), n)], ids=str)
def test_jvp(which):
    tensors = [t.detach() for i, t in enumerate(operands(CASE)) if i != 2]
    tangents = tuple(torch.randn_like(tensors[i]) for i in which)

    def of(conv):
        def function(*chosen):
            mixed = list(tensors)
            for i, tensor in zip(which, chosen, strict=True):
                mixed[i] = tensor
            return conv(*mixed)

        return jvp(function, tuple(tensors[i] for i in which), tangents)

    torch.testing.assert_close(of(ours), of(theirs))


class Calls(TorchDispatchMode):
    """Names of this package's operators that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "reformer" and op is not ops.conv2d.default:
            self.names.append(op._opname)
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)), ids=str)
def test_nothing_is_computed_or_saved_that_is_not_needed(needed):
    x, w, bias = (
        t.detach().requires_grad_(n) for t, n in zip([*operands(CASE)[:2], operands(CASE)[3]], needed, strict=True)
    )
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        result = ours(x, w, bias)
    # The gradient of each operand needs only the other one; the bias gradient needs neither.
    assert sorted(saved) == sorted([x.shape] * needed[1] + [w.shape] * needed[0])
    assert result.requires_grad == any(needed)
    if any(needed):
        with Calls() as calls:
            result.sum().backward()
        # The bias gradient is composite, so the operators that it consists of run instead.
        assert calls.names == ["conv2d_input_grad"] * needed[0] + ["conv2d_weight_grad"] * needed[1]
    assert [t.grad is not None for t in (x, w, bias)] == list(needed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gradients_have_the_data_type(dtype):
    tensors = [t.detach().to(dtype).requires_grad_() for i, t in enumerate(operands(CASE)) if i != 2]
    for gradient in torch.autograd.grad(ours(*tensors).sum(), tensors):
        assert gradient.dtype == dtype


def test_gradient_of_expanded_and_channels_last_grads():
    x, w, *_ = operands(CASE)
    result, expected = ours(x, w), theirs(x, w)
    weights = torch.randn_like(result)
    for g in (
        torch.ones((), dtype=x.dtype).expand_as(result),
        weights,
        weights.contiguous(memory_format=torch.channels_last),
    ):
        mine, right = (torch.autograd.grad(y, (x, w), g, retain_graph=True) for y in (result, expected))
        torch.testing.assert_close(mine, right)


def test_retain_graph():
    x, w, *_ = operands(CASE)
    loss = ours(x, w).square().sum()
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, (x, w))))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_operands_changed_in_place_are_noticed():
    x, w, *_ = operands(CASE)
    w = w.clone()
    result = ours(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant):
    tensors = [t for i, t in enumerate(operands(CASE)) if i != 2]
    expected = torch.autograd.grad(ours(*tensors).square().sum(), tensors)
    checkpoint(ours, *tensors, use_reentrant=use_reentrant).square().sum().backward()
    for tensor, want in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor.grad, want)


def test_double_backward_through_modules():
    """A gradient penalty, as in WGAN-GP."""
    results = []
    for module in (torch.nn.Conv2d, torch_reformer.nn.Conv2d):
        torch.manual_seed(1)
        model = torch.nn.Sequential(module(3, 4, 3, padding=1), torch.nn.Tanh(), module(4, 2, 3, stride=2)).double()
        images = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(model(images).sum(), images, create_graph=True)
        (slope.norm() - 1).square().backward()
        results.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*results)
