"""conv2d_batch_norm_act and nn.Conv2dBatchNormAct: results, gradients, running statistics, large means."""

import copy

import pytest
import torch
import unfused
from test_fused import CASES, DTYPES, LAYOUTS, conv_tensors, strided
from unfused import ACTIVATIONS, compare

import torch_reformer


def norm_tensors(dtype, **sizes):
    tensors = conv_tensors(dtype, **sizes)
    k = len(tensors["bias"])
    return tensors | {"norm_weight": torch.randn(k).to(dtype), "norm_bias": torch.randn(k).to(dtype)}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation, dtype, training):
    def of(module):
        def function(x, w, bias, residual, **norm):
            statistics = torch.full((16,), 0.1, dtype=x.dtype), torch.full((16,), 2.0, dtype=x.dtype)
            options = dict(training=training, activation=activation, residual=residual)
            return module.conv2d_batch_norm_act(x, w, bias, *statistics, **norm, **options)

        return function

    tensors = norm_tensors(dtype, size=12)
    # In training batch norm removes what a bias adds: its gradient is 0 except for rounding.
    compare(of(torch_reformer), of(unfused), tensors, tensors.keys() - {"bias"} if training else None)


@pytest.mark.parametrize("missing", ["affine", "residual", "bias", "affine residual bias"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_optional_tensors(training, missing):
    tensors = norm_tensors(torch.float64)
    for name in ("residual", "bias", "norm_weight", "norm_bias"):
        if name in missing or (name.startswith("norm") and "affine" in missing):
            del tensors[name]

    def of(module):
        def function(x, w, bias=None, **others):
            statistics = torch.full((16,), 0.1, dtype=x.dtype), torch.full((16,), 2.0, dtype=x.dtype)
            return module.conv2d_batch_norm_act(x, w, bias, *statistics, training=training, **others)

        return function

    compare(of(torch_reformer), of(unfused), tensors)


def twins(*arguments, **keywords):
    """PyTorch's module and this package's, with equal parameters other than the initial ones."""
    theirs = unfused.ConvNormAct(*arguments, **keywords)
    geometry = keywords.pop("geometry", ())
    ours = torch_reformer.nn.Conv2dBatchNormAct(*arguments, *geometry, **keywords)
    with torch.no_grad():
        for parameter in theirs.norm.parameters():
            parameter.uniform_(-1, 1)
    ours.load_state_dict(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    return theirs, ours


NORMS = {
    "default": {},
    "cumulative": dict(momentum=None),
    "momentum 1": dict(momentum=1.0),
    "not affine": dict(affine=False),
    "no statistics": dict(track_running_stats=False),
    "large eps": dict(eps=0.5),
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("switched_off", [False, True], ids=["", "switched off"])
def test_running_statistics(norm, switched_off):
    """Running statistics equal PyTorch's over three batches of training and one of evaluation before and after them.

    "switched off": track_running_stats is set to False in a module that has statistics.
    """
    theirs, ours = (module.double() for module in twins(3, 8, 3, activation="silu", **norm))
    if switched_off:
        theirs.norm.track_running_stats = ours.norm.track_running_stats = False
    for training in (False, True, True, True, False):
        x = torch.randn(4, 3, 8, 9, dtype=torch.float64) + 1
        theirs.train(training), ours.train(training)
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_geometries(name, layout):
    case = CASES[name]
    if name == "one pixel":
        return
    (stride, padding, dilation, groups) = case.geometry
    theirs, ours = twins(case.c, case.k, (case.r, case.s), geometry=(stride, padding, dilation, groups))
    x, residual = torch.randn(case.input_size, dtype=torch.float64), torch.randn(case.output_size, dtype=torch.float64)
    expected = unfused.with_gradients(theirs.double(), dict(x=x, residual=residual))
    x, residual = strided(x, layout), strided(residual, layout)
    got = unfused.with_gradients(lambda x, residual: ours.double()(x, residual), dict(x=x, residual=residual))
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
def test_the_gradient_of_a_residual_is_that_of_the_sum(frozen):
    """Without an activation the gradient is passed on, not rounded to the result's data type."""
    tensors = {name: t.requires_grad_(not frozen) for name, t in norm_tensors(torch.bfloat16).items()}
    residual = tensors.pop("residual").float().detach().requires_grad_()
    x, w, bias, *norm = tensors.values()
    tensors = x, w, bias, torch.zeros(16), torch.ones(16), *norm
    options = dict(training=True, activation="none", residual=residual)
    grad = torch.randint(-8, 9, residual.shape).bfloat16()
    torch_reformer.conv2d_batch_norm_act(*tensors, **options).backward(grad)
    assert residual.grad.dtype == torch.float32 and torch.equal(residual.grad, grad.float())


def norm_of(x, weight, **options):
    statistics = torch.zeros(len(weight), dtype=x.dtype), torch.ones(len(weight), dtype=x.dtype)
    return torch_reformer.conv2d_batch_norm_act(x, weight, None, *statistics, training=True, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"momentum": None}, "momentum must be a number or a tensor of one element, got None"),
    ],
)
def test_sentences(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        norm_of(torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), **options)


def test_momentum_that_wants_a_gradient_gets_none():
    momentum, w = torch.tensor(0.1, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    norm_of(torch.randn(2, 3, 6, 6), w, momentum=momentum).sum().backward()
    assert momentum.grad is None and w.grad is not None


def test_cumulative_average_in_fp64():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4, momentum=None)).double()
    fused = torch_reformer.nn.Conv2dBatchNormAct(3, 4, 3, momentum=None, activation="none").double()
    fused.conv.load_state_dict(model[0].state_dict())
    for i in range(1, 5):
        x = i * torch.randn(4, 3, 6, 6, dtype=torch.float64)
        torch.testing.assert_close(fused(x), model(x))
    torch.testing.assert_close(fused.norm.running_var, model[1].running_var, rtol=1e-13, atol=0)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_one_value_a_channel(training):
    theirs, ours = twins(3, 4, 3)
    x = torch.randn(1, 3, 3, 3)
    outcomes = []
    for module in (theirs, ours):
        try:
            outcomes.append(module.train(training)(x))
        except ValueError:
            outcomes.append(None)
        outcomes.append(dict(module.named_buffers()))
    torch.testing.assert_close(outcomes[2:], outcomes[:2])
    assert (outcomes[0] is None) == training


