"""The random numbers of dropout.py."""

from __future__ import annotations

from torch import Tensor

from ..dropout import random
from ..fakes import typed
from ..ir import Graph, Random, View
from ..layout import Layout


def _random(graph: Graph, value: Tensor, key: View, size, stride) -> View | None:
    layout = typed(value)[0]
    if not layout.is_dense or layout.numel == 0:
        return None
    repeated = View(key.value, Layout(layout.sizes, (0,) * len(layout.sizes), key.layout.offset))
    (result,) = graph.add(Random([repeated], "random", lambda numbers: numbers), [typed(value)])
    return View(result, layout)


RULES = {random: _random}
