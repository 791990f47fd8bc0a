"""Attention that users write out becomes a call (pre_grad/attention_patterns.py)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from gpu_rules import as_on_gpus
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.pre_grad.attention_masks import simplify_masks
from torch_reformer.compiler.pre_grad.attention_patterns import replace_written_attention

NARROW, HEAD = torch.bfloat16, 8
TOLERANCE = 0.02  # of scores, weights and results in bf16
BATCH, HEADS, ROWS, KEYS = 2, 3, 7, 9


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def calls_of(module: GraphModule) -> list:
    return module.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)


def check(function, inputs, calls: int = 1, grads: bool = True, plans: bool = False) -> GraphModule:
    """Results and gradients of the compiled function, whose graph has so many calls of attention, are as near to those
    in fp64 as rounding allows. Returns Dynamo's graph with the calls.

    Args:
        grads: whether gradients are compared.
        plans: whether the graph is planned; else PyTorch runs it.
    """
    graphs, strides = [], []
    inputs = inputs if grads else [each.detach() for each in inputs]

    def backend(module, args):
        if calls:
            replace_written_attention(module)
        else:
            before = str(module.graph)
            replace_written_attention(module)
            assert str(module.graph) == before
        module.graph.lint()
        graphs.append(module)
        return reformer(module, args) if plans else module.forward

    def results(function, inputs):
        outputs = function(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        needed = [each for each in inputs if each.requires_grad]
        torch.manual_seed(1)
        loss = sum((each.nan_to_num() * torch.randn(each.shape).to(each.dtype)).sum() for each in outputs)
        strides.append([each.stride() for each in outputs])
        return [*outputs, *(torch.autograd.grad(loss, needed, materialize_grads=True) if needed else ())]

    wide = [
        each.detach().double().requires_grad_(each.requires_grad) if each.is_floating_point() else each
        for each in inputs
    ]
    with as_on_gpus():
        found = results(torch.compile(function, backend=backend), inputs)
    for mine, exact in zip(found, results(function, wide), strict=True):
        torch.testing.assert_close(
            mine.double(),
            exact.double(),
            rtol=TOLERANCE,
            atol=TOLERANCE * exact.nan_to_num().abs().max().item(),
            equal_nan=True,
        )
    assert strides[0] == strides[1]
    (graph,) = graphs
    assert len(calls_of(graph)) == calls
    return graph


def tensors(*leading: int, head: int = HEAD, values: int = HEAD) -> list[torch.Tensor]:
    leading = leading or (BATCH, HEADS)
    sizes = (ROWS, head), (KEYS, head), (KEYS, values)
    return [torch.randn(*leading, *each).to(NARROW).requires_grad_() for each in sizes]


FORMS = {
    "matmul": lambda q, k, v: (q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v,
    "scale of queries": lambda q, k, v: torch.matmul(torch.softmax(torch.matmul(q * 0.5, k.mT), -1), v),
    "scales": lambda q, k, v: F.softmax((q * 0.7) @ (k / 2).transpose(2, 3) / 1.5 * torch.tensor(1.3), dim=3) @ v,
    "in place": lambda q, k, v: (q @ k.permute(0, 1, 3, 2)).mul_(0.5).softmax(-1) @ v,
    "casts": lambda q, k, v: F.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v,
    "casts of scores": lambda q, k, v: F.softmax((q @ k.mT).float(), -1).type_as(q) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bhij,bhjd->bhid", torch.einsum("b h i d, b h j d -> b h i j", q, k).softmax(-1), v
    ),
    "einsum, heads inside": lambda q, k, v: torch.einsum(
        "bhij,bjhd->bihd",
        torch.einsum("bihd,bjhd->bhij", q.transpose(1, 2), k.transpose(1, 2)).softmax(-1),
        v.transpose(1, 2),
    ),
    "transposed": lambda q, k, v: v.mT @ (q @ k.mT).softmax(-1).transpose(-2, -1),
    "bmm": lambda q, k, v: torch.bmm(
        torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).softmax(-1), v.flatten(0, 1)
    ),
    "baddbmm": lambda q, k, v: torch.bmm(
        torch.baddbmm(q.new_ones(1, 1, KEYS), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.5, alpha=0.4).softmax(-1),
        v.flatten(0, 1),
    ),
    "one head": lambda q, k, v: (q[0, 0] @ k[0, 0].t()).softmax(-1) @ v[0, 0],
    "dropout of nothing": lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.3, training=False) @ v,
    "windows": lambda q, k, v: ((q[:, :, None] @ k[:, :, None].mT).softmax(-1) @ v[:, :, None])[:, :, 0],
    "copies": lambda q, k, v: ((q + 1) * 0.5 @ (k + 1).transpose(2, 3).contiguous()).softmax(-1) @ v,
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    check(FORMS[form], tensors())


def attend(q, k, v, change=lambda scores: scores):
    return change(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1).to(v.dtype) @ v


def learned(*sizes, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype).requires_grad_()


def low(dtype) -> float:
    return torch.finfo(dtype).min


BIASES = {
    "of heads": (lambda s, b: s + b, lambda: [learned(1, HEADS, ROWS, KEYS)]),
    "of heads, in place": (lambda s, b: s.add_(b), lambda: [learned(HEADS, ROWS, KEYS, dtype=NARROW)]),
    "of keys": (lambda s, b: b + s, lambda: [learned(KEYS)]),
    "two": (lambda s, b, c: (s + b) * 0.5 + c[:, None], lambda: [learned(HEADS, 1, KEYS), learned(BATCH, ROWS, KEYS)]),
    "times a number": (lambda s, b: torch.sub(s, b, alpha=0.5), lambda: [learned(HEADS, ROWS, KEYS)]),
    "from a table": (lambda s, b, i: s + b[:, i], lambda: [learned(HEADS, 20), torch.randint(20, (ROWS, KEYS))]),
    "not learned": (lambda s, b: s + b, lambda: [torch.randn(BATCH, 1, 1, KEYS)]),
    "zeros": (lambda s, b: s + torch.zeros(ROWS, KEYS) + b, lambda: [learned(ROWS, KEYS)]),
    "subtracted": (lambda s, m: s - m.float() * 1e9, lambda: [torch.arange(KEYS) > 5]),
    "small numbers in a mask": (lambda s, m: s + torch.where(m, 0.0, -100.0), lambda: [torch.rand(ROWS, KEYS) < 0.5]),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases(name):
    change, make = BIASES[name]
    check(lambda q, k, v, *more: attend(q, k, v, lambda scores: change(scores, *more)), [*tensors(), *make()])


FILLS = {
    "masked_fill": lambda s, m, value: s.masked_fill(m, value),
    "masked_fill_": lambda s, m, value: s.masked_fill_(m, value),
    "where": lambda s, m, value: torch.where(m, value, s),
    "where, kept": lambda s, m, value: torch.where(~m, s, torch.tensor(value, dtype=s.dtype)),
    "where, a method": lambda s, m, value: s.where(m.logical_not(), value),
    "added": lambda s, m, value: s + torch.where(m, value, torch.zeros((), dtype=s.dtype)),
    "computed": lambda s, m, value: s + torch.zeros(m.shape, dtype=s.dtype).masked_fill(m, value),
    "after a bias": lambda s, m, value: (s + torch.arange(KEYS, dtype=s.dtype) / 9).masked_fill(m, value) * 0.5,
}


@pytest.mark.parametrize("value", [-math.inf, -1e30])
@pytest.mark.parametrize("name", FILLS)
def test_masks(name, value):
    """Rows that are masked everywhere are NaN if scores are -inf there; else all their weights are equal."""
    mask = torch.rand(BATCH, 1, ROWS, KEYS) < 0.5
    mask[0, 0, 2] = True

    def attention(q, k, v, m):
        return attend(q, k, v, lambda scores: FILLS[name](scores, m, value))

    check(
        attention,
        [*tensors(), mask],
        grads=value > -math.inf and name not in ("added", "computed"),
        plans=name == "where",
    )
    check(attention, [*tensors(), mask & (torch.arange(KEYS) > 0)])


def test_rows_masked_by_an_added_number_give_scores_no_gradient():
    def attention(q, k, v, m):
        return attend(q, k, v, lambda scores: scores + m)

    q, k, v = tensors()
    mask = torch.zeros(BATCH, 1, 1, KEYS)
    mask[1] = low(torch.float32)
    with as_on_gpus():
        result = torch.compile(attention, backend=reformer)(q, k, v, mask)
    torch.testing.assert_close(result[1], v[1].mean(-2, keepdim=True).expand_as(result[1]), rtol=0.02, atol=0.02)
    of_queries, of_keys = torch.autograd.grad(result[1].square().sum(), (q, k))
    assert not of_queries.any() and not of_keys.any()


class Windows:
    """Windows as in Swin: a learned bias of heads, and a mask of each image's windows."""

    def __init__(self, windows: int, low: float):
        self.windows = windows
        self.mask = torch.where(torch.rand(windows, ROWS, ROWS) < 0.3, low, 0.0)

    def __call__(self, q, k, v, bias, mask):
        scores = q @ k.transpose(-2, -1) + bias
        scores = scores.view(-1, self.windows, HEADS, ROWS, ROWS) + mask.unsqueeze(1).unsqueeze(0)
        return scores.view(-1, HEADS, ROWS, ROWS).softmax(-1).to(v.dtype) @ v


