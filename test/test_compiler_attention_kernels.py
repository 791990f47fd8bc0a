"""The choice of attention's kernel (decompositions/attention.py), and attention that is written out."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_reformer.compiler.decompositions import attention as choice
from torch_reformer.compiler.decompositions.written_attention import written_out
from torch_reformer.compiler.ir.attention_call import attention_us
from torch_reformer.compiler.ir.attention_choice import is_free
from torch_reformer.compiler.ir.attention_cost import Attention, expected_us, expected_us_of, is_gain, kernels
from torch_reformer.compiler.ir.device_model import GPUS
from torch_reformer.compiler.ir.graph import Call, Value, View
from torch_reformer.compiler.ir.layout import Layout

NARROW = torch.bfloat16


def operands(queries: int, keys: int, mask: str, batch: int = 2, heads: int = 3) -> list[torch.Tensor]:
    q, k, v = (torch.randn(batch, heads, count, 8).to(NARROW).requires_grad_() for count in (queries, keys, keys))
    if mask == "bias":
        return [q, k, v, torch.randn(1, heads, queries, keys).to(NARROW).requires_grad_()]
    if mask == "mask":
        mask = torch.rand(batch, 1, queries, keys) < 0.5
        mask[0, 0, 0] = False  # a row that is masked everywhere
        return [q, k, v, mask]
    return [q, k, v]


def results(function, inputs, grad) -> list[torch.Tensor]:
    result = function(*inputs)
    return [result, *torch.autograd.grad(result, [each for each in inputs if each.requires_grad], grad)]


@pytest.mark.parametrize("mask", ["none", "causal", "bias", "mask"])
@pytest.mark.parametrize("queries, keys", [(49, 49), (7, 13), (8, 8), (1, 1)])
def test_written_out(queries, keys, mask):
    """As exact as PyTorch's, against fp64; rows that are masked everywhere give zeros."""
    torch.manual_seed(0)
    inputs, is_causal = operands(queries, keys, mask), mask == "causal"
    grad = torch.randn(2, 3, queries, 8).to(NARROW)

    def own(q, k, v, mask=None):
        return written_out(q, k, v, mask, 0.0, is_causal, None)

    def by_pytorch(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal)

    wide = [each.detach().double().requires_grad_() if each.requires_grad else each for each in inputs]
    found, peer, exact = results(own, inputs, grad), results(by_pytorch, inputs, grad), None
    exact = results(by_pytorch, wide, grad.double())
    for own_result, of_peer, right in zip(found, peer, exact, strict=True):
        error, of_pytorch = ((each.double() - right).norm() for each in (own_result, of_peer))
        assert error <= 2 * of_pytorch + 4e-3 * right.norm()
    assert found[0].transpose(1, 2).is_contiguous()


def test_written_out_keeps_nan_in_its_row():
    q, k, v = (torch.randn(1, 1, 5, 8).to(NARROW) for _ in "qkv")
    q[0, 0, 2, 3] = math.nan
    result = written_out(q, k, v, None, 0.0, False, None)
    assert result[0, 0, 2].isnan().all() and not result[0, 0, [0, 1, 3, 4]].isnan().any()


def test_dropout_drops_weights_before_the_values():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, 8).to(NARROW).requires_grad_() for _ in "qkv")
    for share, is_zero in ((1.0, True), (0.5, False)):
        result = written_out(q, k, v, None, share, False, None)
        grads = torch.autograd.grad(result, (q, k, v), torch.ones_like(result))
        assert all(bool((each == 0).all()) == is_zero for each in (result, *grads))


def test_a_table_chooses():
    """As timed on an H200 (benchmarks/results/h200/attention_kernels.csv)."""
    first = {
        Attention(32, 8, 1, 512, 512, 64): "cudnn",
        Attention(334, 8, 1, 49, 49, 64): "efficient",
        Attention(16, 8, 1, 512, 512, 64, "bias_grad", True): "products",
        Attention(256, 8, 1, 64, 64, 64, "bias_grad"): "efficient",
    }
    assert {case: kernels(case, "sm_90", True)[0] for case in first} == first
    grouped, long = Attention(8, 8, 4, 512, 512, 64), Attention(4, 8, 1, 4096, 4096, 64, "bias_grad")
    assert "products" not in kernels(grouped, "sm_90", True) + kernels(long, "sm_90", True)
    assert expected_us(long, "cudnn", "sm_90", True) == math.inf  # it gives biases no gradient


