"""Call scaled_dot_product_attention where a user wrote attention out: a product of queries and keys, scales, biases and
masks, a softmax, dropout, and a product with the values. The kernel is then chosen as for other calls
(decompositions/attention.py).

The matcher walks from each softmax back to the first product and on to the second one. It takes 16-bit products on GPUs
whose times are known, where nothing else reads what is in between. Products keep their types; what is between them is
computed in fp32, whatever type it had. Rows that are masked everywhere: attention_bias.py."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node

from ...runtime.dtypes import NARROW
from ..ir.attention_choice import is_worth_a_call
from ..ir.attention_cost import MOST_KEYS, Attention
from ..ir.fake_tensors import FakeTensor
from .attention_bias import Bias, Biases, leading_of
from .attention_scores import Scores, is_cast, is_reshape, number, scores_of
from .fake_results import fake_result
from .modes import is_mode
from .products import Product, View, is_tensor, operation, product_of, swapped, transposition
from .writes import is_unwritten, may_write, memory_of

_MOST = 65535  # batch elements or heads, each of which is a dimension of a launch
_LARGEST_HEAD = 256
_ALIGNED = 8  # elements of a head that fused kernels read at once


class WrittenAttention(NamedTuple):
    """Attention that a user wrote. result: its last product, which is the attention's result, permuted."""

    scores: Scores
    values: View
    dropout: float
    result: Node
    order: tuple[int, ...]
    chain: tuple[Node, ...]


def replace_written_attention(module: GraphModule) -> None:
    """Change Dynamo's graph."""
    if any("sdpa_kernel" in str(node.target) for node in module.graph.nodes):
        return  # the user chooses kernels
    biases, order, is_changed = Biases(module.graph), _Order(module.graph), False
    results = {node: found.result for node in module.graph.nodes if (found := _attention(node)) is not None}
    for node in sorted(results, key=results.__getitem__):  # the bias of a call serves those behind it
        attention = _attention(node)
        if attention is not None and _is_supported(attention) and not order.is_written(attention):
            is_changed = _replace(attention, biases, order) or is_changed
    if is_changed:
        module.recompile()


def _attention(softmax: Node) -> WrittenAttention | None:
    """The attention that a softmax belongs to."""
    if operation(softmax) != "softmax" or not is_tensor(softmax) or "out" in softmax.kwargs:
        return None
    options = dict(zip(("dim", "dtype"), softmax.args[1:2], strict=False)) | softmax.kwargs
    if options.get("dim") not in (-1, softmax.meta["example_value"].dim() - 1) or not softmax.args:
        return None
    scores = scores_of(softmax.args[0], softmax)
    if scores is None:
        return None
    chain, dropout, order = [*scores.chain, softmax], 0.0, None
    while True:
        node = chain[-1]
        if len(node.users) != 1:
            return None
        (user,) = node.users
        chain.append(user)
        product = product_of(user)
        if product is not None:
            return _with_values(
                WrittenAttention(scores, product.left, dropout, user, order or (), tuple(chain)), product
            )
        if order is not None or not is_tensor(user) or user.args[:1] != (node,):
            return None
        if operation(user) == "dropout" and not dropout:
            dropout = _dropout(user)
            if dropout is None:
                return None
        elif transposition(user) is not None:
            order = transposition(user)
        elif not is_cast(user) and not is_reshape(user):
            return None


def _dropout(node: Node) -> float | None:
    """The share that is dropped; None if it is no number."""
    options = dict(zip(("p", "training"), node.args[1:], strict=False)) | node.kwargs
    share, training = options.get("p", 0.5), options.get("training", options.get("train", True))
    if not isinstance(training, bool) or number(share) is None or isinstance(share, Node):
        return None
    return float(share) * training


def _with_values(attention: WrittenAttention, product: Product) -> WrittenAttention | None:
    """The attention with the values of its last product, which has the weights on either side."""
    if product.addend is not None or product.scale != 1:
        return None
    weights, rank = attention.chain[-2], len(product.order)
    for side, other, is_left in ((product.left, product.right, True), (product.right, product.left, False)):
        if side.node is not weights or other.node in attention.chain:
            continue
        order = View(weights, attention.order).permuted(side.order).order if attention.order else side.order
        if order != tuple(range(rank)):
            return None
        result = product.order if is_left else tuple(swapped(rank)[d] for d in product.order)
        return attention._replace(values=other.permuted(swapped(rank)), order=result)
    return None


