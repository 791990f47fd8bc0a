"""Operands of attention (pre_grad/attention_operands.py), and copies of its result (joint_graph/copy_sources.py)."""

import copy

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel
from training_models import step

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.pre_grad.attention_operands import simplify_operands

BATCH, HEADS, WINDOWS, ROWS, COLUMNS = SIZES = 2, 3, 5, 4, 8
NARROW = torch.bfloat16


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def changed(function, *inputs) -> tuple[list[tuple[int, ...]], list[str]]:
    """Sizes of the queries, and the copies, in the graph with simplified operands, whose results are compared."""
    shapes, copies = [], []

    def backend(module: GraphModule, _):
        simplify_operands(module)
        module.graph.lint()
        copies.extend(node.name for node in module.graph.find_nodes(op="call_method", target="contiguous"))

        def run(*inputs):
            class Interpreter(torch.fx.Interpreter):
                def call_function(self, target, args, kwargs):
                    if target is F.scaled_dot_product_attention:
                        shapes.append(tuple((args or [kwargs["query"]])[0].shape))
                    return super().call_function(target, args, kwargs)

            return Interpreter(module).run(*inputs)

        return run

    expected = function(*inputs)
    result = torch.compile(function, backend=backend, dynamic=False)(*inputs)
    assert torch.equal(result, expected)
    assert result.squeeze().stride() == expected.squeeze().stride()
    return shapes, copies