@pytest.mark.parametrize("low", [-100.0, -math.inf])
def test_windows(low):
    function, (q, _, _) = Windows(4, low), tensors(BATCH * 4, HEADS)
    k, v = (torch.randn(q.shape).to(NARROW).requires_grad_() for _ in "kv")
    function.mask[:, :, 0] = 0
    check(function, [q, k, v, learned(HEADS, ROWS, ROWS), function.mask], plans=low > -math.inf)


def test_batch_and_heads_in_one_dimension():
    """A mask tells how many heads there are."""

    def attention(q, k, v, mask):
        scores = torch.bmm(q, k.transpose(1, 2)).view(BATCH, HEADS, ROWS, KEYS) + mask
        weights = scores.view(BATCH * HEADS, ROWS, KEYS).softmax(-1)
        return torch.bmm(weights, v).view(BATCH, HEADS, ROWS, HEAD)

    mask = torch.zeros(BATCH, 1, 1, KEYS, dtype=NARROW)
    mask[:, :, :, 5:] = -math.inf
    (call,) = calls_of(check(attention, [*tensors(BATCH * HEADS), mask]))
    assert call.kwargs["attn_mask"].meta["example_value"].shape == mask.shape


def test_heads_of_different_sizes():
    def attention(q, k, v, bias):
        return attend(q, k, v, lambda scores: scores + bias)

    check(attention, [*tensors(head=16, values=24), learned(HEADS, ROWS, KEYS)], plans=True)
    check(attend, tensors(head=24, values=8))


