"""The compiler's graph: its text, and what its verifier refuses."""

import pytest
import torch
from expecttest import assert_expected_inline
from marks import needs_aten

from torch_reformer.compiler.ir import graph as ir
from torch_reformer.compiler.ir.layout import Layout

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
    ir.verify(graph)
    graph.outputs = [ir.View(y, Layout((3, 3), (1, 3)))]
    with pytest.raises(ValueError, match="beyond the memory"):
        ir.verify(graph)
    graph.operations.clear()
    graph.outputs = [ir.View(y, y.layout)]
    with pytest.raises(ValueError, match="the result needs %1 before it is made"):
        ir.verify(graph)
