"""Losses of matrix products in chunks of rows (joint_graph/chunk_losses.py), against eager mode."""

import pytest
import torch
import torch.nn.functional as F
from compiled_steps import executables, kinds
from losses_of_products import (
    CLASSES,
    DEPTH,
    LOSSES,
    as_sum,
    capped,
    ignoring,
    looked_up,
    plain,
    scores,
    smoothed,
    weighted,
    with_bias,
    with_z_loss,
)
from marks import needs_aten
from plan_memory import peak_bytes
from torch import nn

from torch_reformer.compiler.ir.custom_ops import scaled
from torch_reformer.compiler.ir.fx_utils import followers
from torch_reformer.compiler.joint_graph import chunk_count, chunk_losses

pytestmark = needs_aten
ROWS = 240


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """Chunks of few rows, if a loss can be chunked at all; collects how many chunks there are of each loss."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(chunk_count, "LEAST_ROWS", 8)
    monkeypatch.setattr(chunk_count, "_most_in_time", lambda *_: 4)
    monkeypatch.setattr(chunk_count, "_LEAST_SAVED", 0)
    found, run = [], chunk_losses._Chunks.run
    monkeypatch.setattr(
        chunk_losses._Chunks, "run", lambda self, bounds: (found.append(len(bounds)), run(self, bounds))
    )
    return found


def tensors(dtype=torch.float64, rows=ROWS):
    x, weight, bias = torch.randn(rows, DEPTH), torch.randn(CLASSES, DEPTH), torch.randn(CLASSES)
    labels = torch.arange(rows) * 7 % CLASSES
    return [each.to(dtype) for each in (x, weight, bias)], labels


def outcome(loss, given, labels, factor=0.7):
    """The loss, and the gradients of its product with a factor from outside of the graph."""
    given = [each.detach().requires_grad_() for each in given]
    result = loss(*given, labels)
    grads = torch.autograd.grad(result, given, torch.full_like(result, factor), allow_unused=True)
    return [result.detach(), *(grad for grad in grads if grad is not None)]


def compiled(function, **options):
    return torch.compile(function, backend="reformer", options=options)


@pytest.mark.parametrize("factor", [1.0, 0.7])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss, factor, chunks):
    given, labels = tensors()
    found, expected = (outcome(each, given, labels, factor) for each in (compiled(loss), loss))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert chunks and chunks[0] > 1


@pytest.mark.parametrize("classes", [CLASSES, 91])
def test_a_table_that_is_also_the_weight(classes, chunks, monkeypatch):
    """The gradient of its rows is added to what the forward saved, or to a copy where a backward may run again."""
    x, table, labels = torch.randn(ROWS, DEPTH), torch.randn(classes, DEPTH), torch.arange(ROWS) * 7 % classes
    given = [each.double().requires_grad_() for each in (x, table)]
    expected = torch.autograd.grad(looked_up(*given, None, labels), given)
    loss = compiled(looked_up)(*given, None, labels)
    first = torch.autograd.grad(loss, given, retain_graph=True)
    second = torch.autograd.grad(loss, given, torch.tensor(3.0).double())
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, tuple(3 * each for each in expected))
    assert chunks
    steps = kinds(executables(looked_up, *given, None, labels, monkeypatch=monkeypatch)[1])
    assert "reformer::_add_embedding_grad_" in steps and "aten::clone" not in steps


def test_other_sizes(chunks):
    """Rows that are no multiple of the chunks'."""
    given, labels = tensors(rows=251)
    found, expected = (outcome(each, given, labels) for each in (compiled(with_bias), with_bias))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert chunks == [4]


@pytest.mark.parametrize("loss", [plain, smoothed, weighted, with_z_loss])
def test_all_labels_ignored(loss, chunks):
    """A mean of no losses is NaN, and so are its gradients."""
    given, labels = tensors()
    labels[:] = -100
    found, expected = (outcome(each, given, labels) for each in (compiled(loss), loss))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13, equal_nan=True)
    assert chunks


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("loss", [plain, ignoring, smoothed, with_z_loss])
def test_special_values(loss, value, chunks):
    given, labels = tensors()
    given[0][4, 3] = value  # a row that `ignoring` ignores
    found, expected = (outcome(each, given, labels) for each in (compiled(loss), loss))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13, equal_nan=True)
    assert chunks


def test_a_label_out_of_bounds():
    given, labels = tensors()
    labels[200] = CLASSES
    with pytest.raises(IndexError, match=f"Target {CLASSES} is out of bounds"):
        outcome(compiled(weighted), given, labels)