def test_biases_and_masks_together():
    def attention(q, k, v, bias, mask):
        return attend(q, k, v, lambda scores: scores + (bias + mask))

    mask = torch.zeros(BATCH, 1, 1, KEYS)
    mask[:, :, :, 4:] = low(torch.float32)
    check(attention, [*tensors(), learned(1, HEADS, ROWS, KEYS), mask], plans=True)


def test_a_mask_that_is_written_to_after_it_was_read():
    """The term is made from the mask before that."""

    def attention(q, k, v, m):
        m = m.clone()
        term = torch.where(m, -math.inf, 0.0)
        m.fill_(True)
        return attend(q, k, v, lambda scores: scores + term)

    check(attention, [*tensors(), torch.rand(ROWS, KEYS) < 0.3])


@pytest.mark.parametrize("is_constant", [True, False])
def test_rows_that_a_subtracted_number_masks(is_constant):
    """The mask's numbers are not low, but the scores are. A learned bias of such rows does not tell either."""

    def attention(q, k, v, bias, m):
        m = torch.ones(ROWS, KEYS, dtype=torch.bool) if is_constant else m
        return attend(q, k, v, lambda scores: scores + bias - m.float() * 1e9)

    q, k, v = tensors()
    with as_on_gpus():
        compiled = torch.compile(attention, backend=reformer)
        result = compiled(q, k, v, learned(ROWS, KEYS), torch.ones(ROWS, KEYS, dtype=torch.bool))
    torch.testing.assert_close(result, v.mean(-2, keepdim=True).expand_as(result), rtol=0.02, atol=0.02)
    assert not torch.autograd.grad(result.square().sum(), q)[0].any()


