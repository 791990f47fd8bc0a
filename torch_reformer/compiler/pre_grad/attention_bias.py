"""The bias of attention from the terms and masks that a user adds to scores, or fills them with.

Kernels differ in rows whose scores are all masked: they give zeros, weights of the scores, or NaN. No kernel meets such
a row here. Its bias is NaN if the user's scores are all -inf, whose softmax is NaN. If they are all one low number, the
bias of the row is one number and its queries are zero, so that all weights are equal; such rows give scores no
gradient. The bias holds no numbers below LOW, whose exponentials some kernels compute wrongly.

Assumed: learned terms, which depend on a parameter, hold no masks but those that are seen in the graph; and scores of a
row differ by less than 1e4, so that LOW masks as -inf does."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .attention_masks import constants_of
from .attention_scores import LOW, ZEROS, Term, is_bool, is_cast, number
from .products import is_tensor, operation
from .writes import may_write, memory_of

_VIEWS = {"view", "reshape", "permute", "transpose", "contiguous", "unsqueeze", "squeeze", "expand", "repeat", "select"}
_VIEWS |= {"flatten", "unflatten", "getitem", "index_select", "clone", "detach"}
_SMALL_SCORES = 16  # magnitude that most scores are below


class Bias(NamedTuple):
    """mask: a bias of scores in their type, or a boolean mask of those that stay. uniform: true for rows whose weights
    are all equal. None: nothing."""

    mask: Node | None = None
    uniform: Node | None = None


class Biases:
    """Builder of the biases of a graph, which are computed once for all calls that share their terms."""

    def __init__(self, graph: Graph):
        self.graph, self.known = graph, {}

    @functools.cached_property
    def constants(self) -> dict[Node, Any]:
        """Values of nodes that are the same whatever the graph's inputs are."""
        return constants_of(self.graph)

    @functools.cached_property
    def written(self) -> set[int | None]:
        """Memories that nodes may write to."""
        nodes = (node for node in self.graph.nodes if node.op in ("call_function", "call_method") and may_write(node))
        return {memory_of(each) for node in nodes for each in node.all_input_nodes} - {None}

    def bias_of(
        self, terms: tuple[Term, ...], sizes: tuple[int, ...], dtype: torch.dtype, modes: int, add: Callable
    ) -> Bias | None:
        """The terms' bias; None if it has no simple form.

        Args:
            sizes: batch elements and heads.
            modes: the number of changes of modes before the call, such as of no_grad.
            add: adds a node to the graph, with a function of PyTorch and its arguments.
        """
        key = *(term._replace(scores=(leading_of(term), _absorbing(term))) for term in terms), sizes, dtype, modes
        if key not in self.known:
            self.known[key] = self._built(terms, sizes, dtype, add)
        return self.known[key]

    def _built(self, terms: tuple[Term, ...], sizes: tuple[int, ...], dtype: torch.dtype, add: Callable) -> Bias | None:
        terms = tuple(self._as_fill(term) for term in terms if not self._is_zero(term))
        fills = [term for term in terms if term.fill is not None]
        masks = [term for term in terms if term.fill is None and not self._is_bounded(term.node, term.factor)]
        learned = [term for term in terms if term.fill is None and term not in masks]
        if (fills and masks) or not _is_one(fills):
            return None
        if learned and any(term.fill * term.factor > min(map(_absorbing, terms)) for term in fills):
            return None  # in rows that are masked everywhere, the learned terms may tell
        splits = [_split(leading_of(term), sizes) for term in terms]
        if None in splits:
            return None
        parts = {term: _expanded(term, split, add) for term, split in zip(terms, splits, strict=True)}
        bias, uniform = _sum([parts[term] for term in learned], add), None
        if fills:
            whole = self._constant(fills)
            if bias is None and whole is not None and not whole.all(-1).any():
                return Bias(_any([_flipped(term, parts[term], True, add) for term in fills], torch.logical_and, add))
            masked = _any([_flipped(term, parts[term], False, add) for term in fills], torch.logical_or, add)
            zeros = add(torch.zeros_like, masked, dtype=dtype) if bias is None else bias
            bias = add(torch.where, masked, LOW, zeros)
            if whole is None or whole.all(-1).any():
                rows = add(torch.all, masked, -1, True)
                if fills[0].fill == -math.inf:
                    bias = add(torch.where, rows, math.nan, bias)
                else:
                    uniform = rows
        elif masks:
            mask, uniform = _safe(_sum([_as_scores(term, parts[term], add) for term in masks], add), masks, add)
            if bias is not None:
                mask = add(torch.where, uniform, mask, add(torch.add, bias, mask))
            bias = mask
        if bias is not None and bias.meta["example_value"].dtype != dtype:
            bias = add("to", bias, dtype)
        return Bias(bias, uniform)

    def _constant(self, fills: list[Term]) -> Tensor | None:
        """True for scores that are masked, if that is the same whatever the graph's inputs are."""
        values = [self.constants.get(term.node) for term in fills]
        if not all(isinstance(value, Tensor) for value in values) or len({leading_of(term) for term in fills}) > 1:
            return None
        masked = torch.zeros((), dtype=torch.bool)
        for term, value in zip(fills, values, strict=True):
            masked = masked | (~value if term.is_kept else value)
        return masked if masked.dim() else None

    def _is_zero(self, term: Term) -> bool:
        return not term.is_kept and operation(term.node) in ZEROS and memory_of(term.node) not in self.written

    def _as_fill(self, term: Term) -> Term:
        """A term that adds 0 or one low number, as a mask of scores that get the number."""
        node = term.node
        if term.fill is not None or operation(node) != "where" or node.op != "call_function" or len(node.args) != 3:
            return term
        mask, *values = node.args[0], *map(number, node.args[1:])
        if None in values or not is_bool(mask) or memory_of(mask) in self.written or max(values) != 0:
            return term
        if not min(values) * term.factor <= _absorbing(term):
            return term
        return Term(mask, term.scores, fill=min(values) * term.factor, is_kept=values[0] == 0)

    def _is_bounded(self, node: Any, factor: float) -> bool:
        """True if no element, times the factor, is below LOW: of a learned tensor, or of numbers."""
        if (value := number(node)) is not None:
            return value * factor >= LOW
        if isinstance(value := self.constants.get(node), Tensor):
            return bool((value * factor >= LOW).all())
        if not is_tensor(node) or memory_of(node) in self.written:
            return False
        if node.op == "placeholder":
            return node.meta["example_value"].requires_grad
        name, operands = operation(node), node.args
        if name in _VIEWS or is_cast(node):
            operands = operands[:1]
        elif name == "where":
            operands = operands[1:] if node.op == "call_function" else operands[::2]
        elif name == "masked_fill":
            operands = operands[::2]
        elif name in ("mul", "div") and len(operands) == 2 and not node.kwargs and None in map(number, operands[:1]):
            by = number(operands[1])
            if by is None:
                return _is_learned(node)
            return bool(by) and self._is_bounded(operands[0], factor * by if name == "mul" else factor / by)
        elif name == "sub" and len(operands) == 2 and not node.kwargs:
            return self._is_bounded(operands[0], factor) and self._is_bounded(operands[1], -factor)
        elif name != "add" or node.kwargs:
            return _is_learned(node)
        return all(self._is_bounded(each, factor) for each in operands)


