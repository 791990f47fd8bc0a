"""Rule of sums of rows by segments: a base of zeros is dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ir.fake_tensors import typed
from ..ir.graph import Call, Graph, Map, View

_sum = torch.ops.reformer._segment_sum.default


def _segment_sum(
    graph: Graph, value: Tensor, source: View, order: View, begins: View, base: View | None, factors: View | None
) -> View:
    base = None if base is None or _is_zero(base) else base
    (result,) = graph.add(Call(_sum, (source, order, begins, base, factors), {}), [typed(value)])
    return View(result, result.layout)


def _is_zero(view: View) -> bool:
    maker = view.value.maker
    if not isinstance(maker, Map) or maker.inputs:
        return False
    number = maker.expression()
    return number.op == "constant" and number.attribute == 0


RULES = {_sum: _segment_sum}