def test_layers_share_the_bias_that_is_computed():
    def attention(q, k, v, bias, mask):
        for _ in range(2):
            q = attend(q, k, v, lambda scores: (scores + bias).masked_fill(mask, -math.inf))
        return q

    q, k, v = (torch.randn(BATCH, HEADS, ROWS, HEAD).to(NARROW).requires_grad_() for _ in "qkv")
    one, other = calls_of(check(attention, [q, k, v, learned(ROWS, ROWS), torch.ones(ROWS, ROWS).triu(1).bool()], 2))
    assert one.kwargs["attn_mask"] is other.kwargs["attn_mask"]


def test_a_bias_computed_without_gradients_is_not_shared():
    def attention(q, k, v, bias):
        with torch.no_grad():
            first = attend(q, k, v, lambda scores: scores + bias * 2)
        return attend(first, k, v, lambda scores: scores + bias * 2)

    q, k, v = (torch.randn(BATCH, HEADS, ROWS, HEAD).to(NARROW).requires_grad_() for _ in "qkv")
    check(attention, [q, k, v, learned(ROWS, ROWS)], 2)

    def of_one_bias(q, k, v, bias):
        with torch.no_grad():
            first = attend(q, k, v, lambda scores: scores + bias)
        return attend(first, k, v, lambda scores: scores + bias)

    torch._dynamo.reset()
    check(of_one_bias, [q, k, v, learned(ROWS, ROWS)], 2)


def test_a_causal_mask_that_depends_on_no_input():
    def attention(q, k, v):
        rows = torch.arange(ROWS)
        return attend(q, k, v, lambda scores: scores.masked_fill(rows[None, :] > rows[:, None], -math.inf))

    graph = check(attention, [torch.randn(BATCH, HEADS, ROWS, HEAD).to(NARROW).requires_grad_() for _ in "qkv"])
    simplify_masks(graph)
    assert [call.kwargs["is_causal"] for call in calls_of(graph)] == [True]


def test_autocast():
    def attention(q, k, v, bias):
        with torch.autocast("cpu", NARROW):
            weights = (q * 0.5 @ k.transpose(-2, -1) + bias).softmax(-1)
            return weights @ v

    check(attention, [*(each.detach().float().requires_grad_() for each in tensors()), learned(HEADS, ROWS, KEYS)])


@pytest.mark.parametrize("share, is_zero", [(0.0, False), (0.5, False), (1.0, True)])
def test_dropout(share, is_zero):
    def attention(q, k, v):
        return F.dropout((q @ k.mT).softmax(-1), share, True) @ v

    inputs, graphs = tensors(), []

    def backend(module, args):
        replace_written_attention(module)
        graphs.append(module)
        return reformer(module, args)

    with as_on_gpus():
        result = torch.compile(attention, backend=backend)(*inputs)
    (call,) = calls_of(*graphs)
    assert call.kwargs["dropout_p"] == share
    grads = torch.autograd.grad(result.square().sum(), inputs)
    assert all((each == 0).all() == is_zero for each in (result, *grads))


