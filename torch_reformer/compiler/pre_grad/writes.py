"""Nodes of Dynamo's graph that may write to tensors. Such a graph is not functional: methods and operators of Python
change tensors in place, also through views."""

from __future__ import annotations

import inspect
import itertools
import operator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

_KEYWORDS = {operator.and_, operator.not_, operator.or_}  # their names end as those of methods that write
_NO_WRITES = ("index", "inv", "invert", "is_", "is_not", "indexOf", "itemgetter")
_WRITES = {operator.setitem, operator.delitem}
_WRITES |= {getattr(operator, name) for name in dir(operator) if name.startswith("i") and name not in _NO_WRITES}


def memory_of(node: Node) -> int | None:
    """Identity of the node's fake storage, which views share; None if it is no tensor. Within `torch.vmap` that is the
    storage of all batch elements."""
    fake = node.meta.get("example_value")
    while isinstance(fake, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(fake):
        fake = torch._C._functorch.get_unwrapped(fake)
    return fake.untyped_storage()._cdata if isinstance(fake, Tensor) else None


def is_known(node: Node) -> bool:
    """True for a function of PyTorch, an operator of Python, or a method."""
    name = getattr(node.target, "__name__", "")
    known = any(getattr(module, name, None) is node.target for module in (torch, operator, F))
    return node.op == "call_method" or (node.op == "call_function" and (known or node.target is getattr))


def may_write(node: Node) -> bool:
    """True if the node may change one of its arguments."""
    if not is_known(node) and node.target is not F.scaled_dot_product_attention:
        return True
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    return (
        (in_place and node.target not in _KEYWORDS)
        or node.target in _WRITES
        or "out" in node.kwargs
        or "inplace" in node.kwargs
        or _is_in_place(node)
    )


def _is_in_place(node: Node) -> bool:
    """True if the function's argument `inplace` is given by its place, as in F.relu(x, True)."""
    if node.op != "call_function" or getattr(F, getattr(node.target, "__name__", ""), None) is not node.target:
        return False
    try:
        return bool(inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments.get("inplace"))
    except (TypeError, ValueError):  # a builtin function has no signature, and no such argument
        return False


def is_unwritten(copy: Node, source: Node) -> bool:
    """True if a call behind a copy, and its backward, may read the source of the copy instead: nothing behind the copy
    writes to it, and it is no memory of an input or a result of the graph, which may be written to before the backward
    reads it."""
    later = itertools.dropwhile(lambda node: node is not copy, copy.graph.nodes)  # also the output, which may write
    written = [node for other in later if may_write(other) for node in other.all_input_nodes]
    inputs = copy.graph.find_nodes(op="placeholder")
    return memory_of(source) not in {memory_of(node) for node in (*inputs, *written)}
