"""Derivatives of every operation against PyTorch's autograd of the same program, in each data type."""

import pytest
import torch

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret
from torch_reformer.program.operations import COMPARISONS, COMPUTED, OPERANDS
from torch_reformer.program.values import Value

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NUMBERS = [-5.0, -1.0, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 5.0]
# Operations whose derivatives are rounded.
SMOOTH = {"exp", "log", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "normal_cdf", "normal_pdf", "mul", "div"}
SMOOTH |= {"expm1", "log2", "log10", "sin", "cos", "pow", "atan2", "copysign"}
OF_POSITIVE = {"log", "log1p", "sqrt", "rsqrt", "log2", "log10"}


def of_tensors(op):
    return program.store(Value(op, *[program.acc(), program.full("a"), program.full("b")][: OPERANDS[op]]))


def stored_in_fp32(op):
    return program.store(of_tensors(op).value, torch.float32)


def of_what_is_stored(op):
    """Outputs for a clipped value that is stored, too. It is often exactly 0.1, which no 16-bit data type can
    represent."""
    clipped = program.clip(program.acc(), -0.1, 0.1)
    is_shifted = OPERANDS[op] == 1 or op in ("select", "pow")
    first = clipped - 0.1 + (op in {*OF_POSITIVE, "pow"}) + 0 * program.full("a") if is_shifted else clipped
    return program.store(clipped), program.store(
        Value(op, *[first, 0.1 + 0 * program.full("a"), 0.3][: OPERANDS[op]]), torch.float32
    )


def stitched(x, tested, tensors):
    return torch_reformer.stitch(x, tested, tensors)


def after_a_convolution(x, tested, tensors):
    return torch_reformer.conv2d_epilogue(x, torch.ones(1, 1, 1, 1, dtype=x.dtype), tested, tensors)


def by_pytorch(x, tested, tensors):
    return interpret(tested, x.shape, x.dtype, tensors, x)


def gradients(run, tested, dtype, numbers):
    """Gradients of acc and the inputs, with every combination of the numbers."""
    grid = torch.cartesian_prod(*[torch.tensor(numbers, dtype=torch.float64)] * 3).to(dtype)
    x, *others = (column.clone().view(1, 1, len(numbers), -1).requires_grad_() for column in grid.unbind(1))
    tensors = {name: other for name, other in zip(("a", "b"), others, strict=True) if name in tested.inputs}
    results = run(x, tested, tensors)
    results = [results] if isinstance(results, torch.Tensor) else results
    weights = [torch.arange(1, y.numel() + 1).remainder(7).view(y.shape).to(y.dtype) for y in results]
    return torch.autograd.grad(results, (x, *tensors.values()), weights, materialize_grads=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("run", [stitched, after_a_convolution])
@pytest.mark.parametrize("written", [of_tensors, stored_in_fp32, of_what_is_stored])
@pytest.mark.parametrize("op", [op for op in COMPUTED if op not in COMPARISONS])
def test_gradients(op, written, run, dtype):
    outputs = written(op)
    tested = Program(*(outputs if isinstance(outputs, tuple) else [outputs]))
    # Powers of fewer numbers: others exceed fp16's range, in which a result may be saved.
    some = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0] if op == "pow" else NUMBERS
    # PyTorch's own operators disagree on the gradient of a clipped NaN.
    numbers = some if op == "clip" or written is of_what_is_stored else [*some, float("nan")]
    ours, theirs = (gradients(each, tested, dtype, numbers) for each in (run, by_pytorch))
    tolerance = 4 * torch.finfo(dtype).eps if op in SMOOTH else 0
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_clip_in_half_precision():
    """The bound is no fp16 number: a value that was clipped to it and then rounded counts as clipped."""
    x = torch.tensor([-5.0, -0.01, 0.01, 5.0]).half().view(1, 1, 2, 2).requires_grad_()
    y = torch_reformer.stitch(x, Program(program.store(program.clip(program.acc(), -0.1, 0.1))))
    assert torch.autograd.grad(y.sum(), x)[0].flatten().tolist() == [0, 1, 1, 0]


def test_inputs_in_an_order_of_their_own():
    """A forward that saves values for the backward also takes its inputs in the program's order."""
    tested = Program(
        program.store(program.full("b") - program.full("a") * program.acc()), inputs={"a": "full", "b": "full"}
    )
    x, a, b = (torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    torch.testing.assert_close(torch_reformer.stitch(x, tested, {"a": a, "b": b}), b - a * x)