def returned(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def read_again(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v * scores.mean()


def written(q, k, v):
    k = k + 1
    scores = q @ k.mT
    k.zero_()
    return scores.softmax(-1) @ v


def mask_is_written(q, k, v):
    mask = torch.zeros(ROWS, KEYS, dtype=torch.bool)
    scores = (q @ k.mT).masked_fill(mask, -math.inf)
    mask.fill_(True)
    return scores.softmax(-1) @ v


def bias_is_written(q, k, v):
    bias = torch.ones(ROWS, KEYS).expand(BATCH, HEADS, ROWS, KEYS).clone().to(v.dtype)
    return bias.add_(q @ k.mT).softmax(-1) @ v * bias.mean()


def low_scores_and_a_bias(q, k, v):
    bias = q[:, :1, :, :1] * k[:, :1, :, 0, None].mT
    return ((q @ k.mT).masked_fill(k[0, 0, :, 0] > 0, -1e4).float() + bias).softmax(-1).to(v.dtype) @ v


def number_is_written(q, k, v):
    number = torch.tensor(0.5)
    number.fill_(2.0)
    return (q @ k.mT * number).softmax(-1) @ v


def without_grad(q, k, v):
    with torch.no_grad():
        weights = (q @ k.mT).softmax(-1)
    return weights @ v


def talking_heads(q, k, v):
    scores = (q @ k.mT).permute(0, 2, 3, 1) @ v.new_ones(HEADS, HEADS)
    return scores.permute(0, 3, 1, 2).softmax(-1) @ v


def two_softmaxes(q, k, v):
    return (q @ k.mT).softmax(-1).softmax(-1) @ v


REFUSED = {
    "weights are a result": returned,
    "scores are read again": read_again,
    "keys are written to": written,
    "a mask is written to": mask_is_written,
    "weights without gradients": without_grad,
    "talking heads": talking_heads,
    "another activation": lambda q, k, v: (q @ k.mT).sigmoid() @ v,
    "softmax of rows": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "log softmax": lambda q, k, v: (q @ k.mT).log_softmax(-1) @ v,
    "dropout of scores": lambda q, k, v: F.dropout(q @ k.mT, 0.0).softmax(-1) @ v,
    "negative scale": lambda q, k, v: (q @ k.mT * -0.5).softmax(-1) @ v,
    "scale is a tensor": lambda q, k, v: (q @ k.mT * v.mean()).softmax(-1) @ v,
    "fp32": lambda q, k, v: (q.float() @ k.float().mT).softmax(-1) @ v.float(),
    "scores in fp32": lambda q, k, v: (q.float() @ k.float().mT).softmax(-1).to(v.dtype) @ v,
    "a small number in place of scores": lambda q, k, v: (
        (q @ k.mT).masked_fill(k[0, 0, :, 0] > 0, -5.0).softmax(-1) @ v
    ),
    "repeated keys": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
    "scores are the values, too": lambda q, k, v: (lambda w: w @ w.mT)((q @ k.mT).softmax(-1)),
    "scores are added to a bias": bias_is_written,
    "low scores and a bias": low_scores_and_a_bias,
    "a number is written to": number_is_written,
    "weights are scaled": lambda q, k, v: ((q @ k.mT).softmax(-1) * 0.5) @ v,
    "large heads": lambda q, k, v: (q.mT @ q).softmax(-1) @ q.repeat(1, 1, 40, 40)[:, :, :8],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    check(REFUSED[name], tensors(), calls=0, grads=False)


def test_refused_where_the_user_chooses_kernels():
    with sdpa_kernel(SDPBackend.MATH):
        check(attend, tensors(), calls=0)
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)
    try:
        check(attend, tensors(), calls=0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_refused_without_times():
    module = torch.fx.symbolic_trace(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    replace_written_attention(module)  # nodes without fake tensors
    assert not calls_of(module)