def test_users_products_stay_where_others_gain_little():
    """Biases with gradients: of windows, of scores that written_attention.py aligns, of aligned ones, of long rows."""
    sizes = (256, 8, 1, 49, 49, 64), (16, 8, 1, 300, 300, 256), (16, 8, 1, 304, 304, 256), (16, 8, 1, 2047, 2047, 64)
    assert [is_gain(Attention(*each, "bias_grad"), "sm_90", True) for each in sizes] == [True, True, False, False]


def test_values_may_have_heads_of_another_size():
    query, value = torch.randn(2, 3, 4, 16, dtype=NARROW), torch.randn(2, 3, 4, 32, dtype=NARROW)
    assert choice._case(query, query, value, None, 0.0, False, False) == Attention(2, 3, 1, 4, 4, 24)


@pytest.mark.parametrize("tokens", [0, 1])
def test_no_tokens_are_left_to_pytorch(tokens):
    q = torch.randn(2, 3, tokens, 8, dtype=NARROW)
    assert (choice._case(q, q, q, None, 0.0, False, False) is None) == (tokens == 0)


def test_the_users_choice_stays():
    assert is_free()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert not is_free()
    torch.use_deterministic_algorithms(True)
    try:
        assert not is_free()
    finally:
        torch.use_deterministic_algorithms(False)


def call_of(case, kernel, is_backward):
    """A call in a graph."""
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{'_backward' * is_backward}").default

    def view(*sizes):
        layout = Layout.row_major(sizes)
        return View(Value(-1, layout, torch.bfloat16, torch.device("cuda")), layout)

    of_keys = case.batch, case.heads // case.groups, case.keys, case.head_size
    values = {"query": view(case.batch, case.heads, case.queries, case.head_size)}
    values |= {"key": view(*of_keys), "value": view(*of_keys), "is_causal": case.mask == "causal"}
    values |= {"dropout_p": 0.1} if case.dropout else {}
    if case.mask.startswith("bias"):
        values["attn_bias"] = view(1 if case.is_shared else case.batch, case.heads, case.queries, case.keys)
    values["grad_input_mask"] = [True, True, True, case.mask == "bias_grad"]
    names = [argument.name for argument in operator._schema.arguments]
    return Call(operator, (), {name: value for name, value in values.items() if name in names})


@pytest.mark.parametrize("kernel", ["cudnn", "flash", "efficient"])
@pytest.mark.parametrize("is_backward", [False, True])
def test_times_of_calls(kernel, is_backward):
    """Reports expect of a call what its choice expected."""
    masks = {"cudnn": ("bias", "none"), "flash": ("none", "causal"), "efficient": ("causal", "bias")}[kernel]
    masks += ("bias_grad",) if kernel == "efficient" and is_backward else ()
    for mask in masks:
        for dropout, is_shared, groups in ((False, True, 1), (True, False, 2)):
            case = Attention(2, 8, groups, 512, 256, 64, mask, dropout, is_shared)
            found = attention_us(call_of(case, kernel, is_backward), "sm_90")
            assert found == expected_us_of(case, kernel, GPUS["sm_90"], is_backward)
    assert found > attention_us(call_of(case._replace(dropout=False), kernel, is_backward), "sm_90")
    assert attention_us(call_of(case, kernel, is_backward), "sm_80") is None
    for empty in ({"batch": 0}, {"heads": 0}, {"queries": 0}, {"keys": 0}):
        assert attention_us(call_of(case._replace(**empty), kernel, is_backward), "sm_90") is None
    assert attention_us(Call(torch.ops.aten.mm.default, (), {}), "sm_90") is None
