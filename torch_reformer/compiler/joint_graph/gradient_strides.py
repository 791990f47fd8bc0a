"""Give gradients the strides of their inputs. Autograd takes a parameter's gradient as it is if the strides are the
parameter's, and copies it otherwise."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node

from ..ir.fake_tensors import layout_of
from ..ir.fx_utils import in_order


def set_gradient_strides(joint: GraphModule, num_forward_outputs: int) -> None:
    """Copy gradients whose strides differ from those of their inputs."""
    (output,) = joint.graph.find_nodes(op="output")
    results = list(output.args[0])
    inputs = [node for node in joint.graph.find_nodes(op="placeholder") if str(node.target).startswith("primals")]
    if len(results) - num_forward_outputs != len(inputs):
        return
    for place, input in enumerate(inputs, num_forward_outputs):
        if (strides := _strides_to_copy_to(results[place], input)) is not None:
            results[place] = in_order(joint, results[place], strides)
    if results != list(output.args[0]):
        output.args = (type(output.args[0])(results),)


def _strides_to_copy_to(gradient, input: Node) -> tuple[int, ...] | None:
    """The input's strides, if both tensors are dense and the gradient's strides differ; else None."""
    if not isinstance(gradient, Node):
        return None
    grad, value = gradient.meta.get("val"), input.meta.get("val")
    if not _is_dense(grad) or not _is_dense(value) or grad.shape != value.shape:
        return None
    dimensions = zip(grad.shape, grad.stride(), value.stride(), strict=True)
    return value.stride() if any(size != 1 and one != other for size, one, other in dimensions) else None


def _is_dense(value) -> bool:
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return False
    return layout_of(value).is_dense
