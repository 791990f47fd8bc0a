"""Casts and small tensors are saved as one tensor each (joint_graph/pack_saved.py), and nothing else changes."""

import copy
import functools
import operator

import pytest
import torch
from compiled_steps import executables, kinds
from marks import needs_aten
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.ir.custom_ops import unpack
from torch_reformer.compiler.joint_graph import pack_saved

pytestmark = needs_aten


@pytest.fixture(autouse=True)
def few_are_copied(monkeypatch):
    monkeypatch.setattr(pack_saved, "_FEWEST_COPIED", 4)


class Narrow(nn.Module):
    """A model under autocast."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(*inputs)


class Shared(nn.Module):
    """Weights that are read twice, transposed, and returned."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(16, 16) / 4 for _ in range(5))

    def forward(self, x):
        first = self.weights[0].bfloat16()
        for weight in self.weights:
            x = (x @ weight).tanh() + (x @ weight.t()) @ self.weights[0]
        return x.float(), first


def images():
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(4 * 36, 10, bias=False))


def rows():
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([rows(), rows()])

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x


MODELS = {
    "images": (images, (3, 8, 6, 6)),
    "rows": (rows, (7, 16)),
    "shared": (Shared, (7, 16)),
    "checkpointed": (Checkpointed, (7, 16)),
}


def step(run, model, x):
    model.zero_grad()
    x = x.clone().requires_grad_()
    results = run(x)
    results = results if isinstance(results, tuple) else (results,)
    sum(result.float().square().mean() for result in results).backward()
    return [*results, x.grad, *(each.grad for each in model.parameters())]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_single_tensors(name, dynamic, monkeypatch):
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model, x = Narrow(make()), torch.randn(sizes)
    other = copy.deepcopy(model)
    packs = []
    with monkeypatch.context() as patch:
        pack = pack_saved._pack
        patch.setattr(pack_saved, "_pack", lambda *args: (packs.append(len(args[3])), pack(*args)))
        torch._dynamo.reset()
        found = [step(torch.compile(model, backend=reformer, dynamic=dynamic), model, each) for each in (x, x + 1)]
    monkeypatch.setattr(pack_saved, "FEWEST_PACKED", 1000)
    monkeypatch.setattr(pack_saved, "_FEWEST_COPIED", 1000)
    torch._dynamo.reset()
    expected = [step(torch.compile(other, backend=reformer, dynamic=dynamic), other, each) for each in (x, x + 1)]
    assert min(packs, default=0) >= 4 or (name == "checkpointed" and not packs)  # it casts again
    for one, two in zip(sum(found, []), sum(expected, []), strict=True):
        assert torch.equal(one, two)


def test_forward_saves_one_tensor(monkeypatch):
    """Which all casts are written to, at once."""
    saved = []
    model, x = Narrow(nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))), torch.randn(7, 16)
    x.requires_grad_()
    hooks = functools.partial(torch.autograd.graph.saved_tensors_hooks, unpack_hook=lambda each: each)
    with hooks(lambda each: (saved.append((each.dtype, each.numel())), each)[1]):
        forward, _ = executables(model, x, monkeypatch=monkeypatch)
    assert (torch.bfloat16, 6 * 256 + 128) == saved[0]  # and the input of 112 elements, before them
    # All casts by one operator, and another one for the small activations.
    assert kinds(forward).count("reformer::_cast_all") == 2 and not any("_pack" in kind for kind in kinds(forward))
    assert len(saved) == 3  # the last one by what follows the model


def test_report_counts_the_memory_once():
    reports = []
    model, x = Narrow(nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(6)))), torch.randn(7, 16)
    torch._dynamo.reset()
    torch.compile(model, backend=reformer, options={"report": reports.append})(x).float().sum().backward()
    casts = next(line for line in reports[0].lines if line.kind == "casts")
    elements = 6 * 256 + 112  # of the weights and the input
    assert (casts.read, casts.written) == (4 * elements, 2 * elements)


def test_graph_is_retained():
    model, x = Narrow(rows()), torch.randn(7, 16, requires_grad=True)
    torch._dynamo.reset()
    loss = torch.compile(model, backend=reformer)(x).float().sum()
    first = torch.autograd.grad(loss, [x, *model.parameters()], retain_graph=True)
    second = torch.autograd.grad(loss, [x, *model.parameters()])
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)


