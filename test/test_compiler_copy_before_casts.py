"""Copies of what casts read (passes/copy_before_casts.py)."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

from torch_reformer.compiler.codegen.emit_plan import emit_plan
from torch_reformer.compiler.fusion import greedy
from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.ir.verify import verify
from torch_reformer.compiler.passes.copy_before_casts import copy_before_casts
from torch_reformer.runtime import plan as plans

pytestmark = needs_aten
CPU = torch.device("cpu")
SIZES, MOVED = (3, 4, 5), (3, 5, 4)  # of what is cast, and of the copy
_contiguous = torch.ops.reformer._contiguous.default


def graph_of(narrow=torch.bfloat16, wide=torch.float32, is_result=False, is_part=False):
    """A cast, a copy of it that swaps the last dimensions, and what reads the copy."""
    graph = ir.Graph()
    given = graph.give(Layout.row_major(SIZES), narrow, CPU)
    (cast,) = graph.add(
        ir.Map([ir.View(given, given.layout)], "_to_copy", lambda x: x), [ir.Typed(given.layout, wide, CPU)]
    )
    sizes = (3, 4, 4) if is_part else MOVED
    call = ir.Call(_contiguous, (ir.View(cast, Layout(sizes, (20, 1, 5))),), {})
    (copy,) = graph.add(call, [ir.Typed(Layout.row_major(sizes), wide, CPU)])
    (read,) = graph.add(ir.Map([ir.View(copy, copy.layout)], "neg", lambda x: -x), [ir.Typed(copy.layout, wide, CPU)])
    graph.outputs = [ir.View(copy if is_result else read, copy.layout)]
    return graph


def run(graph, *inputs):
    verify(graph)
    found = greedy.Fusion(graph)
    found.run()
    return plans.run(emit_plan(graph, found).plan, list(inputs))


def copied_types(graph):
    return [each.results[0].dtype for each in graph.operations if isinstance(each, ir.Call)]


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_part", [False, True])
def test_what_is_copied(narrow, is_part):
    graph = graph_of(narrow, is_part=is_part)
    copy_before_casts(graph)
    assert copied_types(graph) == [narrow]
    x = torch.randn(SIZES).to(narrow)
    x[0, 0, 0], x[0, 0, 1], x[0, 0, 2] = float("nan"), float("inf"), -0.0
    expected = -x.float().transpose(1, 2)[:, : 4 if is_part else 5]
    (found,) = run(graph, x)
    assert torch.equal(found.nan_to_num(3.0), expected.nan_to_num(3.0)) and found.is_contiguous()
    assert torch.equal(found.signbit(), expected.signbit())


def test_narrowing_casts_and_results_are_copied_themselves():
    for graph in (graph_of(torch.float32, torch.bfloat16), graph_of(is_result=True)):
        before = copied_types(graph)
        copy_before_casts(graph)
        assert copied_types(graph) == before


class Mixed(torch.nn.Module):
    """A layer norm of a transposed product, whose backward copies a gradient that was cast."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(6)
        self.after = torch.nn.Linear(6, 6)

    def forward(self, x):
        x = F.gelu(self.layer(x)).transpose(1, 2)
        return self.after(self.norm(x).transpose(1, 2).transpose(1, 2)).float()


def test_a_layer_norm_of_a_transposed_product():
    torch.manual_seed(0)
    model, x = Mixed(), torch.randn(4, 6, 8, requires_grad=True)
    leaves = [x, *model.parameters()]

    def gradients(function, **options):
        with torch.autocast("cpu", torch.bfloat16, **options):
            found = function(x)
        return [found.detach(), *torch.autograd.grad(found.square().sum(), leaves)]

    exact, expected = gradients(model, enabled=False), gradients(model)
    found = gradients(torch.compile(model, backend="reformer"))
    for one, other, right in zip(found, expected, exact, strict=True):
        assert (one - right).norm() <= 1.2 * (other - right).norm() + 1e-6 * right.norm()


def test_sums_read_the_copy():
    """A sum of the cast is one of the copy, so that nothing reads the cast."""
    graph = graph_of()
    cast = graph.operations[0].results[0]
    (total,) = graph.add(
        ir.Reduce("sum", ir.View(cast, cast.layout), (0, 1)), [ir.Typed(Layout((5,), (1,)), torch.float32, CPU)]
    )
    graph.outputs.append(ir.View(total, total.layout))
    copy_before_casts(graph)
    readers = [each for each in graph.operations if any(view.value is cast for view in each.operands)]
    assert not readers
    x = torch.randn(SIZES).to(torch.bfloat16)
    _, found = run(graph, x)
    torch.testing.assert_close(found, x.float().sum((0, 1)))


CASTS = {  # functions of a cast
    "a sum before the copy": lambda c: (c.sum(0), F.layer_norm(c.mT, (8,))),
    "two dimensions are kept": lambda c: (F.layer_norm(c.mT, (8,)), c.sum(0)),
    "a mean": lambda c: (c.mT.softmax(-1), c.mean(0)),
    "a maximum": lambda c: (c.mT.softmax(-1), c.amax((0, 1))),
    "moments": lambda c: (c.mT.softmax(-1), c.var((0, 1))),
    "two copies": lambda c: (F.layer_norm(c.permute(2, 1, 0), (2,)), F.layer_norm(c.mT, (8,)), c.sum((0, 1))),
    "two equal casts": lambda c: (F.layer_norm(c.mT, (8,)), F.layer_norm((c * 1).mT, (8,)).exp()),
    "read as it is, too": lambda c: (F.layer_norm(c.mT, (8,)), c.sum((0, 1)), c * 2),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int8], ids=str)
@pytest.mark.parametrize("name", CASTS)
def test_values(name, dtype):
    torch._dynamo.reset()
    x = (torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    function = lambda x: CASTS[name](x.float())  # noqa: E731
    found, expected = torch.compile(function, backend="reformer", dynamic=False)(x), function(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
