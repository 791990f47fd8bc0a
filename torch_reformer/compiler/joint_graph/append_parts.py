"""Let concatenations that continue each other, as those of a DenseNet do, share memory.

Where the parts of a concatenation begin with all parts of one before it, the later one is written behind the earlier
one: the memory has room for the last. A block of L layers then writes each layer's features once, not L times, and
saves one tensor for its backward instead of L. The concatenations become slices, which have gaps between their rows, so
this is for those that element-wise operations and reductions read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.custom_ops import append
from ..ir.fake_tensors import is_plain, layout_of
from ..ir.fx_utils import REDUCTIONS, given_again, is_element_wise, is_static, size_of
from ..ir.layout import Layout
from .saved import save_instead

aten = torch.ops.aten
_READ_IN_PLACE = REDUCTIONS | {aten.cat.default}


class _Concat(NamedTuple):
    """A concatenation, and its parts, also those of a concatenation that is its first part."""

    node: Node
    dim: int
    parts: tuple[Node, ...]


def append_parts(forward: GraphModule, backward: GraphModule | None = None, outputs: int = 0) -> None:
    """Replace concatenations that continue each other by appends.

    Args:
        backward: reads slices of the one tensor that is saved then.
        outputs: the number of the forward's own results, before the saved tensors.
    """
    if not is_static(forward):
        return
    (output,) = forward.graph.find_nodes(op="output")
    given = {node for node in (output.args[0][:outputs] if backward else output.args[0]) if isinstance(node, Node)}
    saved_as = {node.name: node for node in backward.graph.find_nodes(op="placeholder")} if backward else {}

    def may_be_slice(concat: Node) -> bool:
        read = [concat, *([saved_as[concat.name]] if concat.name in saved_as else [])]
        return concat not in given and _is_appendable(concat) and all(map(_is_read_in_place, read))

    slices: dict[Node, Node] = {}  # in place of concatenations, which may be parts of later ones
    for chain in _chains(forward, may_be_slice):
        saved = [each.node for each in chain if each.node in output.args[0]]
        if saved and size_of(chain[-1].node) > sum(map(size_of, saved)):
            continue
        memory = _append(forward, chain, slices)
        if saved:
            save_instead(forward, backward, saved, memory, functools.partial(_prefix, dim=chain[0].dim))
    for node in reversed(slices):
        forward.graph.erase_node(node)
    forward.graph.lint()


def _chains(module: GraphModule, may_be_slice: Callable[[Node], bool]) -> list[list[_Concat]]:
    """Concatenations of which each continues the one before it, in the order of the graph."""
    known: dict[Node, _Concat] = {}
    chains: list[list[_Concat]] = []
    last: dict[tuple, list[_Concat]] = {}  # dimension and parts -> the chain whose last concatenation has them
    for node in module.graph.find_nodes(op="call_function", target=aten.cat.default):
        if not may_be_slice(node):
            continue
        concat = known[node] = _concat(node, known)
        keys = ((concat.dim, concat.parts[:count]) for count in reversed(range(1, len(concat.parts))))
        key = next((key for key in keys if key in last and _continues(concat, last[key][-1])), None)
        chain = last.pop(key) if key else []
        if not chain:
            chains.append(chain)
        chain.append(concat)
        last[concat.dim, concat.parts] = chain
    return [chain for chain in chains if len(chain) > 1]


def _concat(node: Node, known: dict[Node, _Concat]) -> _Concat:
    parts, dim = node.args[0], _dim(node)
    first = known.get(parts[0])
    if first is not None and first.dim == dim:
        return _Concat(node, dim, (*first.parts, *parts[1:]))
    return _Concat(node, dim, tuple(parts))


def _dim(node: Node) -> int:
    dim = node.args[1] if len(node.args) > 1 else 0
    return dim % node.meta["val"].dim()


def _is_appendable(node: Node) -> bool:
    """True if parts and concatenation have one type and number of dimensions, and known sizes."""
    value = node.meta["val"]
    if not is_plain(value) or not value.numel() or not value.dim() or "recompute" in node.meta:
        return False
    layout, parts, dim = layout_of(value), [part.meta["val"] for part in node.args[0]], _dim(node)
    # Other slices are no rows with gaps: programs that reduce planes would copy them.
    is_inner, is_outer = layout.strides[dim] == 1, layout.strides[dim] * layout.sizes[dim] == layout.numel
    if not layout.is_dense or not (is_inner or is_outer):
        return False
    return all((each.dim(), each.dtype) == (value.dim(), value.dtype) for each in parts)


def _is_read_in_place(node: Node) -> bool:
    """True if all that is done with a tensor can as well be done with a slice."""
    return all(
        is_element_wise(user) or user.target in _READ_IN_PLACE or (user.op == "output" and node.op != "placeholder")
        for user in node.users
    )


def _continues(later: _Concat, earlier: _Concat) -> bool:
    """True if the earlier concatenation is a slice of the later one, in the same order of memory."""
    long, short = later.node.meta["val"], earlier.node.meta["val"]
    if long.dtype != short.dtype or long.device != short.device:
        return False
    sizes = tuple(short.shape)
    return Layout(sizes, tuple(long.stride())).packed.matches(layout_of(short))


def _append(module: GraphModule, chain: list[_Concat], slices: dict[Node, Node]) -> Node:
    """Add appends for the concatenations, note their slices, which all but the output read, and return the last
    append."""
    whole: Tensor = chain[-1].node.meta["val"]
    memory, start, done = None, 0, 0
    for node, dim, parts in chain:
        with module.graph.inserting_before(node):
            added = [slices.get(part, part) for part in parts[done:]]
            memory = module.graph.call_function(
                append, (memory, added, list(whole.shape), list(whole.stride()), dim, start)
            )
            memory.meta = dict(node.meta) | {"val": whole.new_empty_strided(whole.shape, whole.stride())}
            start, done = node.meta["val"].shape[dim], len(parts)
            part = slices[node] = _prefix(memory, node, dim)
        node.replace_all_uses_with(part, delete_user_cb=lambda user: user.op != "output")
    return memory


def _prefix(memory: Node, node: Node, dim: int) -> Node:
    """Add the slice of the memory that has what a concatenation has."""
    part = memory.graph.call_function(aten.slice.Tensor, (memory, dim, 0, node.meta["val"].shape[dim]))
    part.meta = dict(node.meta)
    part.meta["val"] = given_again(part, {})
    return part
