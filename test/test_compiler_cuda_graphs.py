"""CUDA graphs of compiled graphs (runtime/cuda_graphs.py), without a GPU: PyTorch's recording is replaced."""

import copy

import pytest
import torch
from marks import needs_aten
from torch import nn
from torch._inductor import config as inductor_config

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.runtime import cuda_graphs

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As if the CPU's tensors were a GPU's."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(cuda_graphs.cudagraph_trees, "get_manager", lambda *_, **__: None)
    monkeypatch.setattr(cuda_graphs.cudagraphs, "check_for_skip", lambda module, fixed: None)
    monkeypatch.setattr(cuda_graphs.cudagraphs, "get_device_index", lambda module: 0)


def test_cuda_graphs_get_what_stays_where_it_is(monkeypatch):
    """Parameters and buffers, by which they need no copies, and in the backward what the forward saved."""
    calls = []

    def recorded(run, inputs, fixed, **options):
        calls.append((options["is_backward"], options["is_inference"], len(inputs), sorted(fixed)))
        return lambda inputs: run(inputs)

    monkeypatch.setattr(cuda_graphs.cudagraph_trees, "cudagraphify_impl", recorded)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Sigmoid()), torch.randn(16, 4)
    expected = copy.deepcopy(model)
    run = torch.compile(model, backend=reformer, mode="reduce-overhead", dynamic=False)
    run(x).square().sum().backward()
    expected(x).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, expected[0].weight.grad)
    torch.testing.assert_close(dict(model.named_buffers()), dict(expected.named_buffers()))
    with torch.no_grad():
        torch.testing.assert_close(run(x), expected(x))
    (forward, backward, inference) = calls
    assert forward[:3] == (False, False, 8) and len(forward[3]) == 7  # all but x
    assert backward[:2] == (True, False) and backward[3] == list(range(backward[2] - 1))  # all but the gradient
    assert inference[:3] == (False, True, 8) and len(inference[3]) == 7


def of_shared_memory(x, w, scale):
    one, other = torch.cat([x.sin() @ w, x.cos() @ w]).split(len(x))  # parts of one result
    mean, deviation = torch.var_mean(x, dim=1)
    return one, other, mean, deviation, x[1:], x, scale.view(1, -1), torch.empty(0), (x @ w).exp()


def test_no_recorded_results_share_memory(monkeypatch):
    """Only with inputs. The results share memory as without CUDA graphs."""
    shared = []

    def recorded(run, inputs, fixed, **options):
        def replay(args):
            given = {each.untyped_storage().data_ptr() for each in args}
            results = run(args)
            places = [each.untyped_storage().data_ptr() for each in results if each is not None and each.numel()]
            places = [place for place in places if place not in given]
            assert len(set(places)) == len(places)
            shared.append(sum(each is None for each in results))
            return results

        return replay

    monkeypatch.setattr(cuda_graphs.cudagraph_trees, "cudagraphify_impl", recorded)
    run = torch.compile(of_shared_memory, backend=reformer, mode="reduce-overhead", dynamic=False)
    for _ in range(3):
        x, w, scale = torch.randn(6, 4, requires_grad=True), torch.randn(4, 5), torch.randn(3)
        found, expected = run(x, w, scale), of_shared_memory(x, w, scale)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride() and one.requires_grad == other.requires_grad
        grads = [torch.autograd.grad(sum(each.sum() for each in y if each.requires_grad), x) for y in (found, expected)]
        torch.testing.assert_close(*grads)
    assert shared[0] > 0


@pytest.mark.parametrize("how", ["all", "automatic", "skipped"])
def test_cuda_graphs_of_many_sizes(how, monkeypatch):
    """Each tuple of sizes has a CUDA graph of its own, for the forward and for the backward."""
    recorded = []

    def cudagraphify(run, inputs, fixed, is_backward, **options):
        def sizes(args):
            return [arg.shape if isinstance(arg, torch.Tensor) else arg for arg in args]

        known = sizes(inputs)
        recorded.append((is_backward, known))

        def replay(args):
            assert sizes(args) == known
            return run(args)

        return replay, run(inputs)

    monkeypatch.setattr(cuda_graphs.cudagraph_trees, "cudagraphify", cudagraphify)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Sigmoid())
    expected = copy.deepcopy(model)
    run = torch.compile(model, backend=reformer, mode="reduce-overhead", dynamic=None if how == "automatic" else True)
    lengths = (9, 5, 9, 7, 5)
    with inductor_config.patch({"triton.cudagraph_skip_dynamic_graphs": how == "skipped"}):
        for length in lengths:
            x = torch.randn(3, length, 4, requires_grad=True)
            (grad,) = torch.autograd.grad(run(x).square().sum(), x)
            torch.testing.assert_close(grad, torch.autograd.grad(expected(x).square().sum(), x)[0])
    counts = [sum(is_backward == backward for is_backward, _ in recorded) for backward in (False, True)]
    # Automatically, the second length makes the size a symbol, so that the first one is recorded again.
    assert counts == {"all": [3, 3], "automatic": [4, 4], "skipped": [0, 0]}[how]


def test_retained_graphs_are_not_replayed(monkeypatch):
    """A replay may write over what the forward saved."""
    replayed = []

    def recorded(run, inputs, fixed, is_backward, **options):
        def replay(inputs):
            replayed.append(is_backward)
            return run(inputs)

        return replay

    monkeypatch.setattr(cuda_graphs.cudagraph_trees, "cudagraphify_impl", recorded)
    x = torch.randn(5, requires_grad=True)
    result = torch.compile(lambda x: x.sin().sum(), backend=reformer, mode="reduce-overhead")(x)
    result.backward(retain_graph=True)
    assert replayed == [False]
    result.backward()
    assert replayed == [False, True]
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
