"""Compute once, at compile time, what a graph computes from none of its inputs: positions, masks, indices of windows.

The results become constants of the graph, on the device where they are read. So tensors that a model makes on the CPU
and moves to the GPU need no copy in each call, and do not keep the graph out of CUDA graphs.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from ...runtime.dtypes import FLOATS
from ..ir.custom_ops import CONSTANT
from ..ir.fake_tensors import real_tensors
from ..ir.fx_utils import CONSTANTS, base_of, bytes_of

aten, reformer = torch.ops.aten, torch.ops.reformer

_MOST_BYTES, _MOST_BYTES_IN_ALL = 4 << 20, 64 << 20
_OF_INDICES = {reformer._row_numbers.default, reformer._sort_rows.default}  # of a scatter-add (scatter_reduce.py)
_UNINITIALISED = {
    *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default),
    *(aten.new_empty.default, aten.new_empty_strided.default),
}


def fold_constants(module: GraphModule) -> None:
    """Replace results of operators that depend on no input by constants. Results of the graph stay computed, since each
    call gives a new tensor, and so do values that programs have without reading memory."""
    known: dict[Node, None] = {}  # in order
    for node in module.graph.nodes:
        if known.keys() >= {*node.all_input_nodes} and (_is_constant(module, node) or _is_pure(node)):
            known[node] = None
    values: dict[Node, Tensor] = {}
    total = 0
    with real_tensors(), torch.no_grad():
        for node in _read_by_others(known):
            value, total = _value(module, node, values), total + bytes_of(node)
            if value is not None and total <= _MOST_BYTES_IN_ALL:
                known |= dict.fromkeys(_replace(module, node, value))
    moved = [node for node in known if node.target in CONSTANTS and _move_to_readers(module, node)]
    for node in reversed(known) if values or moved else ():
        if not node.users:
            module.graph.erase_node(node)


def _read_by_others(known: dict[Node, None]) -> list[Node]:
    """The tensors among these nodes that operators outside read, directly or through views."""
    read = {base_of(node): None for node in known if any(user not in known for user in node.users) and bytes_of(node)}
    returned = {base_of(node) for node in known if any(user.op == "output" for user in node.users)}
    return [node for node in read if node.op != "get_attr" and node not in returned and not _is_free(node)]


def _is_constant(module: GraphModule, node: Node) -> bool:
    """True for a tensor of the module, and for an operator that takes no tensor."""
    if node.op == "get_attr":
        return isinstance(getattr(module, node.target, None), Tensor)
    return _is_pure(node) and not node.all_input_nodes


def _is_pure(node: Node) -> bool:
    """True for an operator that gives the same tensors whenever its arguments are the same."""
    if node.op != "call_function":
        return False
    if node.target in _OF_INDICES:
        return True
    if node.target is operator.getitem:
        return 0 < bytes_of(node) <= _MOST_BYTES
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return False
    if node.target in _UNINITIALISED or node.target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return 0 < bytes_of(node) <= _MOST_BYTES


def _move_to_readers(module: GraphModule, node: Node) -> bool:
    """Give operators that compute on other devices than this constant's, as they may with one number, a constant of
    their own device. True if there are such operators."""
    fake = node.meta["val"]
    readers = [user for user in node.users if isinstance(user.meta.get("val"), Tensor)]
    moved = [user for user in readers if user.meta["val"].device != fake.device]
    for user in moved:
        device = user.meta["val"].device
        with module.graph.inserting_before(node), fake.fake_mode:
            constant = module.graph.call_function(node.target, node.args, node.kwargs | {"device": device})
            constant.meta["val"] = torch.empty_like(fake, device=device)
        user.replace_input_with(node, constant)
    return bool(moved)


def _is_free(node: Node) -> bool:
    """True for one number in all elements, and for numbers of columns: programs have these without reading memory."""
    if node.target in CONSTANTS:
        return _is_of_programs(node.meta["val"])
    is_range = node.target in (aten.arange.default, aten.arange.start_step)
    return is_range and node.meta["val"].is_floating_point()


def _is_of_programs(value: Tensor) -> bool:
    """True for the data types of programs' constants, and for one number, which operators on GPUs read without memory
    there. Other integers are mostly indices, which have to be in memory."""
    return value.dtype in (*FLOATS, torch.bool) or not value.dim()


def _value(module: GraphModule, node: Node, values: dict[Node, Tensor]) -> Tensor | None:
    """The node's value, computed on the CPU; None if it has another layout than PyTorch's trace says, or an index is
    wrong, for which the call raises PyTorch's error."""
    for each in _needed(node, values):
        if each.op == "get_attr":
            constant = each.meta.get(CONSTANT)
            values[each] = getattr(module, each.target).detach().cpu() if constant is None else constant
            continue
        args, kwargs = torch.fx.map_arg((each.args, each.kwargs), values.__getitem__)
        try:
            values[each] = each.target(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))
        except (IndexError, RuntimeError):
            if each.target not in _OF_INDICES:
                raise
            return None
    value, fake = values[node], node.meta["val"]
    is_same = value.dtype == fake.dtype and value.shape == fake.shape and value.stride() == fake.stride()
    return value if is_same else None


def _needed(node: Node, values: dict[Node, Tensor]) -> Iterator[Node]:
    """The nodes that have to be computed for this one, and the node itself, in order."""
    needed, todo = {node}, [node]
    while todo:
        for input in todo.pop().all_input_nodes:
            if input not in needed and input not in values:
                needed.add(input)
                todo.append(input)
    return (each for each in node.graph.nodes if each in needed)


def _replace(module: GraphModule, node: Node, value: Tensor) -> list[Node]:
    """Put a constant in the place of the node: an operator that fills, if programs have it. The constant, if the graph
    has it now."""
    fake = node.meta["val"]
    with module.graph.inserting_before(node):
        if value.is_contiguous() and _is_of_programs(value) and _is_uniform(value):
            options, number = {"dtype": value.dtype, "device": fake.device}, value.flatten()[0].item()
            constant = module.graph.call_function(aten.full.default, ([*value.shape], number), options)
        elif fake.device.type == "cuda" and not torch.cuda.is_available():
            node.meta[CONSTANT] = value  # a plan for a GPU that is elsewhere, where no tensor can be
            return []
        else:
            name = next(name for number in itertools.count() if not hasattr(module, name := f"_folded_{number}"))
            module.register_buffer(name, value.to(fake.device), persistent=False)
            constant = module.graph.get_attr(name)
            constant.meta[CONSTANT] = value
    constant.meta["val"] = fake
    node.replace_all_uses_with(constant)
    return [constant]


def _is_uniform(value: Tensor) -> bool:
    """True if all elements are one real number; 0 and -0 are two."""
    first = value.flatten()[:1]
    if value.is_complex() or not bool((value == first).all()):
        return False
    return not value.is_floating_point() or bool((value.signbit() == first.signbit()).all())
