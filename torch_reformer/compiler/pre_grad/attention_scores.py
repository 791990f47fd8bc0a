"""Scores of attention that a user wrote: from what the softmax reads back to the product of queries and keys."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ..ir.fake_tensors import real_tensors
from .products import Product, View, is_tensor, operation, product_of
from .writes import may_write

LOW = -1e4  # a number so far below scores that their softmax is 0
_CASTS = {"to", "type", "type_as", "float", "half", "bfloat16", "double"}
_RESHAPES = {"view", "reshape", "unflatten", "flatten", "squeeze", "unsqueeze"}
_NUMBERS = {"full": 1, "tensor": 0, "scalar_tensor": 0}  # place of the number among arguments
ZEROS = {"zeros", "zeros_like", "new_zeros"}


class Term(NamedTuple):
    """A tensor, times a factor, that is added to the scores, or a mask of scores that get a number so low that their
    softmax is 0. scores: the node that has the scores with it."""

    node: Node
    scores: Node
    factor: float = 1.0
    fill: float | None = None
    is_kept: bool = False  # the mask is true where scores stay
    is_added: bool = True  # the number is added to the scores, not in their place


class Scores(NamedTuple):
    """The softmax's operand is scale * queries @ keys.mT and the terms. chain: nodes from the product on."""

    queries: View
    keys: View
    scale: float
    terms: tuple[Term, ...]
    chain: tuple[Node, ...]


def number(value: Any) -> float | None:
    """A number, or that of a tensor made from one; None for anything else."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if not is_tensor(value) or value.meta["example_value"].dim() or value.meta["example_value"].requires_grad:
        return None
    if any(map(may_write, value.users)):
        return None
    name = operation(value)
    if name in ZEROS:
        return 0.0
    if name not in _NUMBERS or len(value.args) <= _NUMBERS[name] or set(value.kwargs) & {"out"}:
        return None
    inner = value.args[_NUMBERS[name]]
    if isinstance(inner, Node) or number(inner) is None:
        return None
    with real_tensors():
        return float(torch.tensor(inner, dtype=value.meta["example_value"].dtype))  # rounded as the user's


def is_cast(node: Node) -> bool:
    """True for a tensor in another type of floating point, of 16 bits or more, on the same device."""
    if operation(node) not in _CASTS or not is_tensor(node) or not node.args or not is_tensor(node.args[0]):
        return False
    fakes = [each.meta["example_value"] for each in (node, node.args[0])]
    is_wide = all(each.is_floating_point() and each.itemsize > 1 for each in fakes)
    return is_wide and fakes[0].device == fakes[1].device


def is_reshape(node: Node) -> bool:
    """True if only dimensions before the last two change, in the order of elements."""
    if operation(node) not in _RESHAPES or not is_tensor(node) or not node.args or not is_tensor(node.args[0]):
        return False
    if may_write(node):  # after which the source's node has the new sizes
        return False
    fake, source = (each.meta["example_value"] for each in (node, node.args[0]))
    return fake.dim() >= 2 and source.dim() >= 2 and fake.shape[-2:] == source.shape[-2:] and fake.dtype == source.dtype


def scores_of(node: Any, user: Node, factor: float = 1.0) -> Scores | None:
    """Scores that nothing but the user reads; None if the node is something else.

    Args:
        factor: what the user and those after it multiply them by.
    """
    if not is_tensor(node) or set(node.users) != {user} or node.meta["example_value"].dim() < 2:
        return None
    product = product_of(node)
    if product is not None:
        return _of_product(node, product, factor)
    for source, scale, term in _steps(node):
        scores = scores_of(source, node, factor * scale)
        if scores is None or (term is not None and term.node in scores.chain):
            continue
        if term is not None:
            if term.fill is not None and not term.fill * factor <= LOW:
                continue
            scores = scores._replace(terms=(*scores.terms, term._replace(factor=term.factor * factor)))
        return scores._replace(chain=(*scores.chain, node))
    return None


def _of_product(node: Node, product: Product, factor: float) -> Scores | None:
    scale = product.scale * factor
    if product.order != tuple(range(len(product.order))) or not (math.isfinite(scale) and scale > 0):
        return None
    terms = ()
    if product.addend is not None:
        terms = (Term(product.addend, node, product.factor * factor),)
        if not _is_float(product.addend):
            return None
    return Scores(product.left, product.right, scale, terms, (node,))


def _steps(node: Node) -> list[tuple[Node, float, Term | None]]:
    """Ways to read a node as an operation on scores: their node, a factor on them, and what is added."""
    name, arguments, options = operation(node), node.args, node.kwargs
    if is_cast(node) or is_reshape(node):
        return [(arguments[0], 1.0, None)]
    steps: list[tuple[Any, float, Term | None]] = []
    if name in ("add", "sub") and len(arguments) == 2 and not set(options) - {"alpha"}:
        (one, other), factor = arguments, options.get("alpha", 1)
        if _is_float(other):
            steps.append((one, 1.0, Term(other, node, factor if name == "add" else -factor)))
        if name == "add" and not options and _is_float(one):
            steps.append((other, 1.0, Term(one, node)))
    elif name in ("mul", "div") and len(arguments) == 2 and not options:
        one, other = arguments
        if (factor := number(other)) is not None and factor > 0:
            steps.append((one, factor if name == "mul" else 1 / factor, None))
        elif name == "mul" and (factor := number(one)) is not None and factor > 0:
            steps.append((other, factor, None))
    elif name in ("masked_fill", "where") and len(arguments) == 3 and not options:
        mask, one, other = arguments if name == "where" and node.op == "call_function" else _reordered(name, arguments)
        if (fill := number(other)) is not None and is_bool(mask):
            steps.append((one, 1.0, Term(mask, node, fill=fill, is_kept=True, is_added=False)))
        if (fill := number(one)) is not None and is_bool(mask):
            steps.append((other, 1.0, Term(mask, node, fill=fill, is_added=False)))
    if may_write(node):  # a tensor that the scores are added to is needed
        steps = [step for step in steps if step[0] is arguments[0]]
    shape = node.meta["example_value"].shape
    return [step for step in steps if _is_float(step[0]) and step[0].meta["example_value"].shape == shape]


def _reordered(name: str, arguments: tuple) -> tuple[Any, Any, Any]:
    """Arguments of the methods `where` and `masked_fill` in the order of torch.where's."""
    scores, mask, other = arguments
    return (mask, other, scores) if name == "masked_fill" else (mask, scores, other)


def _is_float(value: Any) -> bool:
    return is_tensor(value) and value.meta["example_value"].is_floating_point()


def is_bool(value: Any) -> bool:
    return is_tensor(value) and value.meta["example_value"].dtype == torch.bool
