"""What AOTAutograd takes apart before the compiler sees it: PyTorch's core table, with some operators left whole and
others taken apart besides; and this package's own convolutions as PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.overrides import TorchFunctionMode

from ..runtime import native  # noqa: F401  registers the operators
from . import dropout, losses

aten, reformer = torch.ops.aten, torch.ops.reformer
_PLAIN = (1, 1), (0, 0), (1, 1), 1  # stride, padding, dilation, groups

# Each is a kernel of PyTorch's that reads its operands once, an anchor, or an operation of the compiler's own.
_WHOLE = {
    aten.native_group_norm_backward,
    *(aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward),
    *(aten.embedding_dense_backward, aten.index_add, aten._unsafe_index, aten._unsafe_index_put),
    *(aten.upsample_bilinear2d, aten.upsample_nearest2d, aten.im2col, aten.col2im),
    *(aten.baddbmm, aten._scaled_dot_product_flash_attention_for_cpu),
    *(aten.silu, aten.rsub),
}
_BROKEN_UP = (
    *(aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional),
    *(aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional, aten.batch_norm_backward),
    *(aten.miopen_batch_norm, aten.leaky_relu, aten.elu, aten.hardtanh),
    # Rows: reductions that the rest of the row's values need.
    *(aten.native_layer_norm, aten.native_layer_norm_backward, aten._fused_rms_norm, aten._fused_rms_norm_backward),
    *(aten._softmax, aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data),
)


def decompositions() -> dict:
    table = dict(core_aten_decompositions()) | get_decompositions(list(_BROKEN_UP))
    table = {op: rule for op, rule in table.items() if getattr(op, "overloadpacket", op) not in _WHOLE}
    return table | dropout.DECOMPOSITIONS | losses.DECOMPOSITIONS | _CONVOLUTIONS


class ConvolutionsOfPyTorch(TorchFunctionMode):
    """What is traced in it has PyTorch's convolution where it calls this package's operator (modules that convert()
    swapped): so one plan comes of both, as autograd then asks for both gradients at once."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is reformer.conv2d.default and not kwargs:
            return _conv2d(*args)
        return function(*args, **(kwargs or {}))


def _conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, *geometry) -> Tensor:
    return torch.conv2d(input, weight, bias, *_whole(geometry))


def _input_grad(size, weight: Tensor, grad: Tensor, *geometry) -> Tensor:
    like = grad.new_empty(()).expand(size)  # of the input only the size is needed
    return _gradients(grad, like, weight, geometry, (True, False, False))[0]


def _weight_grad(size, input: Tensor, grad: Tensor, *geometry) -> Tensor:
    like = grad.new_empty(()).expand(size)
    return _gradients(grad, input, like, geometry, (False, True, False))[1]


def _gradients(grad: Tensor, input: Tensor, weight: Tensor, geometry, wanted):
    stride, padding, dilation, groups = _whole(geometry)
    return aten.convolution_backward(
        grad, input, weight, None, stride, padding, dilation, False, (0, 0), groups, list(wanted)
    )


def _whole(geometry: tuple) -> tuple:
    """With the defaults of what is left out."""
    return (*geometry, *_PLAIN[len(geometry) :])


_CONVOLUTIONS = {
    reformer.conv2d.default: _conv2d,
    reformer.conv2d_input_grad.default: _input_grad,
    reformer.conv2d_weight_grad.default: _weight_grad,
}
