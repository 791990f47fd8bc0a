"""Matrix products of which only the transpose is read."""

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.ir.graph import Call
from torch_reformer.compiler.passes import transpose_products as transposes

pytestmark = needs_aten
_transposed = transposes.__globals__["_transposed"]
Layout = transposes.__globals__["Layout"]
FUNCTIONS = {
    "scaled": lambda a, b: (a @ b).mT.contiguous() * 2,
    "copied": lambda a, b: (a @ b).mT.contiguous(),
    "scaled in place": lambda a, b: (a @ b).mT * 2,
    "concatenated": lambda a, b: torch.cat([a.mT.exp(), (a @ b).mT[:, :5, :6].exp()], 2),
    "heads": lambda a, b: (a @ b).view(2, 6, 2, 4).permute(0, 2, 3, 1).contiguous().exp(),
    "expanded": lambda a, b: (a @ b).mT[:, None].expand(2, 3, 8, 6) * torch.ones(3, 8, 6, dtype=a.dtype),
    "squares": lambda a, b: (lambda product: product.mT * product.mT.exp())(a @ b),
    "both ways": lambda a, b: (lambda product: (product.mT.contiguous() * 2, product * 3))(a @ b),
    "transpose of a part": lambda a, b: (a @ b)[:, 1:].mT * 2,
    "itself": lambda a, b: (lambda product: (product.mT * 2, product))(a @ b),
    "matrix": lambda a, b: (a[0] @ b[0]).t() + 1,
    "outer": lambda a, b: (a[:, :, :1] @ b[:, :1]).mT * 2,
    "of itself": lambda a, b: ((a @ b).mT * 2) @ a,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, dtype):
    """Results, their strides, and gradients."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 6, 5, generator=generator), torch.randn(2, 5, 8, generator=generator)
    given = [each.to(dtype).requires_grad_() for each in (a, b)]

    def run(function, tensors):
        results = function(*tensors)
        results = results if isinstance(results, (list, tuple)) else (results,)
        grads = torch.autograd.grad(results, tensors, [torch.ones_like(each) for each in results])
        return [*results, *grads], [each.stride() for each in results]

    found, strides = run(without_dynamo(FUNCTIONS[name], lambda report: None), given)
    expected, expected_strides = run(FUNCTIONS[name], given)
    assert strides == expected_strides
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **({"rtol": 3e-2, "atol": 6e-2} if dtype == torch.bfloat16 else {}))


@pytest.mark.parametrize(
    ("sizes", "strides", "offset", "expected"),
    [
        ((2, 8, 6), (48, 1, 8), 0, (48, 6, 1)),
        ((2, 2, 4, 6), (48, 4, 1, 8), 48, (48, 24, 6, 1)),
        ((8, 3, 2), (1, 16, 8), 0, (6, 2, 1)),
        ((4, 6), (0, 8), 0, (0, 1)),
        ((8, 5), (1, 8), 8, None),  # without the first row
        ((48,), (1,), 0, None),  # rows and columns
        ((2, 8), (4, 1), 0, None),  # overlapping columns, beyond the row
    ],
)
def test_layouts(sizes, strides, offset, expected):
    """Views of a product of 6 rows and 8 columns."""
    found = _transposed(Layout(sizes, strides, offset), Layout.row_major((2, 6, 8)))
    assert found == (expected and Layout(sizes, expected, offset))


@pytest.mark.parametrize(
    ("name", "is_swapped"), [("scaled", True), ("heads", True), ("both ways", False), ("scaled in place", False)]
)
def test_operands(name, is_swapped, monkeypatch):
    seen = []

    def noted(graph):
        transposes(graph)
        seen.extend(call for call in graph.operations if isinstance(call, Call) and "bmm" in call.text())

    changed = tuple(noted if each is transposes else each for each in pipeline.PASSES)
    monkeypatch.setattr(pipeline, "PASSES", changed)
    reports: list = []
    without_dynamo(FUNCTIONS[name], reports.append)(torch.randn(2, 6, 5), torch.randn(2, 5, 8))
    copies = [line for line in reports[0].lines if line.kind == "reformer::_contiguous"]
    assert len(copies) == (name == "both ways")
    assert [call.results[0].layout.sizes for call in seen] == [(2, 8, 6) if is_swapped else (2, 6, 8)]


def test_product_without_elements():
    def function(x, y):
        return torch.cat([x, x[:, 1:] @ y], 1) * 2

    x, y = torch.randn(3, 1, 1), torch.randn(1, 1)
    assert torch.equal(without_dynamo(function, lambda report: None)(x, y), function(x, y))
