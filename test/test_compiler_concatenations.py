"""Concatenations within rows, which are fused with the operations that read them."""

import pytest
import torch
from against_eager import without_dynamo
from marks import needs_aten
from torch.nn import functional as F

pytestmark = needs_aten


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def interleaved(x, cosine, sine):
    first, second = (x * cosine)[..., 0::2], (x * sine)[..., 1::2]
    return torch.cat([first, second.exp()], -1).tanh()


def swapped(x, cosine, sine):
    return torch.cat(x.chunk(4, -1)[::-1], -1) * cosine - sine


def of_others(x, cosine, sine):
    return torch.cat([x.sigmoid(), cosine.expand_as(x), x * sine], -1)


def of_five(x, cosine, sine):
    return torch.cat([x, x + 1, x * 2, x * sine, x * cosine], -1).sin()


def unequal(x, cosine, sine):
    return torch.cat([x[..., :8] * 2, x[..., 8:]], -1) * sine


def in_a_middle_dimension(x, cosine, sine):
    return torch.cat([x * sine, x + cosine], 1) * 2


def twice(x, cosine, sine):
    transposed = rotated(x, cosine, sine)
    return rotated(transposed, sine, cosine) + transposed


def narrow(x, cosine, sine):
    return torch.cat([x.sum(-1, keepdim=True), x.amax(-1, keepdim=True)], -1) * 3


def padded(x, cosine, sine):
    return torch.cat([F.pad(x[..., 1:], (0, 1)), x], -1) * 2


def of_one(x, cosine, sine):
    return torch.cat([torch.cat([x * 2], 1) + sine], -1)


def centred(x, cosine, sine):
    """The means have dimensions of one element, which are repeated."""
    return torch.cat([x - x.mean(-1, keepdim=True), x * x.mean((1, 3), keepdim=True)], -1).sin()


def reshaped(x, cosine, sine):
    rows = cosine.view(1, -1) * 2
    return torch.cat([rows.view(40, 32), sine * 2], -1) + x.mean((0, 1)).repeat(1, 2)


FUNCTIONS = [rotated, interleaved, swapped, of_others, of_five, unequal, in_a_middle_dimension, twice, narrow, padded]
FUNCTIONS += [of_one, centred, reshaped]


def given(dtype):
    torch.manual_seed(0)
    return [torch.randn(*sizes, dtype=dtype, requires_grad=True) for sizes in ((2, 3, 40, 32), (40, 32), (40, 32))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_pytorch(function, dtype):
    torch._dynamo.reset()
    tensors = given(dtype)
    wide = [each.detach().double().requires_grad_() for each in tensors]
    exact, eager = function(*wide), function(*tensors)
    found = torch.compile(function, backend="reformer", fullgraph=True)(*tensors)
    assert found.dtype == eager.dtype and found.stride() == eager.stride()
    weights = torch.randn_like(exact)
    results = [
        [out, *torch.autograd.grad((out * weights.to(out.dtype)).sum(), of, allow_unused=True)]
        for out, of in ((exact, wide), (eager, tensors), (found, tensors))
    ]
    for expected, theirs, ours in zip(*results, strict=True):
        if expected is None:
            assert ours is None
            continue
        error, allowed = ((each.double() - expected).norm() for each in (ours, theirs))
        assert error <= 1.5 * allowed + 1e-14 * expected.norm()


@pytest.mark.parametrize("function", [rotated, of_one])
def test_one_kernel(function):
    torch._dynamo.reset()
    reports = []
    run = torch.compile(function, backend="reformer", options={"report": reports.append})
    x, cosine, sine = given(torch.float32)
    run(x, cosine.detach(), sine.detach()).sum().backward()
    for report in reports:
        kinds = [line.kind for line in report.lines]
        assert kinds == ["stitch"]  # which needs no indices of columns in memory


@pytest.mark.parametrize("first", [0, 3])
def test_numbers_that_somebody_reads(first):
    """Indices of channels need no memory; other uses of them do."""

    def function(x):
        numbers = torch.arange(first, first + 48, dtype=x.dtype)
        return x * numbers, numbers, (numbers * 2).sum() + x[:, 0] @ x[:, 1]

    torch._dynamo.reset()
    x = torch.randn(200, 48)
    for ours, theirs in zip(torch.compile(function, backend="reformer")(x), function(x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_changed_afterwards():
    """The operands of the parts are read before they change."""

    def function(x):
        first, second = x.chunk(2, -1)
        found = torch.cat([-second, first], -1) * 2
        x.mul_(3)
        return found

    torch._dynamo.reset()
    x = torch.randn(64, 32)
    expected, theirs = function(x.clone()), x * 3
    assert torch.equal(torch.compile(function, backend="reformer")(x), expected)
    torch.testing.assert_close(x, theirs)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0), (0, 4, 8)], ids=str)
