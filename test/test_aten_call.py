"""Any operator of PyTorch as a step of a plan (runtime/aten_call.py, csrc/aten/operator_call.cpp)."""

import pytest
import torch

from torch_reformer.runtime import plan

aten = torch.ops.aten
X, Y, SQUARE = torch.rand(2, 3, 4, 4) - 0.5, torch.rand(2, 3, 4, 4), torch.rand(4, 4)
WEIGHT, BIAS, WHERE = torch.rand(5, 3, 3, 3), torch.rand(5), torch.tensor([1, 0, 1])
CONV = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "lengths", "tensors"),
    [
        (aten.relu.default, [0], {}, [], [X]),
        (aten.mm.default, [0, 1], {}, [], [SQUARE, SQUARE.t()]),
        (aten.mm.default, [0, 0], {}, [], [SQUARE]),
        (aten.mm.default, [0, 0], {}, [], [SQUARE]),
        (aten.select.int, [0, -1, 2], {}, [], [X]),
        (aten.view.default, [0, [2, -1]], {}, [], [X]),
        (aten.sum.dim_IntList, [0, [0, 2]], {"dtype": torch.float64}, [], [X]),
        (aten.sum.dim_IntList, [0, None, True], {}, [], [X]),
        (aten.sum.dim_IntList, [0, 1], {}, [], [X]),
        (aten.roll.default, [0, 1], {"dims": -1}, [], [X]),
        (aten.max.dim, [0], {"dim": 1}, [], [X]),
        (aten.gather.default, [0, 1, 1], {}, [], [X[:, 0, 0], WHERE.view(1, 3)]),
        (aten.cumsum.default, [0, 1], {"dtype": torch.bfloat16}, [], [X]),
        (aten.convolution.default, [0, 1, None, *CONV], {}, [], [X, WEIGHT]),
        (aten.convolution.default, [0, 1, 2, *CONV], {}, [], [X, WEIGHT, BIAS]),
        (
            aten.convolution_backward.default,
            [0, 1, 2, None, *CONV, [True, False, False]],
            {},
            [],
            [torch.rand(2, 5, 2, 2), X, WEIGHT],
        ),
        (aten.native_layer_norm.default, [0, [4], None, None, 1e-3], {}, [], [X]),
        (aten.native_dropout.default, [0, 0.0, True], {}, [], [X]),
        (aten.native_dropout.default, [0, 0, None], {}, [], [X]),
        (aten.bernoulli.p, [0, 1.0], {"generator": None}, [], [X]),
        (aten.upsample_nearest2d.vec, [0, None, [2.0, 1.5]], {}, [], [X]),
        (aten.upsample_nearest2d.vec, [0, [8, 6], None], {}, [], [X]),
        (aten.cat.default, [[0, 1, 0], 1], {}, [], [X, Y]),
        (aten.index.Tensor, [0, [None, 1]], {}, [], [X, WHERE]),
        (aten.index.Tensor, [0, [1, None, 1]], {}, [], [X, WHERE]),
        (aten.split.Tensor, [0, 2, 1], {}, [2], [X]),
        (aten.unbind.int, [0], {}, [2], [X]),
        (aten._foreach_mul.List, [[0, 1], [1, 0]], {}, [2], [X, Y]),
        (aten.add.Tensor, [0, 1], {"alpha": 0.5}, [], [X, Y]),
        (aten.mul.Scalar, [0, 2], {}, [], [X]),
        (aten.clamp.default, [0, None, 0.25], {}, [], [X]),
        (aten.gelu.default, [0], {"approximate": "tanh"}, [], [X]),
        (aten.scatter.value, [0, 1, 1, 2.5], {}, [], [SQUARE, torch.tensor([[1, 2]])]),
        (aten.div.Tensor_mode, [0, 1], {"rounding_mode": "floor"}, [], [X, Y]),
        (aten.zeros.default, [[2, 3]], {"dtype": torch.int64, "device": torch.device("cpu")}, [], [X]),
        (aten.ones.default, [[0, 3]], {"layout": torch.strided, "pin_memory": False}, [], [X]),
        (aten._to_copy.default, [0], {"dtype": torch.float16, "memory_format": torch.channels_last}, [], [X]),
        (aten.clone.default, [0], {"memory_format": torch.channels_last}, [], [X]),
        (aten.contiguous.default, [0], {}, [], [X.transpose(1, 2)]),
        (torch.ops.reformer.conv2d.default, [0, 1, None], {"padding": 1, "groups": 1}, [], [X, WEIGHT]),
    ],
)
def test_arguments(operator, args, kwargs, lengths, tensors):
    """Arguments of all kinds, as the operator itself takes them."""
    steps = plan.Plan(len(tensors))
    steps.give(*steps.aten(operator, args, kwargs, lengths))
    call = steps.steps[0].call
    expected = call.run([tensors[i] for i in call.inputs])
    actual = plan.run(steps, tensors)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        if other is None or other.numel() == 0 and one is None:
            assert one is None
            continue
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs", "error", "sentence"),
    [
        (
            aten.item.default,
            [0],
            {},
            ValueError,
            "has a result of type number, but the results of a step must be tensors",
        ),
        (aten.equal.default, [0, 0], {}, ValueError, "has a result of type bool"),
        (aten.split.Tensor, [0, 1], {}, ValueError, "returns 1 lists of tensors, got 0 lengths"),
        (aten.mm.default, [0], {}, TypeError, "aten::mm: mat2 is missing"),
        (aten.mm.default, [0, 0, 0], {}, TypeError, "aten::mm does not take 3 arguments; its schema is aten::mm"),
        (aten.mm.default, [0, 0], {"out": 0}, TypeError, "aten::mm does not take an argument out"),
        (aten.mm.default, [0, X], {}, TypeError, "mat2 must be a tensor's number, got "),
        (aten.cat.default, [[0, None]], {}, TypeError, "tensors must be a list of tensors' numbers"),
        (aten.cat.default, [0], {}, TypeError, "tensors must be a list"),
        (aten.select.int, [0, 1.5, 0], {}, TypeError, "dim must be of the type int, got 1.5"),
        (aten.select.int, [0, 2**63, 0], {}, TypeError, "dim must be of the type int"),
        (aten.view.default, [0, [3.0]], {}, TypeError, r"size must be of the type .*, got \[3.0\]"),
        (aten.native_dropout.default, [0, "0", True], {}, TypeError, "p must be of the type float, got '0'"),
        (aten.cumsum.default, [0, 1], {"dtype": "float32"}, TypeError, "dtype must be of the type .*, got 'float32'"),
    ],
)
def test_refused(operator, args, kwargs, error, sentence):
    """Operators are refused when the plan is written, not when it runs."""
    with pytest.raises(error, match=sentence):
        plan.Plan(1).aten(operator, args, kwargs)