@pytest.mark.parametrize("loss", [plain, with_bias, weighted, with_z_loss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_precision(dtype, loss, chunks):
    """Losses and gradients are as close to the exact ones as eager's."""
    given, labels = tensors(dtype, rows=2000)
    exact = outcome(loss, [each.double() for each in given], labels)
    found, expected = (outcome(each, given, labels) for each in (compiled(loss), loss))
    for ours, eager, right in zip(found, expected, exact, strict=True):
        assert ours.dtype == eager.dtype and ours.stride() == eager.stride()
        assert (ours - right).norm() <= 1.2 * (eager - right).norm() + 1e-6 * right.norm()
    assert chunks


@pytest.mark.parametrize("dtype, is_chunked", [(torch.bfloat16, True), (torch.float16, False)], ids=str)
def test_autocast(dtype, is_chunked, chunks):
    """Gradients of unscaled losses, which fp16 might not hold, stay in the backward."""
    given, labels = tensors(torch.float32, rows=2000)

    def loss(x, weight, bias, labels):
        with torch.autocast("cpu", dtype):
            return capped(x, weight, bias, labels)

    exact = outcome(capped, [each.double() for each in given], labels)
    found, expected = (outcome(each, given, labels) for each in (compiled(loss), loss))
    for ours, eager, right in zip(found, expected, exact, strict=True):
        assert ours.dtype == eager.dtype
        assert (ours - right).norm() <= 1.2 * (eager - right).norm()
    assert bool(chunks) == is_chunked


def scores_returned(x, weight, bias, labels):
    s = scores(x, weight)
    return F.cross_entropy(s, labels), s


def scores_read(x, weight, bias, labels):
    s = scores(x, weight)
    return F.cross_entropy(s, labels), s.sin().mean(0)


def by_columns(x, weight, bias, labels):
    s = scores(x, weight)
    return F.cross_entropy(s - s.amax(0), labels), None


def divided_by_itself(x, weight, bias, labels):
    """The gradient depends on a sum over all rows' scores."""
    s = scores(x, weight)
    return F.cross_entropy(s / s.abs().sum(), labels), None


@pytest.mark.parametrize("loss", [scores_returned, scores_read, by_columns, divided_by_itself])
def test_scores_used_otherwise(loss, chunks):
    given, labels = tensors()

    def total(function):
        one, other = function(*leaves, labels)
        return one.detach(), *torch.autograd.grad(one if other is None else one + other.square().sum(), leaves[:2])

    leaves = [each.requires_grad_() for each in given]
    torch.testing.assert_close(total(compiled(loss)), total(loss), rtol=1e-10, atol=1e-12)
    assert not chunks


def test_two_losses_of_the_same_scores(chunks):
    """Each has a gradient of its own, so the gradient of the scores is linear in neither alone."""

    def both(x, weight, bias, labels):
        s = scores(x, weight, bias)
        return F.cross_entropy(s, labels), s.logsumexp(-1).square().mean()

    given, labels = tensors()
    leaves = [each.requires_grad_() for each in given]

    def results(function):
        one, other = function(*leaves, labels)
        return torch.autograd.grad(2 * one - 3 * other, leaves)

    torch.testing.assert_close(results(compiled(both)), results(both), rtol=1e-11, atol=1e-12)
    assert not chunks


def test_results_of_rows(chunks):
    """Numbers that each row has may be results, too."""

    def both(x, weight, bias, labels):
        s = scores(x, weight, bias)
        return F.cross_entropy(s, labels), s.logsumexp(-1).detach()

    given, labels = tensors()
    leaves = [each.requires_grad_() for each in given]

    def results(function):
        loss, of_rows = function(*leaves, labels)
        return of_rows, *torch.autograd.grad(2 * loss, leaves)

    torch.testing.assert_close(results(compiled(both)), results(both), rtol=1e-11, atol=1e-12)
    assert chunks == [4]


@pytest.mark.parametrize("frozen", [0, 1])
def test_one_gradient(frozen, chunks):
    """A frozen weight, and inputs that need no gradient."""
    given, labels = tensors()

    def results(function):
        leaves = [each.detach().requires_grad_(place != frozen) for place, each in enumerate(given)]
        loss = function(*leaves, labels)
        return loss.detach(), *torch.autograd.grad(loss, [each for each in leaves if each.requires_grad])

    torch.testing.assert_close(results(compiled(with_bias)), results(with_bias), rtol=1e-11, atol=1e-13)
    assert chunks == [4]


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows, chunks):
    given, labels = tensors(rows=rows)
    found, expected = (outcome(each, given, labels) for each in (compiled(as_sum), as_sum))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert not chunks


def test_rows_that_change(chunks):
    """Rows whose number is a symbol are not chunked."""
    function = torch.compile(plain, backend="reformer", dynamic=True)
    for rows in (250, 270, 330):
        given, labels = tensors(rows=rows)
        found, expected = (outcome(each, given, labels) for each in (function, plain))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert not chunks


def test_training(chunks):
    """A model with tied weights whose weights change in place, and gradients that accumulate."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer = nn.Embedding(CLASSES, DEPTH), nn.Linear(DEPTH, DEPTH)

        def forward(self, words):
            x = self.layer(self.words(words)).tanh()
            return F.cross_entropy(F.linear(x, self.words.weight).flatten(0, 1), words.roll(1, 1).flatten())

    def losses(wrap):
        torch.manual_seed(0)
        model = Model().double()
        step, optimizer, found = wrap(model), torch.optim.SGD(model.parameters(), lr=0.5), []
        for i in range(8):
            loss = step(torch.randint(CLASSES, (8, 40)))
            (loss / 2).backward()
            found.append(loss.item())
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
        return found

    assert losses(compiled) == pytest.approx(losses(lambda model: model), rel=1e-10)
    assert chunks == [4]


def test_a_second_backward(chunks):
    given, labels = tensors()
    leaves = [each.requires_grad_() for each in given[:2]]
    loss = 3 * compiled(plain)(*leaves, None, labels)
    loss.backward(retain_graph=True)
    loss.backward()
    expected = torch.autograd.grad(6 * plain(*leaves, None, labels), leaves)
    torch.testing.assert_close([each.grad for each in leaves], list(expected), rtol=1e-11, atol=1e-13)
    assert chunks == [4]


@pytest.mark.parametrize("budget", [0, 0.5])
def test_memory_budget(budget, chunks, monkeypatch):
    """As many chunks as have half of LEAST_ROWS, however long they take."""
    monkeypatch.setattr(chunk_count, "LEAST_ROWS", 40)
    given, labels = tensors()
    found, expected = (outcome(each, given, labels) for each in (compiled(with_bias, memory_budget=budget), with_bias))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert chunks == [2 * ROWS // 40]


def plans(loss, monkeypatch, dtype=torch.float64, rows=ROWS):
    """Plans of the forward and the backward, whose graphs are verified after each pass."""
    given, labels = tensors(dtype, rows)
    return executables(loss, *(each.requires_grad_() for each in given), labels, monkeypatch=monkeypatch)


def test_memory(chunks, monkeypatch):
    """Neither pass has the scores of more rows than a chunk's, and the gradient is written over them."""
    of_scores, of_weight = 4 * 4096 * CLASSES, 4 * CLASSES * DEPTH
    forward, backward = plans(plain, monkeypatch, torch.float32, 4096)
    assert chunks == [4]
    of_input, of_rows = 4 * 4096 * DEPTH, 8 * 4096
    assert peak_bytes(forward) <= of_scores / 4 + 2 * of_input + 4 * of_rows + 2 * of_weight
    assert peak_bytes(backward) <= 4 * of_weight
    assert sum("aten::addmm.out" in str(step) for step in forward.plan.steps) == 3  # in place
    monkeypatch.setattr(chunk_count, "_most_in_time", lambda *_: 1)
    assert peak_bytes(plans(plain, monkeypatch, torch.float32, 4096)[0]) >= of_scores


def test_each_chunk_waits_for_the_one_before(chunks, monkeypatch):
    """The products' order: scores, then the gradients of the input and the weight, of one chunk after the other."""
    forward, _ = plans(plain, monkeypatch)
    products = [step.call.name for step in forward.plan.steps if step.call and "mm" in step.call.name]
    first, last = ["aten::mm"] * 3, ["aten::mm", "aten::mm", "aten::addmm.out"]
    of_chunks = [sorted(products[place : place + 3], reverse=True) for place in range(0, 12, 3)]
    assert of_chunks == [first, *[last] * 3]


def test_a_forward_needs_the_gradients(monkeypatch):
    """Otherwise a partition with a memory budget leaves the last chunk to the backward, as it did for GPT-2."""
    needed, run = [], chunk_losses._Chunks.run

    def after_run(self, bounds):
        run(self, bounds)
        loss = self.joint.graph.output_node().args[0][0]
        for node in self.joint.graph.find_nodes(op="call_function", target=scaled):
            needed.append(loss in followers(self.joint, [node.args[0]]))

    monkeypatch.setattr(chunk_losses._Chunks, "run", after_run)
    outcome(compiled(with_bias), *tensors())
    assert needed == [True] * 3


def test_chunks_that_do_not_pay(chunks, monkeypatch):
    """Nothing is chunked where scores are a small part of a step's memory."""
    monkeypatch.setattr(chunk_count, "_LEAST_SAVED", 0.9)
    given, labels = tensors()
    found, expected = (outcome(each, given, labels) for each in (compiled(plain), plain))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert not chunks
