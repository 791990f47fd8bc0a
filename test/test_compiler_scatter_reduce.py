"""Additions to rows by their indices, as sums of segments, in compiled graphs."""

import pytest
import torch
from marks import needs_aten
from torch._functorch import config as functorch_config

from torch_reformer.compiler.decompositions import scatter_reduce

reformer = torch.ops.reformer
MANY = 1 << 14
TYPES = [torch.float32, torch.bfloat16, torch.float16]


class On(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = torch.device("cuda")


def supports(into, numbers, source, on_gpu=True, **types):
    dtype = types.get("dtype", torch.float32)
    made = torch.empty(into, dtype=dtype), torch.empty(numbers, dtype=types.get("ids", torch.int64))
    made = (*made, torch.empty(source, dtype=types.get("of_source", dtype)))
    return scatter_reduce.supports(*(each.as_subclass(On) if on_gpu else each for each in made))


def test_what_is_summed_by_segments():
    assert supports((9, 4), (MANY,), (MANY, 4)) and supports((9, 4, 3), (MANY,), (MANY, 4, 3), dtype=torch.bfloat16)
    assert supports((9, 4), (MANY,), (MANY, 4), ids=torch.int32)
    assert supports((9, 4), (MANY,), (MANY, 4), on_gpu=False, dtype=torch.float64)
    assert supports((9, 4), (3, 5), (3, 5, 4))
    assert not supports((9, 4), (MANY,), (MANY, 4), dtype=torch.float64)
    assert not supports((9, 4), (MANY,), (MANY, 4), of_source=torch.bfloat16)
    assert not supports((9, 4), (MANY,), (MANY, 4), ids=torch.bool)
    assert not supports((9, 0), (MANY,), (MANY, 0))
    on_gpu, indices = torch.empty(9, 4).as_subclass(On), torch.zeros(9, dtype=torch.int64)
    assert not scatter_reduce.supports(on_gpu, indices, on_gpu)
    assert not supports((0, 4), (MANY,), (MANY, 4))


def is_scanned(into, numbers, device="cuda"):
    into, source = torch.empty(into), torch.empty(numbers, *into[1:])
    made = [each.as_subclass(On) if device == "cuda" else each for each in (into, torch.empty(numbers), source)]
    return scatter_reduce._is_scanned(*made)


def test_what_is_summed_without_sorting():
    assert is_scanned((256, 128), 3) and is_scanned((256, 128), 1 << 20) and is_scanned((169, 3, 4), MANY)
    assert is_scanned((1024, 32), MANY) and not is_scanned((1025, 2), MANY) and is_scanned((1025, 2), MANY - 1)
    assert is_scanned((32, 1 << 11), 9) and not is_scanned((32, 1 << 11), MANY)
    assert is_scanned((16000, 64), 1000) and not is_scanned((16001, 64), 1000)
    assert not is_scanned((9, 4), 100, "cpu")


@pytest.mark.parametrize("shape", [(9, 4), (9, 1), (9, 1, 3)], ids=str)
def test_numbers_of_rows(shape):
    """An index per element is one per row if a row has one element, whatever the strides of the index."""
    numbers = torch.arange(9)
    expanded = numbers.view(9, *(1 for _ in shape[1:])).expand(shape)
    assert scatter_reduce._of_rows(expanded, 0, expanded).equal(numbers)
    each = expanded.contiguous()
    of_each = scatter_reduce._of_rows(each, 0, each)
    assert of_each.equal(numbers) if each[0].numel() == 1 else of_each is None


def edges(nodes, count, device="cpu"):
    """Source and target nodes of edges: some sources are negative, one node has many edges, some have none."""
    source = torch.randint(-nodes, nodes, (count,), device=device)
    target = torch.where(torch.rand(count, device=device) < 0.3, 5, source.flip(0) % nodes)
    return source, torch.where(target % 7 == 3, 8, target)


def by_index_add(x, base, source, target, weight):
    return torch.index_add(base * 1, 0, target, x[source] * weight[:, None])


def by_scatter_add(x, base, source, target, weight):
    """As PyTorch Geometric does it."""
    messages = weight.view(-1, 1) * x.index_select(0, source % len(x))
    return base.scatter_add(0, target.view(-1, 1).expand_as(messages), messages)


def without_weight(x, base, source, target, weight):
    return torch.index_add(base, 0, target, x[source]) * weight[7]


def by_a_program(x, base, source, target, weight):
    """Messages that are no product of a gather and a factor, so that they are written to memory."""
    messages = (x[source] + base[target]).relu() * weight[:, None]
    return torch.index_add(base, 0, target, messages)


SUMS = [by_index_add, by_scatter_add, without_weight, by_a_program]


def check(function, dtype, columns, device, rows=1000, entries=40000):
    """Check that results and gradients are as near to exact ones as their data type allows, and reproducible."""
    torch.manual_seed(0)
    torch._dynamo.reset()

    def integers(*size):
        return torch.randint(-4, 5, size, device=device).to(dtype).requires_grad_()

    x, base, weight = integers(rows, columns), integers(rows, columns), integers(entries)
    source, target = edges(rows, entries, device)
    compiled = torch.compile(function, backend="reformer")
    found, again = (compiled(x, base, source, target, weight) for _ in range(2))
    assert torch.equal(found, again)
    exact = [each.detach().double().requires_grad_() for each in (x, base, weight)]
    expected = function(exact[0], exact[1], source, target, exact[2])
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0}
    torch.testing.assert_close(found.double(), expected, **tolerance)
    grad = torch.randint(-2, 3, found.shape, device=device).to(dtype)
    gradients = torch.autograd.grad(found, (x, base, weight), grad)
    for one, other in zip(gradients, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        torch.testing.assert_close(one.double(), other, **tolerance)


@needs_aten
@pytest.mark.parametrize("function", SUMS)
@pytest.mark.parametrize("columns, dtype", [(64, torch.float32), (7, torch.bfloat16), (1, torch.float16)], ids=str)
def test_against_exact_sums(function, columns, dtype):
    check(function, dtype, columns, "cpu", rows=300, entries=MANY)


@pytest.mark.gpu
@pytest.mark.parametrize("function", SUMS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 64, 300])
def test_on_a_gpu(function, dtype, columns):
    check(function, dtype, columns, "cuda")


