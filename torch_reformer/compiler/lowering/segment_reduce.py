"""Rules of sums of rows by index: a base of zeros is dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ir.custom_ops import embedding_grad
from ..ir.fake_tensors import typed
from ..ir.graph import Call, Graph, Map, View

_sum = torch.ops.reformer._segment_sum.default


def _segment_sum(
    graph: Graph, value: Tensor, source: View, order: View, begins: View, base: View | None, factors: View | None
) -> View:
    base = None if base is None or _is_zero(base) else base
    (result,) = graph.add(Call(_sum, (source, order, begins, base, factors), {}), [typed(value)])
    return View(result, result.layout)


def _add_rows(
    graph: Graph,
    value: Tensor,
    grad: View,
    ids: View,
    rows: int,
    padding: int,
    by_frequency: bool,
    base: View | None = None,
    tables: int = 1,
) -> View:
    bases = () if base is None or _is_zero(base) else (base,)
    options = {} if tables == 1 else {"tables": tables}
    call = Call(embedding_grad, (grad, ids, rows, padding, by_frequency, *bases), options)
    (result,) = graph.add(call, [typed(value)])
    return View(result, result.layout)


def _is_zero(view: View) -> bool:
    maker = view.value.maker
    if not isinstance(maker, Map) or maker.inputs:
        return False
    number = maker.expression()
    return number.op == "constant" and number.attribute == 0


RULES = {_sum: _segment_sum, embedding_grad: _add_rows}
