"""The compiler's graph: its text, its verifier, and substitution of values."""

import pytest
import torch
from expecttest import assert_expected_inline
from marks import needs_aten

from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir.fx_utils import REDUCTIONS
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.ir.verify import verify
from torch_reformer.compiler.lowering import reductions

pytestmark = needs_aten


def test_text_and_verifier():
    graph = ir.Graph()
    x = graph.give(Layout((2, 3), (3, 1)), torch.float32, torch.device("cpu"))
    whole = ir.View(x, x.layout)
    (y,) = graph.add(ir.Map([whole], "neg", lambda value: -value), [(x.layout, x.dtype, x.device)])
    graph.outputs = [ir.View(y, Layout((3, 2), (1, 3))), 7]
    assert_expected_inline(
        str(graph),
        """\
given %0: float32[2,3]/[3,1]
%1: float32[2,3]/[3,1] = neg(%0)
gives %1[3,2]/[1,3], 7""",
    )
    verify(graph)
    graph.outputs = [ir.View(y, Layout((3, 3), (1, 3)))]
    with pytest.raises(ValueError, match="beyond the memory"):
        verify(graph)
    graph.operations.clear()
    graph.outputs = [ir.View(y, y.layout)]
    with pytest.raises(ValueError, match="the result needs %1 before it is computed"):
        verify(graph)


def test_uses_and_substitute():
    """A replaced value is read nowhere, and its operation is gone; offsets of views are added."""
    graph, cpu = ir.Graph(), torch.device("cpu")
    x = graph.give(Layout((4, 3), (3, 1)), torch.float32, cpu)
    part, rows = Layout((2, 3), (3, 1), 6), Layout((2, 3), (3, 1))
    (copy,) = graph.add(ir.Map([ir.View(x, part)], "clone", lambda value: value), [(rows, x.dtype, cpu)])
    row = Layout((3,), (1,), 3)
    (negated,) = graph.add(
        ir.Map([ir.View(copy, row)], "neg", lambda value: -value), [(Layout((3,), (1,)), x.dtype, cpu)]
    )
    graph.outputs = [ir.View(copy, copy.layout), 7, ir.View(negated, negated.layout)]
    assert graph.uses() == {x: 1, copy: 2, negated: 1} and graph.uses()[ir.Value(9, row, x.dtype, cpu)] == 0
    graph.substitute({copy: ir.View(x, part)})
    assert_expected_inline(
        str(graph),
        """\
given %0: float32[4,3]/[3,1]
%2: float32[3]/[1] = neg(%0[3]/[1]+9)
gives %0[2,3]/[3,1]+6, 7, %2""",
    )
    verify(graph)


def test_operators_that_are_reductions():
    assert REDUCTIONS == reductions.RULES.keys()