@needs_aten
@pytest.mark.parametrize("function", SUMS)
def test_gradients_and_their_gradients(function, monkeypatch):
    monkeypatch.setattr(scatter_reduce, "_FEWEST_SORTED", 1)
    x, base, weight = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((9, 3), (9, 3), (20,)))
    source, target = edges(9, 20)

    def value(x, base, weight):
        return function(x, base, source, target, weight).pow(3).sum()

    for each in (value, torch.func.grad(value, argnums=(0, 1, 2))):
        torch._dynamo.reset()
        compiled = torch.compile(each, backend="reformer")
        with functorch_config.patch(donated_buffer=False):  # the check runs a backward again
            assert torch.autograd.gradcheck(compiled, (x, base, weight), fast_mode=True)


def of_a_bias(table, base, index, values):
    """Relative positions: the gradient of gathered rows in another order."""
    return (table[index].permute(2, 0, 1) * values).sum((1, 2))


def by_index_put(table, base, index, values):
    return base.index_put((index,), values.permute(1, 2, 0), accumulate=True) * table.sum()


def on_zeros(table, base, index, values):
    return torch.zeros_like(base).index_put((index,), values.permute(1, 2, 0), accumulate=True) + table


def of_columns(table, base, index, values):
    """Biases of attention as in LeViT."""
    return (table.t().contiguous()[:, index] * values).sum((1, 2))


def of_numbers(table, base, index, values):
    """Rows of one element, without a dimension for it."""
    return base[:, 0].index_put((index,), values[0], accumulate=True) * table[:, 0]


def of_wide_rows(table, base, index, values):
    """Rows that are matrices, and rows that are added in all columns at once."""
    rows = torch.stack([values, values]).permute(2, 3, 0, 1)
    result = torch.stack([base, table], 1).index_put((index,), rows, accumulate=True)
    return result.index_add(0, index[:, 0] % 7, values.sum(2).t()[:, None].expand(-1, 2, -1))


ADDITIONS = [of_a_bias, by_index_put, on_zeros, of_columns, of_numbers, of_wide_rows]


