"""``torch.compile(model, backend="reformer")`` on a GPU, with the models of zoo.py in bf16: `make test-gpu`."""

import pytest
import torch
from torch import nn
from training_models import relative_error
from zoo import HEAVY, QUICK, made, results

from torch_reformer.compiler.backend import reformer

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", [*QUICK, *HEAVY])
def test_errors_in_autocast(name, mode):
    """Against fp32, those of a training step are at most half as large again as PyTorch's, in most of five runs."""
    if mode and name == "gan":
        pytest.skip("a second backward adds to gradients of the first, which lie in CUDA graphs' memory")
    torch._dynamo.reset()

    def compiled(model):
        return torch.compile(model, backend=reformer, mode=mode)

    near = []
    for seed in range(5 if mode is None else 1):
        case = made((QUICK | HEAVY)[name], seed)
        expected, _ = results(case, torch.float32, device="cuda")
        own, eager = (
            relative_error(results(case, torch.float32, call, "cuda", torch.bfloat16)[0], expected)
            for call in (compiled, lambda model: model)
        )
        near.append(own < 1.5 * eager + 1e-6)
    assert sum(near) > len(near) / 2


def test_cuda_graphs_of_many_sizes():
    """Recorded steps of several lengths, in turns, give what eager ones give."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 8)).cuda()
    run = torch.compile(model, backend=reformer, mode="reduce-overhead", dynamic=True)
    for length in (9, 5, 17, 33) * 4:
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(3, length, 64, device="cuda", requires_grad=True)
        result = run(x)
        (grad,) = torch.autograd.grad(result.square().sum(), x)
        torch.testing.assert_close(result, model(x))
        torch.testing.assert_close(grad, torch.autograd.grad(model(x).square().sum(), x)[0])