def _is_learned(node: Node) -> bool:
    """True if a parameter is among what the numbers of the tensor are computed from, and no large number, of which
    masks are made."""
    todo, seen, is_learned = [node], {node}, False
    while todo:
        each = todo.pop()
        fake = each.meta.get("example_value")
        if isinstance(fake, Tensor) and not fake.is_floating_point():
            continue
        is_learned |= each.op == "placeholder" and isinstance(fake, Tensor) and fake.requires_grad
        if any(isinstance(part, float) and abs(part) > -LOW for part in (*each.args, *each.kwargs.values())):
            return False
        todo += [source for source in each.all_input_nodes if source not in seen]
        seen.update(each.all_input_nodes)
    return is_learned


def leading_of(term: Term) -> tuple[int, ...]:
    """Sizes of the scores where the term is added, without the last two."""
    return tuple(term.scores.meta["example_value"].shape[:-2])


def _absorbing(term: Term) -> float:
    """A number so low that most scores, added to it, are rounded away."""
    eps = torch.finfo(term.scores.meta["example_value"].dtype).eps
    return min(LOW, -2 * _SMALL_SCORES / eps)


def _is_one(fills: list[Term]) -> bool:
    """True if a row that is masked by all of these together is known: all -inf, or all one number."""
    numbers = {term.fill for term in fills}
    if numbers == {-math.inf} or len(fills) < 2:
        return True
    return len(numbers) == 1 and len({term.factor for term in fills}) == 1 and not any(term.is_added for term in fills)


