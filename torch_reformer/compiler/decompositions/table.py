"""The table of decompositions for AOTAutograd: PyTorch's core table without some operators that stay whole, and with
further ones."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from ...runtime import native  # noqa: F401  registers the operators
from ..ir.fx_utils import UPSAMPLINGS
from ..ir.stages import or_whole
from . import (
    conv1d,
    conv_pad_channels,
    conv_patchify,
    dropout,
    embedding_backward,
    group_norm,
    log_sigmoid,
    nll_loss,
    norms,
    one_place,
    pixel_shuffle,
    recurrent_cells,
    roll,
    scatter_reduce,
    weight_norm,
    windows,
)

aten, reformer = torch.ops.aten, torch.ops.reformer

# Each is computed by a kernel of PyTorch's that reads its operands once, or is an anchor, or has a lowering rule.
_WHOLE = {
    *(aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward),
    *(aten.index_add, aten._unsafe_index, aten._unsafe_index_put),
    *(*UPSAMPLINGS, aten.im2col, aten.col2im, aten.unfold_backward),
    *(aten.baddbmm, aten._scaled_dot_product_flash_attention_for_cpu),
    *(aten.silu, aten.rsub, aten.gelu_backward),
    aten.eye,  # PyTorch's rule counts in uint16, of which it has no arange
    *(aten.roll, aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d),
    *(aten.reflection_pad1d_backward, aten.reflection_pad2d_backward, aten.reflection_pad3d_backward),
    *(aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d),
    *(aten.replication_pad1d_backward, aten.replication_pad2d_backward, aten.replication_pad3d_backward),
}
_BROKEN_UP = (
    *(aten.native_batch_norm, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional),
    *(aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional, aten.batch_norm_backward),
    *(aten.miopen_batch_norm, aten.leaky_relu, aten.elu, aten.hardtanh),
    # Operations on rows, in which element-wise operations read a reduction of their row.
    *(aten.native_layer_norm, aten.native_layer_norm_backward, aten._fused_rms_norm, aten._fused_rms_norm_backward),
    aten.linalg_vector_norm,
    *(aten._softmax, aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data),
)
# PyTorch's rules divide by the number of elements, which may be 0.
_MEANS = aten.mse_loss_backward, aten.smooth_l1_loss_backward, aten.huber_loss_backward


def decompositions() -> dict:
    """The table, operators to functions. A function that gives NotImplemented leaves its operator whole."""
    table = dict(core_aten_decompositions()) | get_decompositions(list(_BROKEN_UP))
    table = {op: rule for op, rule in table.items() if getattr(op, "overloadpacket", op) not in _WHOLE}
    table[aten.select_scatter.default] = _in_own_type(table[aten.select_scatter.default])
    table[aten.addcmul.default] = _unless_truncated(table[aten.addcmul.default])
    table |= {op: _unless_empty(rule) for op, rule in table.items() if getattr(op, "overloadpacket", op) in _MEANS}
    own: dict = norms.changed(table)
    for module in (
        conv_pad_channels,
        dropout,
        embedding_backward,
        group_norm,
        log_sigmoid,
        nll_loss,
        conv_patchify,
        pixel_shuffle,
        recurrent_cells,
        roll,
        one_place,
        scatter_reduce,
        weight_norm,
        windows,
        conv1d,
    ):
        for op, rule in module.DECOMPOSITIONS.items():
            own[op] = _first_of(own[op], or_whole(rule)) if op in own else or_whole(rule)
    return table | own | _CONVOLUTIONS


def _in_own_type(rule: Callable) -> Callable:
    """A scatter whose source gets the type of what it is written to: PyTorch's rule promotes both."""

    @functools.wraps(rule)
    def run(input: Tensor, src: Tensor, *args):
        return rule(input, src.to(input.dtype), *args)

    return run


def _unless_truncated(rule: Callable) -> Callable:
    """A product that is added, times a number, which PyTorch's operator truncates for tensors of integers. The rule
    refuses that."""

    @functools.wraps(rule)
    def run(self: Tensor, *factors: Tensor, value=1):
        is_truncated = isinstance(value, float) and not (self.is_floating_point() or self.is_complex())
        return NotImplemented if is_truncated else rule(self, *factors, value=value)

    return run


def _unless_empty(rule: Callable) -> Callable:
    @functools.wraps(rule)
    def run(grad_output: Tensor, input: Tensor, *args, **kwargs):
        return rule(grad_output, input, *args, **kwargs) if input.numel() else torch.empty_like(input)

    return run


def _first_of(one: Callable, other: Callable) -> Callable:
    def rule(*args, **kwargs):
        result = one(*args, **kwargs)
        return other(*args, **kwargs) if result is NotImplemented else result

    return rule


def _input_grad(input_size, weight, grad_output, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1) -> Tensor:
    like = grad_output.new_empty(()).expand(input_size)  # only the size of the input is needed
    rest = None, stride, padding, dilation, False, (0, 0), groups, [True, False, False]
    return aten.convolution_backward(grad_output, like, weight, *rest)[0]


def _weight_grad(weight_size, input, grad_output, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1) -> Tensor:
    like = grad_output.new_empty(()).expand(weight_size)
    rest = None, stride, padding, dilation, False, (0, 0), groups, [False, True, False]
    return aten.convolution_backward(grad_output, input, like, *rest)[1]


_CONVOLUTIONS = {
    reformer.conv2d.default: torch.conv2d,
    reformer.conv2d_input_grad.default: _input_grad,
    reformer.conv2d_weight_grad.default: _weight_grad,
}
