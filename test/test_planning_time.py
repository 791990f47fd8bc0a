"""Planning stays fast: minimum cuts as networkx's, equal nodes shared once, and work that grows as graphs do."""

import random

import networkx
import pytest
import torch
from marks import needs_aten
from torch.fx.experimental.proxy_tensor import make_fx

from torch_reformer.compiler.ir.fx_utils import Snapshot
from torch_reformer.compiler.joint_graph import propagate_memory_format
from torch_reformer.compiler.joint_graph.min_cut import minimum_cut
from torch_reformer.compiler.joint_graph.share_equal_nodes import share_equal_nodes

pytestmark = needs_aten
aten = torch.ops.aten


@pytest.mark.parametrize("seed", range(200))
def test_cuts_are_those_of_networkx(seed):
    """Also where several cuts are minimal: many capacities are equal, 0 or unlimited."""
    random_ = random.Random(seed)
    graph = networkx.DiGraph()
    nodes = ["source", *range(random_.randint(1, 12)), "sink"]
    for _ in range(random_.randint(len(nodes), 5 * len(nodes))):
        one, other = random_.sample(nodes, 2)
        capacity = random_.choice([0, 1, 1, 2, 3.0, 7, 2**60, None])
        graph.add_edge(one, other, **({} if capacity is None else {"capacity": capacity}))
    graph.add_nodes_from(["source", "sink"])
    try:
        expected = networkx.minimum_cut(graph, "source", "sink")
    except networkx.NetworkXUnbounded:
        with pytest.raises(networkx.NetworkXUnbounded):
            minimum_cut(graph, "source", "sink")
        return
    found = minimum_cut(graph, "source", "sink")
    assert found[0] == expected[0] and tuple(map(set, found[1])) == tuple(map(set, expected[1]))


def shared(function, *inputs):
    """The traced function with equal nodes shared, and its operators."""
    module = make_fx(function)(*inputs)
    share_equal_nodes(module)
    module.recompile()
    return module, [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_equal_nodes_are_computed_once():
    def function(x):
        return [(x.sin() + x.sin()).cos() * (x.sin() + x.sin()).cos() + 1]

    x = torch.randn(4)
    module, targets = shared(function, x)
    assert targets.count(aten.sin.default) == 1 and targets.count(aten.cos.default) == 1
    torch.testing.assert_close(module(x), function(x))


def test_what_is_not_equal_stays():
    """Signs of zeros, types of numbers, random numbers, results of the graph, and what a write lies between."""

    def function(x):
        zeros = torch.full((4,), 0.0) * 1, torch.full((4,), -0.0) * 1
        typed = (x * 2).exp() + (x * 2.0).exp()
        drawn = torch.rand(4).sin() - torch.rand(4).sin()
        before = x.tan().exp()
        x.add_(1)
        return [
            1 / (zeros[0] + zeros[0]),
            1 / (zeros[1] + zeros[1]),
            typed,
            drawn,
            before + x.tan().exp(),
            x.cos(),
            x.cos(),
        ]

    module, targets = shared(function, torch.randn(4))
    assert targets.count(aten.full.default) == 2 and targets.count(aten.rand.default) == 2
    assert targets.count(aten.tan.default) == 2 and targets.count(aten.cos.default) == 2
    results, x = module(torch.ones(4)), torch.ones(4)
    assert results[0].min() == torch.inf and results[1].max() == -torch.inf and results[3].abs().min() > 0
    assert results[5].data_ptr() != results[6].data_ptr()
    torch.testing.assert_close(results[4], x.tan().exp() + (x + 1).tan().exp())


def test_a_snapshot_is_the_graph_before_changes():
    module = make_fx(lambda x: [x.sin() + x.cos()])(torch.randn(3))
    before, text = Snapshot(module.graph), str(module.graph)
    (sine,) = module.graph.find_nodes(op="call_function", target=aten.sin.default)
    sine.meta["changed"] = True
    (total,) = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    total.args = (sine, sine)
    module.graph.eliminate_dead_code()
    assert str(module.graph) != text and str(before.graph()) == text == str(before.graph())
    assert not any("changed" in node.meta for node in before.graph().nodes)


def looked_at(layers, monkeypatch):
    """Nodes that the choice of memory formats looks at, for so many copies of images, each followed by work."""
    count = 0
    changed = propagate_memory_format._changed

    def counted(*args):
        nonlocal count
        count += 1
        return changed(*args)

    def function(x, w):
        for _ in range(layers):
            x = aten.mm(x.clone(memory_format=torch.contiguous_format).sin().reshape(8, 64), w).reshape(2, 4, 8, 8)
            x = x.contiguous(memory_format=torch.channels_last)
        return [x]

    images = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    module = make_fx(function, tracing_mode="fake")(images, torch.randn(64, 64))
    with monkeypatch.context() as patch:
        patch.setattr(propagate_memory_format, "_changed", counted)
        propagate_memory_format.propagate_memory_format(module)
    return count


def test_memory_formats_look_at_nodes_in_linear_number(monkeypatch):
    """Twice the graph with twice the copies is twice the work."""
    once, twice = looked_at(20, monkeypatch), looked_at(40, monkeypatch)
    assert 0 < once < twice <= 2.2 * once
