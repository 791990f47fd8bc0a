"""Begin all-reduces as soon as what they reduce is known, so that they run beside what follows."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ..ir.collectives import begins_collective, is_all_reduce
from ..ir.fx_utils import VIEWS, is_element_wise

aten = torch.ops.aten
_PACKING = {*VIEWS, aten.clone.default, aten.cat.default}


def start_collectives(graph: Graph) -> None:
    """Move each all-reduce, with what only packs its operand, right behind the last result that it needs. Collectives
    stay in order."""
    early: set[Node] = set()
    for node in reversed(graph.nodes):
        is_packing = node.target in _PACKING or is_element_wise(node)
        if is_all_reduce(node.target) or (is_packing and node.users and early.issuperset(node.users)):
            early.add(node)
    begun: list[Node] = []
    for node in list(graph.nodes):
        begins = begins_collective(node.target)
        if node in early:
            latest = max([*node.all_input_nodes, *(begun[-1:] if begins else [])], default=node)
            if latest.op != "placeholder" and latest is not node:
                latest.append(node)
        begun += [node] if begins else []
