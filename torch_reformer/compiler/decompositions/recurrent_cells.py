"""Cells of recurrent networks on GPUs, for which PyTorch has operators between the products: element-wise operations,
which join what is before and after a step of an unrolled loop. Numbers are rounded when they are stored, as there."""

from __future__ import annotations

import torch
from torch import Tensor

from .widen import wide

aten = torch.ops.aten


def _sums(one: Tensor, other: Tensor, biases: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Both tensors of gates [N, gates x H] with their biases."""
    one, other = (
        wide(gates) if bias is None else wide(gates) + wide(bias)
        for gates, bias in zip((one, other), biases, strict=True)
    )
    return one, other


def _lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns: the new state and cell [N, H], and the gates for the backward [N, 4 H]."""
    one, other = _sums(input_gates, hidden_gates, (input_bias, hidden_bias))
    into, forget, cell, out = (one + other).chunk(4, 1)
    into, forget, cell, out = into.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()
    cy = forget * wide(cx) + into * cell
    hy, gates = out * cy.tanh(), torch.cat([into, forget, cell, out], 1)
    return hy.to(cx.dtype), cy.to(cx.dtype), gates.to(input_gates.dtype)


def _lstm_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the gates before their functions, of the old cell, and of a bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    into, forget, cell, out = wide(gates).chunk(4, 1)
    tanh = wide(cy).tanh()
    by_hy = torch.zeros_like(tanh) if grad_hy is None else wide(grad_hy)
    by_cy = by_hy * out * (1 - tanh * tanh)
    by_cy = by_cy if grad_cy is None else by_cy + wide(grad_cy)
    grads = torch.cat(
        [
            by_cy * cell * into * (1 - into),
            by_cy * wide(cx) * forget * (1 - forget),
            by_cy * into * (1 - cell * cell),
            by_hy * tanh * out * (1 - out),
        ],
        1,
    ).to(gates.dtype)
    return grads, (by_cy * forget).to(cx.dtype), grads.sum(0) if has_bias else None


def _gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns: the new state [N, H], and what the backward needs [N, 5 H]."""
    given, hidden = _sums(input_gates, hidden_gates, (input_bias, hidden_bias))
    (reset, update, new), (of_reset, of_update, of_new) = given.chunk(3, 1), hidden.chunk(3, 1)
    reset, update = (reset + of_reset).sigmoid(), (update + of_update).sigmoid()
    new, state = (new + reset * of_new).tanh(), wide(hx)
    kept = torch.cat([reset, update, new, state, of_new], 1)
    return (new + update * (state - new)).to(hx.dtype), kept.to(input_gates.dtype)


def _gru_backward(
    grad_hy: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both gates before their functions, of the old state, and of both biases."""
    reset, update, new, hx, of_new = wide(kept).chunk(5, 1)
    grad = wide(grad_hy)
    by_new = grad * (1 - update) * (1 - new * new)
    by_reset, by_update = by_new * of_new * reset * (1 - reset), grad * (hx - new) * update * (1 - update)
    given, hidden = (torch.cat([by_reset, by_update, last], 1).to(kept.dtype) for last in (by_new, by_new * reset))
    one, other = (each.sum(0) if has_bias else None for each in (given, hidden))
    return given, hidden, (grad * update).to(grad_hy.dtype), one, other


DECOMPOSITIONS = {
    aten._thnn_fused_lstm_cell.default: _lstm,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
    aten._thnn_fused_gru_cell.default: _gru,
    aten._thnn_fused_gru_cell_backward.default: _gru_backward,
}