def test_changes_of_parts_of_inputs_are_noticed():
    def function(x):
        parts = x.split(1, dim=1)
        return sum(part.sin() * part for part in parts)

    torch._dynamo.reset()
    for run in (function, torch.compile(function, backend=reformer)):
        given = torch.randn(3, 6, requires_grad=True)
        x = given.clone()
        result = run(x).sum()
        with torch.no_grad():
            x.zero_()
        with pytest.raises(RuntimeError, match="modified (by an )?inplace"):
            result.backward()


def test_views_in_another_type():
    """Bits of fp16 numbers as bf16 ones are packed as what they are saved as."""

    def function(x, *weights):
        for weight in weights:
            bits = (x * weight).half().view(torch.bfloat16)
            x = x * weight + torch.where(bits.isfinite(), bits, 1).detach().float() * weight
        return x

    torch._dynamo.reset()
    given = [torch.rand(3, 4, requires_grad=True) for _ in range(7)]
    results = [run(*given) for run in (function, torch.compile(function, backend=reformer))]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), given[1:]) for result in results))


def test_operator_runs_alone():
    """As in graphs of which no plan is made."""
    parts = [torch.randn(3, 5), torch.randn(2, 4, 3).transpose(0, 2), torch.randn(())]
    memory, starts = torch.ops.reformer._pack(parts), [0, 32, 64]  # multiples of 16 and of the next power of two
    assert memory.shape == (65,)
    for start, part in zip(starts, parts, strict=True):
        own = torch.ops.reformer._unpack(memory, part.shape, part.stride(), start)
        assert torch.equal(own, part) and own.stride() == part.stride() and own.data_ptr() >= memory.data_ptr()
    torch.library.opcheck(torch.ops.reformer._pack.default, (parts,))


def test_seeds_of_attention_are_left():
    """PyTorch keeps them on the CPU, whatever its fake tensors say."""

    def graph(names, results, mode):
        module = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
        nodes = {name: module.graph.placeholder(name) for name in names}
        for name, (target, args, dtype) in results.items():
            args = [nodes.get(arg, arg) for arg in args]
            nodes[name] = module.graph.create_node("call_function", target, tuple(args), name=name)
            nodes[name].meta["val"] = mode.from_tensor(torch.empty(8, dtype=dtype))
        for name in names:
            nodes[name].meta["val"] = mode.from_tensor(torch.empty(8))
        given = [name for name in nodes if name != "attention"]
        module.graph.output(tuple(map(nodes.get, given))).meta["desc"] = given
        return module

    aten, names = torch.ops.aten, [f"given_{i}" for i in range(4)]
    attention = aten._scaled_dot_product_efficient_attention.default
    results = {"attention": (attention, [*names[:3], None, True], torch.float32)}
    results |= {f"seed_{i}": (operator.getitem, ["attention", i], torch.int64) for i in range(4)}
    results |= {f"rows_{i}": (operator.getitem, ["attention", i], torch.float32) for i in range(4)}
    left = [name for name in results if name != "attention"]
    results |= {f"key_{i}": (aten.randint.low, [0, 9, (8,)], torch.int64) for i in range(4)}
    results |= {f"mean_{i}": (aten.sin.default, [name], torch.float32) for i, name in enumerate(names)}
    with FakeTensorMode() as mode:
        forward = graph(names, results, mode)
        added = {"last": (aten.add.Tensor, ["mean_0", "mean_1"], torch.float32)}
        backward = graph([name for name in results if name != "attention"], added, mode)
    pack_saved.pack_saved(forward, backward, outputs=len(names))
    (output,) = forward.graph.find_nodes(op="output")
    saved = [node.name for node in output.args[0]][len(names) :]
    assert saved == [*left, "_pack_default", "_pack_default_1"]
    assert output.meta["desc"] == [*names, *left, "key_0", "mean_0"]
    assert [node.name for node in backward.graph.find_nodes(op="placeholder")] == saved
    assert len(backward.graph.find_nodes(op="call_function", target=unpack)) == 8
