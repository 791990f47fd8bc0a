"""Keys and values that several heads of queries share (pre_grad/shared_heads.py)."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule

from torch_reformer.compiler.decompositions import attention as choice
from torch_reformer.compiler.ir.attention_cost import Attention, expected_us
from torch_reformer.compiler.pre_grad import shared_heads

BATCH, HEADS, GROUPS, ROWS, COLUMNS = 2, 3, 4, 5, 8


def attention(q, k, v, **options):
    return F.scaled_dot_product_attention(q, k, v, **options)


def repeated(x, groups=GROUPS):
    """As transformers' `repeat_kv`."""
    batch, heads, rows, columns = x.shape
    x = x[:, :, None, :, :].expand(batch, heads, groups, rows, columns)
    return x.reshape(batch, heads * groups, rows, columns)


def interleaved(x):
    return torch.repeat_interleave(x, GROUPS, dim=1)


SHARED = {
    "expanded": lambda q, k, v: attention(q, repeated(k), repeated(v)),
    "flattened": lambda q, k, v: attention(
        q, *(each.unsqueeze(2).expand(-1, -1, GROUPS, -1, -1).flatten(1, 2) for each in (k, v)), is_causal=True
    ),
    "interleaved": lambda q, k, v: attention(q, interleaved(k), v.repeat_interleave(GROUPS, -3)),
    "both": lambda q, k, v: attention(q, repeated(k), interleaved(v)),
    "one tensor": lambda q, k, v: (lambda kv: attention(q, kv, kv))(repeated(k)),
    "needed elsewhere": lambda q, k, v: (lambda k: attention(q, k, repeated(v)) + k)(repeated(k)),
    "one head for all": lambda q, k, v: attention(q, k[:, :1], v[:, 1:2]),
    "one head, expanded": lambda q, k, v: attention(
        q, *(each[:, :1].expand(-1, q.shape[1], -1, -1) for each in (k, v))
    ),
    "contiguous heads": lambda q, k, v: attention(q, repeated(k.contiguous()), repeated(v.contiguous())),
}
LEFT = {
    "keys only": lambda q, k, v: attention(q, repeated(k), v.repeat(1, GROUPS, 1, 1)),
    "other heads": lambda q, k, v: attention(q, k.repeat(1, GROUPS, 1, 1), v.repeat(1, GROUPS, 1, 1)),
    "along rows": lambda q, k, v: attention(q[:, :HEADS], *(each.repeat_interleave(2, 2) for each in (k, v))),
    "other groups": lambda q, k, v: attention(q, repeated(k), repeated(v[:, :2], 6)),
    "a list of repeats": lambda q, k, v: attention(
        q, *(each.repeat_interleave(torch.tensor([2, 6, 4]), 1, output_size=12) for each in (k, v))
    ),
    "one head and one row, expanded": lambda q, k, v: attention(
        q, k[:, :1, :1].expand(-1, q.shape[1], v.shape[2], -1), v[:, :1].expand(-1, q.shape[1], -1, -1)
    ),
    "one head and one column, expanded": lambda q, k, v: attention(
        q, *(each[:, :1, :, :1].expand(-1, q.shape[1], -1, q.shape[3]) for each in (k, v))
    ),
    "one head of keys only": lambda q, k, v: attention(q, k[:, :1], repeated(v)),
    "one batch for all": lambda q, k, v: attention(q, k[:1, :1], v[:1, :1]),
    "expanded batch": lambda q, k, v: attention(
        q, *(each[:1, :, None].expand(BATCH, -1, GROUPS, -1, -1).reshape(q.shape) for each in (k, v))
    ),
}


def written(q, k, v):
    """The sources are written to after they were copied."""
    k, v = k * 2, v * 2
    copies = repeated(k), repeated(v)
    k.zero_()
    return attention(q, *copies)


def written_behind(q, k, v):
    """Keys of one head for all, which PyTorch copies."""
    k, v = k[:, :1] * 2, v[:, :1] * 2
    result = attention(q, k, v)
    k.zero_()
    return result


def given(q, k, v):
    return attention(q, repeated(k), repeated(v))


def operands():
    torch.manual_seed(0)
    heads = HEADS * GROUPS, HEADS, HEADS
    return [torch.randn(BATCH, ROWS, count, COLUMNS, dtype=torch.float64).transpose(1, 2) for count in heads]


def changed(function, inputs, monkeypatch) -> list[bool]:
    """True for each call that shares heads; compares results and gradients."""
    calls = []
    monkeypatch.setattr(shared_heads, "_is_of_gpu", shared_heads.is_static)

    def backend(module: GraphModule, _):
        shared_heads.share_heads(module)
        module.graph.lint()
        nodes = module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        calls.extend(bool(node.kwargs.get("enable_gqa")) for node in nodes)
        return module.forward

    torch._dynamo.reset()
    results = []
    for run in (torch.compile(function, backend=backend, dynamic=False), function):
        leaves = [each.detach().requires_grad_() for each in inputs]
        result = run(*leaves)
        grads = torch.autograd.grad(result.square().sum(), leaves, allow_unused=True)
        results.append([result, *(grad for grad in grads if grad is not None)])
    torch.testing.assert_close(*results)
    return calls


@pytest.mark.parametrize("name", [*SHARED, *LEFT])
def test_calls(name, monkeypatch):
    """Computed keys and values are shared; those of inputs may be written to before the backward reads them."""
    function = (SHARED | LEFT)[name]
    computed = changed(lambda q, k, v: function(q, k * 2, v * 2), operands(), monkeypatch)
    assert computed == [name in SHARED]


@pytest.mark.parametrize("function", [written, written_behind, given])
def test_sources_that_may_change_are_copied(function, monkeypatch):
    assert changed(function, operands(), monkeypatch) == [False]


def test_strides_are_kept(monkeypatch):
    """The result of keys that are broadcast is contiguous, whatever the order of the queries."""

    def function(q, k, v):
        return attention(q, k[:, :1] * 2, v[:, :1] * 2).view(-1, COLUMNS)

    assert changed(function, operands(), monkeypatch) == [True]


def test_no_rows(monkeypatch):
    q, k, v = operands()
    empty = [q[:, :, :0], k, v]
    assert changed(lambda q, k, v: SHARED["expanded"](q, k * 2, v * 2), empty, monkeypatch) == [True]


def test_heads_are_repeated_for_kernels_that_share_none():
    """PyTorch's last resort gets what the user wrote."""
    taken = []

    def operator(q, k, v, enable_gqa=False, **options):
        taken.append((k.shape[1], enable_gqa))
        if enable_gqa:
            raise RuntimeError("no kernel shares heads")
        return F.scaled_dot_product_attention(q, k, v, **options)

    q, k, v = operands()
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    calls = [lambda: operator(q, k, v, enable_gqa=True), lambda: choice._with_repeated(operator, q, k, v)]
    torch.testing.assert_close(choice._by_kernels([torch.nn.attention.SDPBackend.MATH], calls), expected)
    assert taken == [(HEADS, True), (HEADS * GROUPS, False)]
    assert choice._by_kernels([torch.nn.attention.SDPBackend.MATH], calls[:1]) is None


def test_repeated_heads_have_a_price():
    shared, own = (Attention(4, 32, groups, 2048, 2048, 64, "causal") for groups in (4, 1))
    assert expected_us(shared, "cudnn", "sm_90", True) < expected_us(own, "cudnn", "sm_90", True)
    assert expected_us(shared, "efficient", "sm_90", True) > expected_us(own, "efficient", "sm_90", True)