@pytest.mark.parametrize("eps", [1e-30, 0.0, -1e-5, float("nan")])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_eps_is_refused_where_pytorch_refuses_it(training, eps):
    theirs, ours = (module.double().train(training) for module in twins(3, 4, 3, eps=eps))
    x, refused = torch.randn(2, 3, 5, 5, dtype=torch.float64), eps < 0 or (eps == 0 and training)
    for module in (theirs, ours):
        if refused:
            with pytest.raises(ValueError, match="eps must be"):
                module(x)
    if not refused:
        torch.testing.assert_close(ours(x), theirs(x), equal_nan=True)
    torch.testing.assert_close(dict(ours.named_buffers()), dict(theirs.named_buffers()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_means(layout):
    """With a mean of 1e4 and a deviation of 1 the result's error is at most twice PyTorch's."""
    noise = strided(torch.randn(8, 16, 24, 24), layout)
    x = noise + 1e4
    w = torch.eye(16).view(16, 16, 1, 1)

    def of(module, dtype):
        statistics = torch.zeros(16, dtype=dtype), torch.ones(16, dtype=dtype)
        y = module.conv2d_batch_norm_act(x.to(dtype), w.to(dtype), None, *statistics, training=True, activation="none")
        return [y, *statistics]

    exact, theirs, ours = of(unfused, torch.float64), of(unfused, torch.float32), of(torch_reformer, torch.float32)
    for name, e, t, o in zip(("result", "mean", "variance"), exact, theirs, ours, strict=True):
        unit = torch.finfo(torch.float32).eps * e.square().mean().sqrt()
        allowed, actual = (2 * (t - e).square().mean().sqrt() + unit / 4, (o - e).square().mean().sqrt())
        assert actual <= allowed, f"{name}: {actual:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_not_a_number_goes_where_it_goes_in_pytorch(training, value):
    results = []
    for module in (torch_reformer, unfused):
        torch.manual_seed(0)
        x, w, _, residual, *norm = norm_tensors(torch.float32).values()
        x[1, 2, 3, 4] = value
        statistics = torch.zeros(16), torch.ones(16)
        tensors = [t.requires_grad_() for t in (x, w, residual, *norm)]
        y = module.conv2d_batch_norm_act(x, w, None, *statistics, *norm, training=training, residual=residual)
        results.append([t.isfinite() for t in (y, *statistics, *torch.autograd.grad(y.sum(), tensors))])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_copies_and_state():
    theirs, ours = twins(3, 4, 3)
    theirs(torch.randn(2, 3, 6, 6))
    ours.load_state_dict(theirs.state_dict())
    again = copy.deepcopy(ours)
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(again.eval()(x), ours.eval()(x))
    assert "activation=relu" in repr(ours)
