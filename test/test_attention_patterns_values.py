"""Attention that users write in ways that change values, or the order of the graph (pre_grad/attention_patterns.py)."""

from __future__ import annotations

import math

import pytest
import torch
from gpu_rules import as_on_gpus
from test_attention_patterns import (  # noqa: F401
    BATCH,
    HEADS,
    KEYS,
    NARROW,
    ROWS,
    attend,
    check,
    fresh,
    learned,
    tensors,
)

from torch_reformer.compiler.backend import reformer


def test_results_in_another_order_than_their_scores():
    """The bias that both calls share is computed before the one that comes first in the graph."""

    def attention(q, k, v, bias):
        one = (q @ k.mT + bias).softmax(-1).to(v.dtype)
        other = (q @ k.mT * 0.5 + bias).softmax(-1).to(v.dtype)
        last = other @ v
        return one @ v, last

    check(attention, [*tensors(), learned(HEADS, ROWS, KEYS)], calls=2, plans=True)


def test_transpositions_in_place():
    """The node of their source has the new sizes, too."""
    q, _, v = tensors()
    check(lambda q, k, v: (q @ k.clone().transpose_(-2, -1)).softmax(-1) @ v, [q, *tensors()[1:2], v])
    torch._dynamo.reset()
    square = [torch.randn(BATCH, HEADS, 8, 8).to(NARROW).requires_grad_() for _ in "qkv"]
    check(lambda q, k, v: (q @ k.clone().transpose_(-2, -1)).softmax(-1) @ v, square)


def test_products_added_to_a_bias_in_place():
    """The bias is read again, with the scores."""

    def attention(q, k, v, bias):
        scores = bias.clone()
        result = torch.bmm(scores.baddbmm_(q, k.mT).softmax(-1), v)
        return result * scores.mean()

    check(attention, [*tensors(6), torch.randn(6, ROWS, KEYS).to(NARROW)], calls=0)


def test_sources_that_are_written_to_before_the_backward():
    """The backward reads the scaled keys, which the user's write leaves as they are."""

    def attention(q, k, v):
        k = k + 1
        result = (q @ (k * 0.5).mT.contiguous()).softmax(-1) @ v
        k.zero_()
        return result + k.sum()

    check(attention, tensors(), plans=True)


@pytest.mark.parametrize(
    "scale",
    [
        lambda: torch.tensor(2.7, dtype=torch.int64),
        lambda: torch.full((), 2.7, dtype=torch.int64),
        lambda: torch.tensor(2.7, dtype=torch.bool),
    ],
)
def test_numbers_that_tensors_round(scale):
    check(lambda q, k, v: (q @ k.mT * scale()).softmax(-1) @ v, tensors())


def test_a_number_beyond_the_range_of_its_tensor():
    """It is infinite, so rows that are masked everywhere are NaN."""

    def attention(q, k, v, m):
        return attend(q, k, v, lambda scores: torch.where(m, torch.tensor(-1e9, dtype=torch.float16), scores))

    mask = torch.rand(ROWS, KEYS) < 0.5
    mask[2] = True
    inputs = [torch.randn(BATCH, HEADS, *each).half() for each in ((ROWS, 8), (KEYS, 8), (KEYS, 8))]
    check(attention, [*inputs, mask], grads=False)


def test_weights_in_fewer_bits_are_left():
    check(lambda q, k, v: (q @ k.mT).softmax(-1).to(torch.float8_e5m2).to(v.dtype) @ v, tensors(), calls=0, grads=False)


@pytest.mark.parametrize("value", [-math.inf, -1e9])
def test_zeros_as_a_mask_of_scores_that_stay(value):
    def attention(q, k, v):
        kept = torch.zeros(ROWS, KEYS, dtype=torch.bool)
        return attend(q, k, v, lambda scores: torch.where(kept, scores, value))

    check(attention, tensors(), grads=False)


