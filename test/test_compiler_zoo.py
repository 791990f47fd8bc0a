"""``torch.compile(model, backend="reformer")`` with the models of zoo.py: a training step, and losses over many steps,
against PyTorch's."""

import copy
import dataclasses
import os
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten, slow
from torch import Tensor, nn
from training_models import Language, Layer, conv_norm, relative_error, step
from zoo import BERT, EACH_NIGHT, HEAVY, QUICK, Case, Hardsigmoid, made, replaced, results, trained, words

import torch_reformer  # noqa: F401  registers the operators
from torch_reformer.compiler.backend import reformer

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(model, plans=None):
    """The compiled model. plans: a list that the report of each planned graph is added to."""
    return torch.compile(model, backend=reformer, options=None if plans is None else {"report": plans.append})


def differences(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Difference of each tensor relative to its norm, or at least to a small part of the norm of all: the gradient of a
    bias before batch norm is zero but for rounding."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, expected, strict=True)]
    floor = 1e-4 * torch.stack([b.norm() for _, b in pairs]).norm()
    return [float((a - b).norm() / torch.maximum(b.norm(), floor)) for a, b in pairs]


def exactly(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """The case's results in fp64."""
    models = [replaced(copy.deepcopy(each), "Hardsigmoid", lambda _: Hardsigmoid()) for each in case.models]
    return results(dataclasses.replace(case, models=models), torch.float64)


@pytest.mark.parametrize("name", [*QUICK, *slow(*HEAVY, each_night=EACH_NIGHT)])
def test_a_training_step(name):
    """In fp64 each gradient equals PyTorch's. In fp32 the gradients are as near to those as PyTorch's, in most of five
    runs: if a ReLU's input is rounded to the other side of zero, either side's gradients move at random."""
    near, plans = [], []
    for seed in range(5):
        case = made((QUICK | HEAVY)[name], seed)
        if seed == 0:
            models = [copy.deepcopy(each).float() for each in case.models]
            calls = [compiled(each) for each in models]
        for model, other in zip(models, case.models, strict=True):
            model.load_state_dict(other.state_dict())
            model.zero_grad()
        expected, buffers = exactly(case)
        if seed == 0:
            found, own_buffers = results(case, torch.float64, lambda model: compiled(model, plans))
            assert plans
            searches = [plan.planned for plan in plans if plan.planned]
            assert not [each for search in searches for each in search.refused if "no " in each[:11]]
            assert all(each.bound_us <= each.plan_us + 1e-6 <= each.greedy_us + 2e-6 for each in searches)
            assert max(differences(found, expected)) < 1e-9
            torch.testing.assert_close(own_buffers, buffers)
        own, eager = (
            relative_error(found, expected) for found, _ in (trained(case, models, calls), results(case, torch.float32))
        )
        near.append(own < 2 * eager + 1e-7)
        if sum(near) == 3:
            return
    raise AssertionError(f"only {sum(near)} of {len(near)} runs are as near as PyTorch's")


@pytest.mark.slow
def test_dropout_repeats_by_its_seed():
    """Dropout repeats with its seed, and the mean of its losses is PyTorch's."""
    case = made(words("BertForSequenceClassification", **BERT))
    (model,), run = case.models, compiled(case.models[0])

    def runs(call, seeds=range(40)):
        found = []
        for seed in seeds:
            torch.manual_seed(seed)
            found.append(step(call, model, case.inputs))
            model.zero_grad()
        return found

    own, eager = runs(run), runs(model)
    assert all(each.isfinite().all() for found in own for each in found)
    torch.testing.assert_close(runs(run, [3])[0], own[3], rtol=0, atol=0)
    one, other = (torch.stack([found[0] for found in each]) for each in (own, eager))
    assert one.unique().numel() > 30
    assert (one.mean() - other.mean()).abs() < 4 * (one.var() / 40 + other.var() / 40).sqrt()


def test_an_operator_of_unknown_results():
    """An operator without a fake kernel is left to Python; the code around it is compiled."""
    library, plans = torch.library.Library("reformer_zoo", "FRAGMENT"), []
    library.define("unknown(Tensor x) -> Tensor")
    library.impl("unknown", lambda x: x[x > 0] * 2, "CPU")
    call = torch.ops.reformer_zoo.unknown
    run = compiled(lambda x: call(x * 3) + 1, plans)
    for x in (torch.randn(7), torch.randn(9)):
        torch.testing.assert_close(run(x), (x * 3)[x > 0] * 2 + 1)
    assert len(plans) >= 2


def test_a_custom_operator_of_unknown_results():
    """Dynamo itself refuses custom operators without a fake kernel, and says what is missing."""
    custom = torch.library.custom_op(
        "reformer_zoo::custom", lambda x: x[x > 0] * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    with pytest.raises(Exception, match="register_fake"):
        compiled(lambda x: custom(x * 3) + 1)(torch.randn(7))


def quantised(x):
    return torch.quantize_per_tensor(x, 0.25, 3, torch.qint8)


QUANTISED = {
    "made and used": lambda x: quantised(x * 2).dequantize() + 1,
    "given back": lambda x: quantised(x * 2),
    "as whole numbers": lambda x: quantised(x * 2).int_repr() + 1,
    "copied": lambda x: quantised(x * 2).clone().dequantize() + 1,
    "an operator on it": lambda x: quantised(x * 2).relu().dequantize(),
    "seen otherwise": lambda x: quantised(x * 2).reshape(-1).dequantize() + 1,
    "a part": lambda x: quantised(x * 2)[1:].dequantize() + 1,
    "transposed": lambda x: quantised(x * 2).t().contiguous().dequantize() + 1,
}


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions", "ignore:.*run without a plan")
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_tensors(name):
    """PyTorch runs what reads them, which fake tensors do not show."""
    function, x = QUANTISED[name], torch.randn(4, 5)
    found, expected = compiled(function)(x), function(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.dequantize(), expected.dequantize())


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_a_quantised_input():
    """Dynamo leaves quantised inputs to Python."""
    x = quantised(torch.randn(4, 5))
    torch.testing.assert_close(compiled(lambda x: x.dequantize() * 2)(x), x.dequantize() * 2)


class Basic(nn.Module):
    """ResNet-18's block with a smooth activation: at a kink, rounding would move losses at random."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.main = nn.Sequential(
            conv_norm(inputs, outputs, 3, stride, act=nn.SiLU), conv_norm(outputs, outputs, act=None)
        )
        self.shortcut = conv_norm(inputs, outputs, 1, stride, act=None) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.silu(self.main(x) + self.shortcut(x))


def resnet():
    stages = [Basic(8, 8), Basic(8, 16, 2), Basic(16, 32, 2), Basic(32, 64, 2)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(conv_norm(3, 8, act=nn.SiLU), *stages, *ends)
    return model, torch.randn(128, 3, 16, 16), torch.randint(10, (128,))


def gpt():
    model = Language(*(Layer(32, causal=True) for _ in range(2)), width=32)
    texts = (torch.arange(17) * torch.randint(1, 5, (128, 1)) + torch.randint(30, (128, 1))) % 30
    return model, texts[:, :-1], texts[:, 1:]


def losses(make: Callable, steps: int, backend=None, dtype=torch.float32) -> Tensor:
    """Losses of a training run over batches of 16 that repeat."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x, wanted = make()
    model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    call = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    found = []
    for i in range(steps):
        batch = slice(i % 8 * 16, i % 8 * 16 + 16)
        loss = F.cross_entropy(call(x[batch]).flatten(0, -2), wanted[batch].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert sum(found[-8:]) < 0.7 * sum(found[:8])
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("make", [resnet, gpt])
def test_losses_of_60_steps(make):
    """Losses are as near to those of fp64 as PyTorch's are."""
    exact = losses(make, 60, dtype=torch.float64)
    own, eager = ((losses(make, 60, backend) - exact).abs().mean() for backend in (reformer, None))
    assert own < 2 * eager + 1e-7


@pytest.fixture
def inductor():
    """torch.compile's own backend."""
    with torch._inductor.config.patch(compile_threads=1):
        try:
            torch.compile(lambda x: x.exp() + 1)(torch.ones(2))
        except Exception as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"torch.compile's own backend, Inductor, has no C++ compiler that works: {error}")
        yield "inductor"


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("make", [resnet, gpt])
def test_losses_of_300_steps(make, inductor):
    """Losses follow PyTorch's as closely as those of torch.compile's own backend do."""
    eager = losses(make, 300)
    own, other = ((losses(make, 300, backend) - eager).abs().mean() for backend in (reformer, inductor))
    assert own < 2 * other + 1e-6