def test_parts_without_elements(sizes, dim):
    def function(*tensors):
        return torch.cat([(tensor * 2).sin() for tensor in tensors], dim) + 1, tensors[0].exp()

    torch._dynamo.reset()
    tensors = [torch.randn((size, 5) if dim == 0 else (5, size), requires_grad=True) for size in sizes]
    found, expected = torch.compile(function, backend="reformer")(*tensors), function(*tensors)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(sum(map(torch.sum, each)), tensors) for each in (found, expected)]
    torch.testing.assert_close(*grads)


def test_part_of_nothing():
    """A part of one dimension and no elements, as a cache of keys begins."""

    def function(x):
        return torch.cat([x.new_empty(0), x.exp(), x.sum((0, 1), keepdim=True).expand(2, 3, 4)], -1) * 2

    torch._dynamo.reset()
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(torch.compile(function, backend="reformer")(x), function(x))
    assert torch.equal(torch.compile(lambda x: torch.cat([x.new_empty(0), x.exp()], 2), backend="reformer")(x), x.exp())


ALIKE = {
    "a function": lambda x, y: torch.cat([F.silu(part) for part in x.chunk(4, -1)], -1),
    "of slices and others": lambda x, y: torch.cat([part * y for part in x.chunk(4, -1)], -1),
    "of slices of two": lambda x, y: torch.cat(
        [(a * b.sin()).tanh() * b for a, b in zip(x.chunk(4, -1), (x * 2).chunk(4, -1), strict=True)], -1
    ),
    "of a slice of one": lambda x, y: torch.cat([(part + x[:, :1, :8]).tanh() for part in x.chunk(4, -1)], -1),
    "some slices": lambda x, y: torch.cat([x[..., i : i + 8].exp() * 2 for i in (0, 8, 24)], -1),
    "at equal distances": lambda x, y: torch.cat([x[..., i : i + 8].exp() * 2 for i in (2, 12, 22)], -1),
    "in another order": lambda x, y: torch.cat([part.exp() for part in x.chunk(4, -1)[::-1]], -1),
    "one slice": lambda x, y: torch.cat([x[..., :8].exp(), x[..., :8].exp()], -1),
    "other constants": lambda x, y: torch.cat([part * i for i, part in enumerate(x.chunk(4, -1))], -1),
    "other functions": lambda x, y: torch.cat([x[..., :16].sin(), x[..., 16:].cos()], -1),
    "rounded": lambda x, y: torch.cat([part.bfloat16().float() * 3 for part in x.chunk(4, -1)], -1),
    "needed elsewhere": lambda x, y: torch.stack(
        [torch.cat(p := [c.exp() for c in x.chunk(4, -1)], -1), p[1].repeat(1, 1, 4)]
    ),
    "only slices": lambda x, y: torch.cat(x.chunk(4, -1), -1),
    "other rows": lambda x, y: torch.cat([part.exp() for part in x.chunk(3, 1)], -1),
}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_parts_that_are_computed_alike(name, dtype):
    x, y = (torch.randn(*sizes).to(dtype).requires_grad_() for sizes in ((2, 3, 32), (2, 3, 8)))
    with torch.no_grad():
        x[0, 0, 3], x[1, 2, 17] = torch.nan, torch.inf
    torch._dynamo.reset()
    results = []
    for function in (torch.compile(ALIKE[name], backend="reformer"), ALIKE[name]):
        result = function(x, y)
        gradients = torch.autograd.grad(result.sum(), (x, y), allow_unused=True)
        results.append([result.detach(), *(each for each in gradients if each is not None)])
    for one, other in zip(*results, strict=True):
        tolerance = {} if dtype == torch.float64 else {"rtol": 0.02, "atol": 0.02}
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)
        assert one.stride() == other.stride()


def test_slices_are_computed_at_once():
    """One kernel reads the tensor as it lies."""
    torch._dynamo.reset()
    reports, x = [], torch.randn(64, 208)
    compiled = torch.compile(ALIKE["a function"], backend="reformer", options={"report": reports.append})
    torch.testing.assert_close(compiled(x, None), F.silu(x))
    (line,) = reports[0].lines
    assert line.kind == "stitch" and line.read == line.written == x.nbytes


