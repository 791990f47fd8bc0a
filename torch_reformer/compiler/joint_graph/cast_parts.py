"""Cast parts instead of the whole: to a narrower type before a concatenation, to a wider one behind slices.

Under autocast a convolution casts what it concatenates, as in a U-Net, and the gradient of the cast is sliced. Narrow
parts are stored in fewer bytes, by the kernel that computes each where there is one, and kernels that read slices widen
them themselves. The casts of parameters become one kernel, which can write those of a concatenation side by side
(passes/pack_casts.py).

An element is rounded as before. Whole numbers stay: a concatenation may round them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ...runtime.dtypes import FLOATS
from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import given_again, reads_memory
from ..ir.sized_tensor import SizedTensor
from .propagate_memory_format import ANY_ORDER, OF_MATRICES, apply, with_choice

aten = torch.ops.aten

_TYPES = {*FLOATS, torch.bool}


def cast_parts(module: GraphModule, of_inputs: bool = True) -> None:
    """Exchange concatenations and the casts of them, and casts and slices of them, where nothing else reads either.

    Args:
        of_inputs: also where inputs alone are concatenated. A forward saves the cast of parameters as one tensor.
    """
    for cat in module.graph.find_nodes(op="call_function", target=aten.cat.default):
        if not of_inputs and all(part.op == "placeholder" for part in cat.args[0]):
            continue
        casts = list(cat.users)
        if casts and all(_is_cast(user) and user.kwargs == casts[0].kwargs for user in casts):
            if _is_narrower(casts[0], cat) and all(part.meta["val"].dtype in _TYPES for part in cat.args[0]):
                _cast_before(cat, casts)
    for cast in module.graph.find_nodes(op="call_function", target=aten._to_copy.default):
        if cast.users and _is_cast(cast) and _is_narrower(cast.args[0], cast):
            if all(user.target is aten.slice.Tensor for user in cast.users):
                _cast_behind(module, cast)


def _is_cast(node: Node) -> bool:
    """True for a cast that keeps the device and the order of memory."""
    is_cast = node.target is aten._to_copy.default and isinstance(node.kwargs.get("dtype"), torch.dtype)
    if not is_cast or node.kwargs.get("memory_format", torch.preserve_format) != torch.preserve_format:
        return False
    return node.meta["val"].device == node.args[0].meta["val"].device


def _is_static(node: Node) -> bool:
    value = node.meta["val"]
    return type(value) is not SizedTensor and all(isinstance(n, int) for n in (*value.shape, *value.stride()))


def _is_narrower(node: Node, than: Node) -> bool:
    one, other = node.meta["val"].dtype, than.meta["val"].dtype
    return one in FLOATS and other in FLOATS and one.itemsize < other.itemsize


def _cast_before(cat: Node, casts: list[Node]) -> None:
    """Concatenate casts of the parts, unless that has other strides than the cast of the concatenation."""
    graph, first = cat.graph, casts[0]
    with graph.inserting_before(cat):
        parts = {part: _cast_again(part, first) for part in cat.args[0]}
        whole = graph.call_function(
            aten.cat.default, ([parts[part] for part in cat.args[0]], *cat.args[1:]), cat.kwargs
        )
    whole.meta = dict(cat.meta)
    whole.meta["val"] = value = given_again(whole, {})
    if not all(cast.meta["val"].stride() == value.stride() for cast in casts):
        for node in (whole, *(new for part, new in parts.items() if new is not part)):
            graph.erase_node(node)
        return
    for cast in casts:
        cast.replace_all_uses_with(whole)
        graph.erase_node(cast)
    graph.erase_node(cat)


def _cast_again(part: Node, cast: Node) -> Node:
    """The part as the cast's type: itself if it has that type."""
    if part.meta["val"].dtype == cast.meta["val"].dtype:
        return part
    new = part.graph.call_function(cast.target, (part,), cast.kwargs)
    new.meta = {name: value for name, value in cast.meta.items() if name != "val"}  # which has the whole's sizes
    new.meta["val"] = given_again(new, {})
    return new


def _cast_behind(module: GraphModule, cast: Node) -> None:
    """Cast the slices that are read of a cast, unless an operator can't take them without gaps."""
    slices = list(cast.users)

    def without_gaps(node: Node, value: Tensor, changed: dict[Node, object]) -> Tensor:
        return value.new_empty_strided(value.shape, layout_of(value).packed.strides) if node in slices else value

    are_parts = all(_is_static(each) and each.meta["val"].shape != cast.meta["val"].shape for each in slices)
    if not are_parts or any(map(reads_memory, slices)):
        return
    changed = with_choice(slices, without_gaps, ANY_ORDER | OF_MATRICES)
    if any(slice not in changed and not layout_of(slice.meta["val"]).is_dense for slice in slices):
        return
    apply(module, changed)
    for slice in slices:
        with module.graph.inserting_before(slice):
            part = module.graph.call_function(slice.target, (cast.args[0], *slice.args[1:]))
            part.meta = slice.meta | {"val": None}
            part.meta["val"] = given_again(part, {})
            new = _cast_again(part, cast)
        new.meta["val"] = slice.meta["val"]
        slice.replace_all_uses_with(new)
        module.graph.erase_node(slice)
    module.graph.erase_node(cast)