def _is_supported(attention: WrittenAttention) -> bool:
    """True if the attention can be a call, and the call is expected to cost no more."""
    scores, values = attention.scores, attention.values
    operands = [scores.queries, scores.keys, values]
    nodes = [attention.result, scores.chain[0], *(each.node for each in (*operands, *scores.terms))]
    fakes = [node.meta["example_value"] for node in nodes]
    if not all(isinstance(fake, FakeTensor) and fake.device == fakes[0].device for fake in fakes):
        return False
    dtype, sizes = fakes[0].dtype, _sizes(attention)
    if dtype not in NARROW or fakes[1].dtype != dtype or not all(size for each in operands for size in each.shape):
        return False
    heads = [scores.queries.shape[-1], values.shape[-1]]
    if max(sizes) > _MOST or max(heads) > _LARGEST_HEAD:
        return False
    rows, keys = fakes[1].shape[-2:]
    if any(head % _ALIGNED for head in heads) and keys > MOST_KEYS:
        return False  # no fused kernel takes it, nor written_attention.py
    needs_grad = [term.fill is None and term.node.meta["example_value"].requires_grad for term in scores.terms]
    mask = "bias_grad" if any(needs_grad) else "bias" if scores.terms else "none"
    batch = math.prod(sizes[:-1]), sizes[-1]
    case = Attention(*batch, 1, rows, keys, sum(heads) // 2, mask, bool(attention.dropout), is_shared=False)
    return is_worth_a_call(case, fakes[0].device, fakes[0].requires_grad)


class _Order:
    """Places of a graph's nodes, of those that may write to tensors, and of those after which operators may run in
    another mode. They are found once for all attention of the graph."""

    def __init__(self, graph: Graph):
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        fixed = ("placeholder", "get_attr")
        self._writers = [node for node in graph.nodes if node.op not in fixed and may_write(node)]
        self._modes = [place for node, place in self._places.items() if is_mode(node)]

    def modes_before(self, node: Node) -> int:
        return bisect.bisect_left(self._modes, self._places[node])

    def is_written(self, attention: WrittenAttention) -> bool:
        """True if the call, at the place of the last product, might read another value than the user's operators do, or
        run in another mode."""
        scores, first = attention.scores, attention.scores.chain[0]
        if self.modes_before(first) != self.modes_before(attention.result):
            return True
        # The bias of several calls is computed once, when its masks are known.
        read = {(memory_of(term.node), self._places.get(term.node, -1)) for term in scores.terms}
        read |= {(memory_of(view.node), self._places[first]) for view in (scores.queries, scores.keys)}
        for writer in self._writers:
            place = self._places[writer]
            if place >= self._places[attention.result]:
                return False
            if writer not in attention.chain:
                written = {memory_of(each) for each in writer.all_input_nodes}
                if any(memory in written and since < place for memory, since in read):
                    return True
        return False

    def is_written_later(self, result: Node) -> bool:
        """True if the graph, or what follows it, may write to a result."""
        later = [writer for writer in self._writers if self._places[writer] > self._places[result]]
        return memory_of(result) in {memory_of(each) for writer in later for each in writer.all_input_nodes}


def _replace(attention: WrittenAttention, biases: Biases, order: _Order) -> bool:
    """Replace the attention by a call. False if its masks have no simple form."""
    graph, result, scores = attention.result.graph, attention.result, attention.scores
    fake = scores.chain[0].meta["example_value"]

    def add(target: Callable | str, *args: Any, **options: Any) -> Node:
        """Add a function, or the method of this name, before the result."""
        is_method = isinstance(target, str)
        with graph.inserting_before(result):
            node = graph.create_node("call_method" if is_method else "call_function", target, args, options)
        node.meta["example_value"] = fake_result(node, fake.fake_mode)
        return node

    sizes = _sizes(attention)
    modes = order.modes_before(result)
    bias = biases.bias_of(scores.terms, sizes, fake.dtype, modes, add) if scores.terms else Bias()
    if bias is None:
        return False
    queries, of_queries = _unscaled(scores.queries)
    keys, of_keys = _unscaled(scores.keys)
    values, _ = _unscaled(attention.values, scales=False)
    query, key, value = (_operand(view, sizes, fake.dtype, add) for view in (queries, keys, values))
    if bias.uniform is not None:
        query = add(torch.where, bias.uniform, 0.0, query)
    options = {"attn_mask": bias.mask, "dropout_p": attention.dropout, "scale": scores.scale * of_queries * of_keys}
    with graph.inserting_before(result):
        call = graph.call_function(F.scaled_dot_product_attention, (query, key, value), options)
    shape = (*sizes, fake.shape[-2], attention.values.shape[-1])
    call.meta["example_value"] = result.meta["example_value"].new_empty(shape)
    new = call
    ends = attention.values.shape[:-2]
    if ends != sizes:
        new = add(torch.reshape, new, (*ends, *shape[-2:]))
    if attention.order != tuple(range(len(attention.order))):
        new = add(torch.permute, new, attention.order)
    strides = result.meta["example_value"].stride()
    dims = sorted(range(len(strides)), key=lambda d: -strides[d])
    new = new if dims == sorted(dims) else add(torch.permute, new, dims)
    if result.meta["example_value"].requires_grad and order.is_written_later(result):
        new = add("clone", new, memory_format=torch.contiguous_format)  # the call's backward reads its own result
    else:
        new = add("contiguous", new)
    if dims != sorted(dims):
        new = add(torch.permute, new, sorted(range(len(dims)), key=dims.__getitem__))
    result.replace_all_uses_with(new)
    _erase(attention)
    return True


def _sizes(attention: WrittenAttention) -> tuple[int, ...]:
    """Sizes of the call's operands before the last two: batch elements and heads, or all of them if others give the
    call four dimensions (attention_operands.py)."""
    product, terms = attention.scores.chain[0], attention.scores.terms
    sizes = tuple(product.meta["example_value"].shape[:-2])
    if len(sizes) > 2 and not terms and not attention.dropout and math.prod(sizes) <= _MOST:
        return sizes
    if len(sizes) == 1:  # batch elements and heads together: masks may tell how many heads there are
        levels = {leading_of(term) for term in terms}
        return next((level for level in levels if len(level) == 2), (1, *sizes))
    return (math.prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)


def _unscaled(view: View, scales: bool = True) -> tuple[View, float]:
    """View of the source that the view copies, transposes and multiplies by numbers, for nothing else; and those
    numbers' product."""
    factor = 1.0
    while True:
        view = view.untransposed()
        node, name = view.node, operation(view.node)
        is_copy = name == "contiguous" and len(node.args) == 1 and not node.kwargs
        is_scale = scales and name in ("mul", "div") and len(node.args) == 2 and not may_write(node)
        if not (is_copy or is_scale) or len(node.users) != 1 or not is_tensor(node.args[0]):
            return view, factor
        source, by = node.args[0], 1.0 if is_copy else number(node.args[1])
        fakes = [each.meta["example_value"] for each in (node, source)]
        if by is None or not by > 0 or fakes[0].shape != fakes[1].shape or fakes[0].dtype != fakes[1].dtype:
            return view, factor
        if not is_unwritten(node, source):
            return view, factor
        view, factor = View(source, view.order), factor * (1 / by if name == "div" else by)


def _operand(view: View, sizes: tuple[int, ...], dtype: torch.dtype, add: Callable) -> Node:
    """The view with these sizes, in a type, with rows of adjacent elements."""
    node = view.node if view.is_whole else add(torch.permute, view.node, view.order)
    if node.meta["example_value"].dtype != dtype:
        node = add("to", node, dtype)
    if view.shape[:-2] != sizes:
        node = add(torch.reshape, node, (*sizes, *view.shape[-2:]))
    return node if node.meta["example_value"].stride(-1) == 1 else add("contiguous", node)


def _erase(attention: WrittenAttention) -> None:
    """Erase the user's nodes, and those that only they used."""
    todo = [attention.result]
    while todo:
        unused = todo.pop()
        if not unused.users and operation(unused) and (unused in attention.chain or not may_write(unused)):
            todo += unused.all_input_nodes
            unused.graph.erase_node(unused)