def check_additions(function, dtype, index_type, device):
    """Check results and gradients, which are exact in fp32."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    index = torch.randint(-13, 13, (50, 60), device=device).to(index_type)
    index[index == 5] = 3
    given = [torch.randint(-2, 3, size, device=device).to(dtype) for size in ((13, 5), (13, 5), (5, 50, 60))]
    found = []
    for run, kind in ((torch.compile(function, backend="reformer"), dtype), (function, torch.float64)):
        table, base, values = (each.to(kind).requires_grad_() for each in given)
        result = run(table, base, index, values)
        grad = torch.arange(result.numel(), device=device).remainder(3).view(result.shape).to(kind)
        found.append([result, *torch.autograd.grad(result, (table, base, values), grad, allow_unused=True)])
    for ours, exact in zip(*found, strict=True):
        if exact is not None:
            torch.testing.assert_close(ours.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)


@needs_aten
@pytest.mark.parametrize("index_type", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("function", ADDITIONS)
def test_without_sorting(function, dtype, index_type, monkeypatch):
    """As on GPUs; the operator is PyTorch's here."""
    monkeypatch.setattr(scatter_reduce, "_is_scanned", lambda *_: True)
    monkeypatch.setattr(scatter_reduce, "_FEWEST_SORTED", 1)  # gathers
    check_additions(function, dtype, index_type, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("function", ADDITIONS)
def test_without_sorting_on_a_gpu(function, dtype):
    check_additions(function, dtype, torch.int64, "cuda")


@needs_aten
def test_a_base_of_zeros_takes_no_memory(monkeypatch):
    monkeypatch.setattr(scatter_reduce, "_is_scanned", lambda *_: True)
    table, index, values = torch.randn(13, 5, requires_grad=True), torch.randint(13, (50, 60)), torch.randn(5, 50, 60)
    _, backward = kinds(of_a_bias, table, None, index, values)
    assert backward == ["stitch", "reformer::_embedding_grad"]


@needs_aten
@pytest.mark.parametrize("size", [(0,), (0, 3)], ids=str)
def test_no_indices(size, monkeypatch):
    monkeypatch.setattr(scatter_reduce, "_is_scanned", lambda *_: True)
    torch._dynamo.reset()
    base, index, rows = torch.randn(9, 4), torch.zeros(size, dtype=torch.int64), torch.randn(*size, 4)
    compiled = torch.compile(lambda *x: x[0].index_put((x[1],), x[2], accumulate=True), backend="reformer")
    assert torch.equal(compiled(base, index, rows), base)


@needs_aten
@pytest.mark.parametrize("wrong", [-14, 13])
def test_indices_that_name_no_row(wrong, monkeypatch):
    monkeypatch.setattr(scatter_reduce, "_is_scanned", lambda *_: True)
    torch._dynamo.reset()
    base, index, rows = torch.randn(13, 4), torch.zeros(6, 7, dtype=torch.int64), torch.randn(6, 7, 4)
    index[3, 4] = wrong
    compiled = torch.compile(lambda *x: x[0].index_put((x[1],), x[2], accumulate=True), backend="reformer")
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension 0 with size 13"):
        compiled(base, index, rows)


def kinds(function, *given):
    """Kinds of the steps of a function's forward and backward."""
    found = []
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="reformer", options={"report": found.append})
    compiled(*given).sum().backward()
    return [[line.kind for line in report.lines] for report in found]


@needs_aten
def test_messages_are_not_in_memory():
    """Two layers share the sorted edges, and a sum reads a few numbers per edge."""

    def layers(x, source, target, weight):
        for _ in range(2):
            x = torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None]).tanh()
        return x

    x, weight = torch.randn(300, 16, requires_grad=True), torch.rand(MANY)
    forward, backward = kinds(layers, x, *edges(300, MANY), weight)
    for steps in (forward, backward):
        assert steps.count("reformer::_segment_sum") == 2
        assert steps.count("reformer::_sort_rows") == 1
        assert steps.count("aten::index_select") == 2  # numbers of rows, and weights
    assert forward.count("reformer::_row_numbers") == 2 and backward.count("reformer::_row_numbers") <= 1
    assert forward.count("stitch") == 2  # tanh