def flat(x, weight, first):
    """Gradients in a bucket: a product's, and others, of which another product reads one."""
    part, product, rows = x[:, :3].flatten() * 2, (x @ weight).flatten() * 0.5, x.sum(0) * 0.5
    return torch.cat([first * 2, part, product, rows, part.sin()]), part.view(32, 3) @ weight[:3], rows


@pytest.mark.parametrize("elements", [8, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_write_parts_of_one_dimension(dtype, elements):
    """But none that begin between the vectors that GPUs' kernels write."""
    x, weight, first = torch.randn(32, 64, dtype=dtype), torch.randn(64, 64, dtype=dtype), torch.randn(9, dtype=dtype)
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    reports, tolerance = [], 1e-5 if dtype == torch.float32 else 2e-2
    run = torch.compile(flat, backend="reformer", options={"report": reports.append})
    args = x, weight, first[:elements]
    torch.testing.assert_close(run(*args), flat(*args), rtol=tolerance, atol=tolerance, equal_nan=True)
    assert ("aten::cat" in {line.kind for line in reports[-1].lines}) == (elements == 9)


def beside_products(x, weights, wide, factor):
    """A program computes one part; products give the others, of which two have equal sizes."""
    return torch.cat([x * factor, *(x @ weight for weight in weights), x @ wide], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kernel_copies_parts_of_equal_sizes(dtype):
    x, wide, factor = (torch.randn(*sizes, dtype=dtype) for sizes in ((2048, 1024), (1024, 64), (1024,)))
    weights = [torch.randn(1024, 32, dtype=dtype) for _ in range(2)]
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    reports = []
    run = torch.compile(beside_products, backend="reformer", options={"report": reports.append})
    found, expected = (function(x, weights, wide, factor) for function in (run, beside_products))
    torch.testing.assert_close(found, expected, equal_nan=True)
    kinds = [line.kind for line in reports[-1].lines]
    assert kinds.count("stitch") == 3 and "aten::cat" not in kinds


CHOSEN = {
    "silu": (lambda x, y: torch.cat([F.silu(x), y], -1), True),
    "quotient": (lambda x, y: torch.cat([x / y, -x], -1), True),
    "gelu": (lambda x, y: torch.cat([F.gelu(x), F.gelu(y)], -1), False),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_slow_parts_are_not_chosen(name):
    """A kernel computes slow parts once and writes them; others are chosen by the column where they are read."""
    function, is_chosen = CHOSEN[name]
    x, y, factor, reports = torch.randn(64, 256, 96), torch.randn(64, 256, 96) + 3, torch.randn(192), []
    run = torch.compile(lambda x, y: function(x, y) * factor, backend="reformer", options={"report": reports.append})
    torch.testing.assert_close(run(x, y), function(x, y) * factor, rtol=1e-5, atol=1e-5)
    assert [line.kind for line in reports[-1].lines].count("stitch") == (1 if is_chosen else 2)


def test_slow_operations_of_rows():
    """Numbers of rows are computed again by what reads them; sines of a table that all batch elements read are not."""
    x, scale, table = torch.randn(64, 128, 96, requires_grad=True), torch.randn(96), torch.randn(128, 96)
    reports = []

    def of_rows(x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).pow(-0.5) * scale

    def of_a_table(x):
        return x * table.cos() + x.square() * table.sin()

    for function, kernels in ((of_rows, 1), (of_a_table, 2)):
        run = torch.compile(function, backend="reformer", options={"report": reports.append})
        found, expected = (torch.autograd.grad(each(x).sin().sum(), x) for each in (run, function))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert len(reports[-1].lines) == kernels


@pytest.mark.parametrize(
    "parts",
    [
        (torch.randn(5), torch.arange(4)),  # which no program computes with
        (torch.randn(5), torch.randn(4, dtype=torch.float16), torch.tensor([True, False])),
        (torch.tensor([True, False] * 4)[::2], torch.tensor([False])),  # which none reads
    ],
    ids=lambda parts: ", ".join(str(part.dtype) for part in parts),
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_cast_concatenations_of_arguments(parts, dtype):
    def function(*parts):
        return torch.cat(parts).to(dtype) * 1

    assert torch.equal(without_dynamo(function, lambda report: None)(*parts), function(*parts))