def _split(leading: tuple[int, ...], sizes: tuple[int, ...]) -> int | None:
    """The number of leading dimensions that are batch elements, if the others are heads; None if none is."""
    for count in range(len(leading) + 1):
        if (math.prod(leading[:count]), math.prod(leading[count:])) == sizes:
            return count
    return None


def _expanded(term: Term, count: int, add: Callable) -> Node:
    """The term's tensor, times its factor, in four dimensions; those of so many leading ones, and of the other leading
    ones, are one dimension each, of one element if the tensor has no more."""
    node, leading = term.node, leading_of(term)
    shape = tuple(node.meta["example_value"].shape)
    full = [1] * (len(leading) + 2 - len(shape)) + [*shape]
    result = []
    for dims in (slice(0, count), slice(count, len(leading))):
        if math.prod(full[dims]) > 1:
            full[dims] = leading[dims]
        result.append(math.prod(full[dims]))
    result += full[-2:]
    if tuple(full) != shape:
        node = add("expand", node, full)
    if result != full:
        node = add(torch.reshape, node, result)
    if term.factor == 1 or term.fill is not None:
        return node
    return add(torch.mul, _as_scores(term, node, add), term.factor)


def _as_scores(term: Term, node: Node, add: Callable) -> Node:
    """The term's tensor in the type of the scores, whose range low numbers in fp16 may leave if they are added up."""
    dtype = term.scores.meta["example_value"].dtype
    return node if node.meta["example_value"].dtype == dtype else add("to", node, dtype)


def _flipped(term: Term, mask: Node, is_kept: bool, add: Callable) -> Node:
    """The mask, true for scores that stay if `is_kept`, else for others."""
    return mask if term.is_kept == is_kept else add(torch.logical_not, mask)


def _any(nodes: list[Node], function: Callable, add: Callable) -> Node:
    first, *others = nodes
    for other in others:
        first = add(function, first, other)
    return first


def _sum(nodes: list[Node], add: Callable) -> Node | None:
    return _any(nodes, torch.add, add) if nodes else None


def _safe(mask: Node, terms: list[Term], add: Callable) -> tuple[Node, Node]:
    """A mask of any numbers without low ones, and the rows whose weights are equal."""
    most = add(torch.amax, add("detach", mask), -1, True)
    is_finite = add(torch.gt, most, -math.inf)
    is_low = add(torch.lt, most, LOW / 2)  # the clamp would cut off differences that tell
    shift = add(torch.where, add(torch.logical_and, is_finite, is_low), most, 0.0)
    shifted = add(torch.clamp, add(torch.sub, mask, shift), LOW)
    uniform = add(torch.logical_and, is_finite, add(torch.lt, most, min(map(_absorbing, terms))))
    return add(torch.where, add(torch.eq, most, -math.inf), math.nan, shifted), uniform