@needs_aten
def test_messages_that_are_needed_elsewhere():
    def function(x, source, target, weight):
        messages = x[source] * weight[:, None]
        return torch.zeros_like(x).index_add(0, target, messages).sum() + (messages @ messages.T[:, :2]).sum()

    x, weight = torch.randn(300, 16), torch.rand(MANY)
    given = x, *edges(300, MANY), weight
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(function, backend="reformer")(*given), function(*given))


def _target(x, index):
    return torch.zeros_like(x).index_add(0, index, x[torch.zeros_like(index)])


def _scattered(x, index):
    rows = x[torch.zeros_like(index)]
    return torch.zeros_like(x).scatter_add(0, index[:, None].expand_as(rows), rows)


def _added_to(x, of):
    return torch.zeros_like(x).index_add(0, torch.zeros(MANY, dtype=torch.int64), of)


READERS = {
    "index": lambda x, index: _added_to(x, x[index]),
    "index_select": lambda x, index: _added_to(x, x.index_select(0, index)),
    "gather": lambda x, index: _added_to(x, x.gather(0, index[:, None].expand(-1, 4))),
    "index_add": _target,
    "index_put": lambda x, index: torch.zeros_like(x).index_put((index,), x[index * 0], accumulate=True),
    "scatter_add": _scattered,
}


@needs_aten
@pytest.mark.parametrize("wrong", [-1, -301, 300])
@pytest.mark.parametrize("name", READERS)
def test_numbers_that_name_no_row(name, wrong):
    """Invalid indices raise PyTorch's error, or none where PyTorch raises none."""
    x, index = torch.randn(300, 4), torch.zeros(MANY, dtype=torch.int64)
    index[77] = wrong
    torch._dynamo.reset()
    compiled = torch.compile(READERS[name], backend="reformer")
    try:
        expected = READERS[name](x, index)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error), match=str(error)):
            compiled(x, index)
    else:
        torch.testing.assert_close(compiled(x, index), expected)


@needs_aten
def test_what_is_written_to_is_read_before():
    """A table that changes after rows of it were gathered."""

    def function(x, source, target):
        rows = x[source]
        x.mul_(2)
        return torch.zeros_like(x).index_add(0, target, rows)

    x = torch.randint(-4, 5, (300, 4)).float()
    given = edges(300, MANY)
    torch._dynamo.reset()
    found, expected = torch.compile(function, backend="reformer")(x.clone(), *given), function(x.clone(), *given)
    assert torch.equal(found, expected)


class TestOperators:
    def test_no_numbers_at_all(self):
        numbers = reformer._row_numbers(torch.zeros(0, dtype=torch.int64), 3, "index_add")
        order, begins = reformer._sort_rows(numbers, 3)
        assert order.numel() == 0 and begins.tolist() == [0] * 4
        base = torch.randn(3, 5)
        assert torch.equal(reformer._segment_sum(torch.randn(0, 5), order, begins, base, None), base)

    def test_order(self):
        numbers = torch.randint(0, 40, (1000,), dtype=torch.int32)
        order, begins = reformer._sort_rows(numbers, 50)
        ordered, expected = torch.sort(numbers, stable=True)
        assert torch.equal(order, expected.int())
        assert torch.equal(begins, torch.searchsorted(ordered, torch.arange(51)).int())

    def test_narrow_numbers(self):
        index = torch.tensor([[-3, 2], [0, -1]])
        assert reformer._row_numbers(index, 3, "index").tolist() == [[0, 2], [0, 2]]
        with pytest.raises(IndexError, match="index -3 is out of bounds for dimension 0 with size 2"):
            reformer._row_numbers(index.int(), 2, "index")

    def test_refusals(self):
        source, order, begins = torch.randn(4, 2), torch.arange(4, dtype=torch.int32), torch.tensor([0, 4]).int()
        with pytest.raises(RuntimeError, match=r"_segment_sum: order has size \[4\]; it is a vector of int32"):
            reformer._segment_sum(source, order.long(), begins, None, None)
        with pytest.raises(RuntimeError, match=r"_segment_sum: factors has size \[3\], order \[4\]"):
            reformer._segment_sum(source, order, begins, None, torch.randn(3))
        with pytest.raises(RuntimeError, match=r"_segment_sum: base has size \[2, 2\], the result \[1, 2\]"):
            reformer._segment_sum(source, order, begins, torch.randn(2, 2), None)