def exact(sizes: tuple[int, ...], rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries of one direction each, keys of different ones, and small integers as values. A query gives all weight to
    one key or the same to all four, so that attention has no rounding errors."""
    *leading, columns = sizes
    directions = 64 * torch.eye(columns, dtype=NARROW)
    q = directions[torch.randint(columns, (*leading, rows))]
    k = directions[torch.rand(*leading, columns).argsort(-1)[..., :ROWS]]
    return q, k, torch.randint(-8, 9, k.shape).to(NARROW)


def packed(rows_inside: bool, windows: int, heads: int) -> torch.Tensor:
    """Queries, keys and values [3, batch, heads, windows, rows, columns] as one matrix product gives them."""
    qkv = torch.stack(exact((BATCH, heads, windows, COLUMNS)))  # [3, batch, heads, windows, rows, columns]
    order = (1, 3, 4, 0, 2, 5) if rows_inside else (1, 4, 3, 0, 2, 5)
    return qkv.permute(order).contiguous().permute(sorted(range(6), key=order.__getitem__))


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("windows", [1, WINDOWS])
@pytest.mark.parametrize("rows_inside", [True, False])
def test_windows(rows_inside, windows, heads):
    """Operands of five dimensions: those that are within rows of memory become heads."""
    qkv = packed(rows_inside, windows, heads)
    shapes, _ = changed(lambda qkv: F.scaled_dot_product_attention(*qkv.unbind(0)), qkv)
    inside = (1 if rows_inside else windows) * heads
    if inside == 1:
        inside = windows if windows > 1 else BATCH  # the innermost dimension
    assert shapes == [(BATCH * heads * windows // inside, inside, ROWS, COLUMNS)]


def test_three_and_six_dimensions():
    for sizes in ((6, COLUMNS), (2, 3, 1, 2, COLUMNS)):
        _, k, v = exact(sizes)
        shapes, _ = changed(lambda k, v: F.scaled_dot_product_attention(k, k, v, is_causal=True), k, v)
        assert [len(shape) for shape in shapes] == [4]


def test_queries_of_more_rows_and_a_scale():
    shapes, _ = changed(lambda *qkv: F.scaled_dot_product_attention(*qkv, scale=0.5), *exact((2, 3, 5, COLUMNS), 7))
    assert shapes == [(6, 5, 7, COLUMNS)]


OTHERS = {
    "fp32": lambda q: F.scaled_dot_product_attention(q.float(), q.float(), q.float()),
    "a mask": lambda q: F.scaled_dot_product_attention(q, q, q, torch.zeros(ROWS, ROWS, dtype=q.dtype)),
    "keys of other heads": lambda q: F.scaled_dot_product_attention(q, q[:1], q[:, :1]),
    "a matrix": lambda q: F.scaled_dot_product_attention(*q[0, 0, :3].unbind(0)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_attention_that_stays(name):
    shapes, _ = changed(OTHERS[name], torch.randn(SIZES).to(NARROW))
    assert shapes == [SIZES if name != "a matrix" else (ROWS, COLUMNS)]


def test_too_many_batch_elements():
    """A dimension of a launch has at most 65535 blocks."""
    shapes, _ = changed(lambda q: F.scaled_dot_product_attention(q, q, q), torch.zeros(1 << 16, 1, 8, dtype=NARROW))
    assert shapes == [(1 << 16, 1, 8)]


def of_copies(qkv):
    """Attention of contiguous copies; its result is contiguous."""
    q, k, v = (each.contiguous() for each in (qkv * 2).transpose(2, 3).unbind(0))
    return F.scaled_dot_product_attention(q, k, v)


def written(qkv):
    qkv = (qkv * 2).transpose(2, 3)
    copy = qkv[0].contiguous()
    qkv.mul_(3)
    return F.scaled_dot_product_attention(copy, qkv[1], qkv[2])


def read_twice(qkv):
    q, k, v = (qkv * 2).transpose(2, 3).unbind(0)
    q = q.contiguous()
    return F.scaled_dot_product_attention(q, k, v) + q


def of_an_input(qkv):
    q, k, v = qkv.transpose(2, 3).unbind(0)
    return F.scaled_dot_product_attention(q.contiguous(), k, v)


def of_a_result(qkv):
    q, k, v = (qkv * 2).transpose(2, 3).unbind(0)
    return F.scaled_dot_product_attention(q.contiguous(), k, v) + 0 * q.contiguous().sum()


def not_aligned(qkv):
    q, k, v = F.pad(qkv, (0, 1))[..., 1:].transpose(2, 3).unbind(0)
    return F.scaled_dot_product_attention(q.contiguous(), k, v)


def transposed(qkv):
    q, k, v = (qkv * 2).transpose(3, 4).unbind(0)
    return F.scaled_dot_product_attention(q.contiguous(), k, v)


COPIES = {
    of_copies: 1,  # of the result
    written: 1,
    read_twice: 1,
    of_an_input: 1,
    not_aligned: 1,
    transposed: 1,
}


@pytest.mark.parametrize("function", COPIES)
def test_copies(function):
    with sdpa_kernel(SDPBackend.MATH):
        _, copies = changed(function, torch.randn(3, 2, 5, 4, 8).to(NARROW))
    assert len(copies) == COPIES[function]
    assert ("contiguous_3" in copies) == (function is of_copies), copies


class Windows(nn.Module):
    """A block of a Hiera: attention within windows, of whose rows the windows are apart."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        qkv = self.qkv(x).reshape(BATCH, ROWS, WINDOWS, 3, 2, COLUMNS).permute(3, 0, 4, 2, 1, 5)
        x = F.scaled_dot_product_attention(*qkv.unbind(0))
        return self.out(x.transpose(1, 3).reshape(BATCH, ROWS * WINDOWS, 16)).square().mean()


@needs_aten
def test_training():
    """Errors are hardly larger than eager's, whose attention of five dimensions keeps its weights in fp32."""
    torch.manual_seed(0)
    model, x = Windows(), torch.randn(BATCH, ROWS * WINDOWS, 16)
    double, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    expected = step(double, double, [x.double()])
    with torch.autocast("cpu", dtype=NARROW):
        results = [step(torch.compile(model, backend=reformer), model, [x]), step(eager, eager, [x])]
    errors = [sum((a - b).square().sum() for a, b in zip(each, expected, strict=True)).sqrt() for each in results]
    assert 0 < errors[0] < 1.5 * errors[1]