@pytest.fixture
def library():
    with torch.library._scoped_library("aten_call_test", "FRAGMENT") as found:
        yield found


def test_numbers_among_results_are_left_out(library):
    """Attention's kernels have such results: the lengths of the sequences."""
    library.define("counted(Tensor x, Tensor y) -> (Tensor, int, Tensor[], float)")
    library.impl("counted", lambda x, y: (x + 1, 7, [x, x * 2], 0.5), "CPU")
    operator = torch.ops.aten_call_test.counted.default
    steps = plan.Plan(2)
    steps.give(*steps.aten(operator, [0, 1], {}, [2]))
    results = plan.run(steps, [X, Y])
    torch.testing.assert_close(results, [X + 1, X, X * 2])
    torch.testing.assert_close(steps.steps[0].call.run([X, Y]), results)


def test_tensors_that_are_not_there(library):
    """Attention's kernels take and return undefined tensors, though their schemas say tensors."""
    library.define("maybe(Tensor x, Tensor y) -> (Tensor, Tensor)")
    library.impl("maybe", lambda x, y: (x + 1 if y is None else x + y, x * 3), "CPU")
    steps = plan.Plan(1)
    steps.give(*steps.aten(torch.ops.aten_call_test.maybe.default, [0, None], {}))
    torch.testing.assert_close(plan.run(steps, [X]), [X + 1, X * 3])
