"""The decompositions of GPUs' operators for cells of recurrent networks, and of weight norm's gradient."""

import pytest
import torch
from torch import nn

from torch_reformer.compiler.decompositions import recurrent_cells, weight_norm

aten = torch.ops.aten
CELLS = recurrent_cells.DECOMPOSITIONS
ROWS, WIDTH, HIDDEN = 5, 3, 4


def cell(kind, bias: bool):
    torch.manual_seed(0)
    module = kind(WIDTH, HIDDEN, bias=bias, dtype=torch.float64)
    x, *states = (torch.randn(ROWS, width, dtype=torch.float64).requires_grad_() for width in (WIDTH, HIDDEN, HIDDEN))
    gates = [x.detach() @ module.weight_ih.T.detach(), states[0].detach() @ module.weight_hh.T.detach()]
    return module, x, states, gates, (module.bias_ih, module.bias_hh) if bias else (None, None)


def expected_gradients(module, x, states, results, grads) -> list:
    given = [x, *states, *([module.bias_ih, module.bias_hh] if module.bias else [])]
    used = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
    return torch.autograd.grad([result for result, _ in used], given, [grad for _, grad in used], allow_unused=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("used", ["both", "state", "cell"])
def test_lstm(used, bias):
    module, x, (hx, cx), gates, biases = cell(nn.LSTMCell, bias)
    results = module(x, (hx, cx))
    hy, cy, kept = CELLS[aten._thnn_fused_lstm_cell.default](*gates, cx.detach(), *biases)
    torch.testing.assert_close((hy, cy), tuple(results))
    grads = [torch.randn_like(hy) if used in ("both", name) else None for name in ("state", "cell")]
    backward = CELLS[aten._thnn_fused_lstm_cell_backward_impl.default]
    of_gates, of_cx, of_bias = backward(*grads, cx.detach(), cy.detach(), kept.detach(), bias)
    found = [of_gates @ module.weight_ih, of_gates @ module.weight_hh, of_cx, *([of_bias] * 2 if bias else [])]
    for one, other in zip(found, expected_gradients(module, x, (hx, cx), results, grads), strict=True):
        torch.testing.assert_close(one, other)
    assert (of_bias is None) == (not bias)


def test_lstm_of_no_gradients():
    x = torch.randn(2, 3)
    backward = CELLS[aten._thnn_fused_lstm_cell_backward_impl.default]
    assert backward(None, None, x, x, torch.randn(2, 12), True) == (None, None, None)


@pytest.mark.parametrize("bias", [True, False])
def test_gru(bias):
    module, x, (hx, _), gates, biases = cell(nn.GRUCell, bias)
    result = module(x, hx)
    hy, kept = CELLS[aten._thnn_fused_gru_cell.default](*gates, hx.detach(), *biases)
    torch.testing.assert_close(hy, result)
    grad = torch.randn_like(hy)
    of_gates, of_hidden, of_hx, *of_biases = CELLS[aten._thnn_fused_gru_cell_backward.default](
        grad, kept.detach(), bias
    )
    found = [of_gates @ module.weight_ih, of_hx + of_hidden @ module.weight_hh, *(of_biases if bias else [])]
    for one, other in zip(found, expected_gradients(module, x, (hx,), [result], [grad]), strict=True):
        torch.testing.assert_close(one, other)
    assert bias or of_biases == [None, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_cells(dtype):
    """Results have the type of the states; arithmetic is in fp32."""
    gates = [torch.randn(ROWS, 4 * HIDDEN).to(dtype) for _ in range(2)]
    cx = torch.randn(ROWS, HIDDEN).to(dtype)
    rule = CELLS[aten._thnn_fused_lstm_cell.default]
    found, exact = rule(*gates, cx), rule(*(each.double() for each in gates), cx.double())
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("size, dim", [((4, 3, 5), 0), ((4, 3, 5), 2), ((4, 3, 5), -1), ((6,), 0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_weight_norm(dtype, size, dim):
    torch.manual_seed(0)
    v, grad = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
    g = torch.randn(torch.norm_except_dim(v, 2, dim % len(size)).shape).to(dtype)
    weight, norms = weight_norm.DECOMPOSITIONS[aten._weight_norm_interface.default](v, g, dim)
    assert weight.dtype == dtype
    torch.testing.assert_close(weight, aten._weight_norm_interface(v, g, dim % len(size))[0])
    found = weight_norm.DECOMPOSITIONS[aten._weight_norm_interface_backward.default](grad, v, g, norms, dim)
    exact = [each.double().requires_grad_() for each in (v, g)]
    expected = torch.autograd.grad(torch._weight_norm(*exact, dim % len(size)), exact, grad.double())
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype and one.shape == other.shape
        torch.testing.assert_close(
            one.double(), other, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize("wraps", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.parametrize("make", [lambda: nn.Conv1d(4, 6, 3), lambda: nn.LayerNorm(9)])
def test_a_layer_with_weight_norm(make, wraps):
    """Also of a vector, whose elements have lengths of their own."""
    torch.manual_seed(0)
    layer, x = wraps(make()), torch.randn(2, 4, 9)
    reports: list = []
    torch._dynamo.reset()
    gradients = []
    for run in (layer, torch.compile(layer, backend="reformer", options={"report": reports.append})):
        layer.zero_grad()
        run(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in layer.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    kinds = {line.kind for report in reports for line in report.lines}
    assert kinds and not any("weight_norm" in kind for kind in kinds)