@pytest.mark.parametrize("low", [-1e4, -9999.0])
def test_rows_masked_by_sums_of_numbers(low):
    """Masks of padding and of later tokens add up. A row whose greatest number is low has others that are lower."""
    mask = torch.zeros(BATCH, 1, ROWS, KEYS)
    mask[0, :, 2] = low
    mask[0, :, 2, 3:] = 2 * low
    check(lambda q, k, v, m: attend(q, k, v, lambda scores: scores + m), [*tensors(), mask], plans=True)


def test_a_low_number_that_is_scaled():
    """It is not so low that a learned bias does not tell in rows that are masked everywhere."""

    def attention(q, k, v, bias, m):
        return attend(q, k, v, lambda scores: scores.float().masked_fill(m, -1e9) * 1e-4 + bias)

    mask = torch.rand(ROWS, KEYS) < 0.5
    mask[2] = True
    check(attention, [*tensors(), learned(ROWS, KEYS), mask], calls=0)


LEARNED_WITH_MASKS = {
    "scaled sum": lambda bias, m: (bias + torch.where(m, -math.inf, 0.0)) * 0.5,
    "half of a filled one": lambda bias, m: bias.masked_fill(m, -math.inf) / 2,
    "difference": lambda bias, m: bias - torch.where(m, math.inf, 0.0),
    "another function": lambda bias, m: torch.relu(bias.masked_fill(m, -math.inf)).log() - 1,
}


@pytest.mark.parametrize("name", LEARNED_WITH_MASKS)
def test_masks_inside_of_learned_biases(name):
    """No kernel meets the rows that are masked everywhere."""
    mask = torch.rand(ROWS, KEYS) < 0.5
    mask[2] = True

    def attention(q, k, v, bias, m):
        return attend(q, k, v, lambda scores: scores + LEARNED_WITH_MASKS[name](bias, m))

    bias = (torch.rand(ROWS, KEYS) + 0.5).requires_grad_()
    q, k, v = (each.detach() for each in tensors())
    with as_on_gpus():
        result = torch.compile(attention, backend=reformer)(q, k, v, bias, mask)
    expected = attention(q.double(), k.double(), v.double(), bias.double(), mask)
    torch.testing.assert_close(result.double(), expected, rtol=0.02, atol=0.03, equal_nan=True)
    assert result.isnan().any()


MASKS_IN_FP16 = {
    "sum": lambda scores, m: scores.float() + m + m.clone(),
    "scaled": lambda scores, m: (scores.float() + m) * 2,
}


@pytest.mark.parametrize("name", MASKS_IN_FP16)
def test_masks_in_fp16_of_scores_in_fp32(name):
    """Twice the least number of fp16 is no infinity in fp32, so rows that are masked everywhere are not NaN."""
    mask = torch.zeros(ROWS, KEYS, dtype=torch.float16)
    mask[2] = torch.finfo(torch.float16).min
    inputs = [torch.randn(BATCH, HEADS, *each).half() for each in ((ROWS, 8), (KEYS, 8), (KEYS, 8))]

    def attention(q, k, v, m):
        return attend(q, k, v, lambda scores: MASKS_IN_FP16[name](scores, m))

    check(attention, [*inputs, mask], grads=False)


def added_in_place(q, k, v):
    result = (q @ k.mT).softmax(-1) @ v
    result += q
    return result


def written_through_a_view(q, k, v):
    result = (q @ k.mT).softmax(-1) @ v
    result.view(-1)[:4] = 0
    return result


@pytest.mark.parametrize("function", [added_in_place, written_through_a_view])
def test_results_that_are_written_to(function):
    """The backward of a call reads its result, that of a product does not."""
    check(function, tensors(), plans=True)


def test_results_that_are_written_to_behind_the_graph():
    q, k, v = tensors()
    with as_on_gpus():
        result = torch.compile(attend, backend=reformer)(q, k, v)
    result += 1
    expected = torch.autograd.grad(attend(q, k, v).sum(), (q, k, v))
    for one, other in zip(torch.autograd.grad(result.sum(), (q, k, v)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
