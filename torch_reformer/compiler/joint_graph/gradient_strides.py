"""Gradients in their inputs' orders of memory, as autograd wants them: it takes those of parameters as they are then,
and copies others."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import in_order


def set_gradient_strides(joint: GraphModule, num_forward_outputs: int) -> None:
    """Copies gradients that are in another order than the inputs which they are of."""
    (output,) = joint.graph.find_nodes(op="output")
    results = list(output.args[0])
    inputs = [node for node in joint.graph.find_nodes(op="placeholder") if str(node.target).startswith("primals")]
    if len(results) - num_forward_outputs != len(inputs):
        return
    for place, input in enumerate(inputs, num_forward_outputs):
        if (strides := _other_strides(results[place], input)) is not None:
            results[place] = in_order(joint, results[place], strides)
    if results != list(output.args[0]):
        output.args = (type(output.args[0])(results),)
        joint.recompile()


def _other_strides(gradient, input: Node) -> tuple[int, ...] | None:
    """The input's, if both are whole tensors in memory and these are others than the gradient's."""
    if not isinstance(gradient, Node):
        return None
    found, wanted = gradient.meta.get("val"), input.meta.get("val")
    if not _is_dense(found) or not _is_dense(wanted) or found.shape != wanted.shape:
        return None
    own = zip(found.shape, found.stride(), wanted.stride(), strict=True)
    return wanted.stride() if any(size != 1 and one != other for size, one, other in own) else None


def _is_dense(value) -> bool:
    if not isinstance(value, Tensor) or not all(isinstance(each, int) for each in value.shape):
        return False
    return layout_of(value).is_dense
