"""Values that a graph computes from none of its inputs (joint_graph/fold_constants.py)."""

import pytest
import torch
from marks import needs_aten
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.joint_graph.fold_constants import fold_constants

pytestmark = needs_aten
aten = torch.ops.aten


class Positions(nn.Module):
    """Positions that are made anew in each call, as in EdgeNeXt and Swin."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = nn.Linear(8, 8), nn.Embedding(7, 8)

    def forward(self, x):
        ones = ~torch.zeros(1, 6, 6).to(torch.bool)
        rows = ones.cumsum(1, dtype=torch.float32) / 6
        encoded = torch.cat([rows.sin(), rows.cos()[:, :, :2]], 2)
        distance = torch.arange(6)[:, None] - torch.arange(6)
        x = self.linear(x + encoded + self.table(torch.arange(6) % 5))
        return (x[..., :6] + self.table.weight[:6, :6]).masked_fill(distance > 0, 0.0).square().sum()


def step(function, model, x):
    model.zero_grad()
    loss = function(x)
    loss.backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters())]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_a_training_step():
    model, x, reports = Positions(), torch.randn(3, 6, 8), []
    compiled = torch.compile(model, backend=reformer, options={"report": reports.append})
    for found, expected in zip(step(compiled, model, x), step(model, model, x), strict=True):
        torch.testing.assert_close(found, expected)
    text = "".join(map(str, reports))
    for name in ("cumsum", "sin", "arange", "remainder", "gt"):
        assert f"aten::{name}" not in text


def test_inference():
    model, x, reports = Positions(), torch.randn(3, 6, 8), []
    with torch.no_grad():
        compiled = torch.compile(model, backend=reformer, options={"report": reports.append})
        torch.testing.assert_close(compiled(x), model(x))
    assert "cumsum" not in str(reports[0])


def folded(function, *inputs):
    """The operators, other than views, of a traced function after folding; and its results, which are checked."""
    module = make_fx(function)(*inputs)
    before = module(*inputs)
    fold_constants(module)
    module.recompile()
    after = module(*inputs)
    torch.testing.assert_close(after, before, equal_nan=True)
    assert [each.stride() for each in after] == [each.stride() for each in before]
    return [node.target for node in module.graph.nodes if node.op == "call_function" and not node.target.is_view]


def test_one_number_is_filled():
    """Programs have one number in all elements without reading memory."""
    x = torch.randn(4, 5)
    assert folded(lambda x: [x * torch.zeros(4, 5).add(2).sqrt()], x) == [aten.full.default, aten.mul.Tensor]


def test_integers():
    """One is filled, on the device of its reader; several are indices, which are in memory."""
    x = torch.randn(4, 5)
    assert folded(lambda x: [x * (torch.tensor(3) + 1)], x) == [aten.full.default, aten.mul.Tensor]
    assert folded(lambda x: [x[:, torch.full((3,), 2) + 1]], x) == [aten.index.Tensor]


@pytest.mark.parametrize("numbers", [[0.0, -0.0], [float("nan")] * 2, [1.0, 2.0]])
def test_several_numbers_are_a_tensor(numbers):
    first, second = numbers

    def function(x):
        both = torch.where(torch.arange(2) > 0, second, first)
        return [x / both]

    assert folded(function, torch.ones(2)) == [aten.div.Tensor]


def test_results_are_new_tensors():
    """A caller may change what it gets."""

    def function(x):
        range = torch.arange(4) * 2
        return [range, range.view(2, 2), x + 1]

    module = make_fx(function)(torch.ones(3))
    fold_constants(module)
    module.recompile()
    first, second = module(torch.ones(3)), module(torch.ones(3))
    assert first[0].data_ptr() != second[0].data_ptr() and first[1].data_ptr() != second[1].data_ptr()


def test_random_numbers_stay_random():
    def function(x):
        return [x + torch.rand(3) + torch.randn(3).sin()]

    module = make_fx(function)(torch.ones(3))
    fold_constants(module)
    module.recompile()
    assert not torch.equal(module(torch.ones(3))[0], module(torch.ones(3))[0])


def test_inputs_and_large_tensors_stay():
    large = folded(lambda x: [x + torch.arange(2_000_000) % 3], torch.ones(2_000_000))
    assert aten.arange.default in large or aten.arange.start_step in large
    assert folded(lambda x: [x.sin().cos()], torch.ones(3)) == [aten.sin.default, aten.cos.default]


def test_other_layouts():
    """An expanded and a transposed constant keep their strides."""

    def function(x):
        numbers = torch.arange(6).remainder(4).view(2, 3).t()
        return [x + numbers, x * torch.arange(3).remainder(2)[:, None].expand(3, 2)]

    assert folded(function, torch.ones(3, 2)) == [aten.add.Tensor, aten.mul.Tensor]


def test_names_of_constants_that_are_there_are_not_taken():
    """A partition gives a graph only some of the constants; its own must not replace them."""
    x = torch.ones(4)
    module = make_fx(lambda x: [x * (torch.arange(4) % 3) * (torch.arange(4) % 2)])(x)
    fold_constants(module)
    module.recompile()
    expected = module(x)
    (first, *_) = (node for node in module.graph.nodes if node.op == "get_attr")
    module.register_buffer("_folded_7", getattr(module, first.target))
    delattr(module, first.target)
    first.target = "_folded_7"
    with module.graph.inserting_before(first):
        other = module.graph.call_function(aten.arange.default, (4,))
        other.meta["val"] = torch.arange(4)
        other = module.graph.call_function(aten.remainder.Scalar, (other, 4))
        other.meta["val"] = torch.arange(4)
    last = [node for node in module.graph.nodes if node.target is aten.mul.Tensor][-1]
    with module.graph.inserting_after(last):
        total = module.graph.call_function(aten.add.Tensor, (last, other))
        total.meta["val"] = last.meta["val"]
    last.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    fold_constants(module)
    module.recompile()
    module.recompile()
    assert torch.equal(module(x)[0], expected[0] + torch.arange(4))


def test_indices_of_rows():
    """Constant indices of a scatter-add are checked and sorted once, at compile time."""

    def summed(x):
        index = torch.arange(1 << 14) * 7 % 300
        return torch.zeros(300, 4).index_add(0, index, x[index] * 2)

    x, reports = torch.randn(300, 4, requires_grad=True), []
    found = torch.compile(summed, backend=reformer, options={"report": reports.append})(x)
    (found_grad,) = torch.autograd.grad(found.square().sum(), x)
    expected = summed(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_grad, *torch.autograd.grad(expected.square().sum(), x))
    text = "".join(map(str, reports))
    assert "_segment_sum" in text and "_sort_rows" not in text and "_row_numbers" not in text


def test_wrong_indices_of_rows():
    """The call raises PyTorch's error."""

    def summed(x):
        return torch.zeros(300, 4).index_add(0, torch.arange(1 << 14), x)

    with pytest.raises(RuntimeError, match="index 300 is out of bounds for dimension 0 with size 300"):
        torch.compile(summed, backend=reformer)(torch.randn(1 << 14, 4))
