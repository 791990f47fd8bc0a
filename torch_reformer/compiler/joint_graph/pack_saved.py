"""Save many tensors as one: casts of parameters, and small tensors, such as the statistics of norms. Under autocast, a
forward saves a narrow copy of nearly every weight for its backward. Autograd, and CUDA graphs with their checks of what
is alive, take time for each saved tensor, not for each byte.

What PyTorch's attention gives for its backward is left as it is: its seeds are on the CPU unless a CUDA graph is
recorded, whatever their fake tensors say, and there its backward reads them.

The casts are written where they are packed. Small tensors are copied at the end of the forward, all by one operator;
their own memory is free afterwards. What the user can see is not packed: inputs, results of the forward and views of
these, whose changes in place autograd has to notice."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ...runtime.dtypes import FLOATS
from ..ir.custom_ops import FEWEST_PACKED, draw_key, pack, packed_starts, unpack
from ..ir.fake_tensors import is_plain, layout_of
from ..ir.fx_utils import base_of, bytes_of, given_again, is_view
from .saved import save_instead

aten = torch.ops.aten
_WHOLE_NUMBERS = (draw_key, torch.ops.reformer._row_numbers.default)  # operators whose results are packed, too
_SMALL = 1 << 14  # bytes: all of them are copied in a few microseconds
_FEWEST_COPIED = 16  # fewer are not worth a copy, which takes a kernel's time


def pack_saved(forward: GraphModule, backward: GraphModule, outputs: int) -> None:
    """Pack saved tensors of the forward, by their data types.

    The order of the other saved tensors stays as it is, as AOTAutograd's kinds of saved tensors follow each other.

    Args:
        outputs: the number of the forward's own results, before the saved tensors.
    """
    (output,) = forward.graph.find_nodes(op="output")
    returned = {_maker(node) for node in output.args[0][:outputs] if isinstance(node, Node)}
    by_kind: dict[tuple, list[Node]] = {}
    for node in output.args[0][outputs:]:
        if _is_packable(node) and _maker(node) not in returned:
            source, value = _source(node), node.meta["val"]
            cast_from = source.args[0].meta["val"].dtype if _is_cast(source) else None
            if cast_from or bytes_of(source) <= _SMALL:
                by_kind.setdefault((cast_from, value.dtype, value.device), []).append(node)
    for (cast_from, *_), nodes in by_kind.items():
        sources = list(dict.fromkeys(map(_source, nodes)))
        if len(sources) >= (FEWEST_PACKED if cast_from else _FEWEST_COPIED):
            _pack(forward, backward, nodes, sources)


def _is_packable(node: Node) -> bool:
    """True for a dense tensor of known sizes that the forward computes."""
    if not isinstance(node, Node) or _maker(node).op != "call_function":
        return False
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not is_plain(value):
        return False
    if value.dtype not in FLOATS and _maker(node).target not in _WHOLE_NUMBERS:
        return False
    if _is_of_attention(_maker(node)) or node.meta.get("saved_tensor_with_no_vc_check"):
        return False
    return _is_known(value) and layout_of(value).is_dense and value.numel() > 0


def _maker(node: Node) -> Node:
    """The node that computes a tensor's memory, through views, also by operators that give several."""
    node = base_of(node)
    while node.target is operator.getitem and is_view(node.args[0]):
        node = base_of(node.args[0])
    return node


def _is_of_attention(node: Node) -> bool:
    return node.target is operator.getitem and "attention" in str(node.args[0].target)


def _is_known(value: Tensor) -> bool:
    return all(isinstance(number, int) for number in (*value.shape, *value.stride(), value.storage_offset()))


def _source(node: Node) -> Node:
    """The tensor to pack for a saved one: that of which it is a view, if it has all of the elements."""
    base, value = base_of(node), node.meta["val"]
    whole = base.meta["val"]
    if not isinstance(whole, Tensor) or whole.dtype != value.dtype or not _is_known(whole):
        return node
    return base if layout_of(whole).is_dense and whole.numel() == value.numel() else node


def _is_cast(node: Node) -> bool:
    """True for a cast between floating-point types of an input, or of inputs that are concatenated."""
    if node.target is not aten._to_copy.default or not _is_given(node.args[0]):
        return False
    given, value = (each.meta["val"].dtype for each in (node.args[0], node))
    return given in FLOATS and value in FLOATS and given != value


def _is_given(node: Node) -> bool:
    if node.target is aten.cat.default and len(node.users) == 1:  # along rows
        return len(node.args) == 1 and all(part.op == "placeholder" for part in node.args[0])
    return node.op == "placeholder"


def _pack(forward: GraphModule, backward: GraphModule, nodes: list[Node], sources: list[Node]) -> None:
    (output,) = forward.graph.find_nodes(op="output")
    starts = dict(zip(sources, packed_starts(each.meta["val"].numel() for each in sources), strict=False))
    with forward.graph.inserting_before(output):
        packed = forward.graph.call_function(pack, (sources,))
    packed.meta["val"] = given_again(packed, {})

    start_of = {node.name: starts[_source(node)] for node in nodes}

    def part_of(memory: Node, node: Node) -> Node:
        value = node.meta["val"]
        part = memory.graph.call_function(unpack, (memory, tuple(value.shape), value.stride(), start_of[node.name]))
        part.meta = dict(node.meta)
        return part

    save_instead(forward, backward, nodes, packed, part_of)
