"""Rule of the random numbers of decompositions/dropout.py."""

from __future__ import annotations

from torch import Tensor

from ..ir.custom_ops import random
from ..ir.fake_tensors import typed
from ..ir.graph import Graph, Random, View
from ..ir.layout import Layout


def _random(graph: Graph, value: Tensor, key: View, size, stride) -> View | None:
    layout = typed(value)[0]
    if not layout.is_dense or layout.numel == 0:
        return None
    repeated = View(key.value, Layout(layout.sizes, (0,) * len(layout.sizes), key.layout.offset))
    (result,) = graph.add(Random([repeated], "random", lambda numbers: numbers), [typed(value)])
    return View(result, layout)


RULES = {random: _random}
