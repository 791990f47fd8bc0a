"""Epilogue programs: construction, text form and code, and refused programs."""

import dataclasses

import expecttest
import pytest
import torch

from torch_reformer import program
from torch_reformer.operators import fused_programs
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative
from torch_reformer.program.operations import COMPUTED, OF_ROWS, OPERANDS
from torch_reformer.program.program import decode


def residual_relu():
    return Program(program.store(program.relu(program.acc() + program.channel("bias") + program.full("residual"))))


class TestText(expecttest.TestCase):
    def test_forward(self):
        self.assertExpectedInline(
            str(residual_relu()),
            """\
%0 = acc
%1 = channel bias
%2 = add %0 %1
%3 = full residual
%4 = add %2 %3
%5 = relu %4
store %5
""",
        )

    def test_relu_needs_its_result_only(self):
        rule = derivative(residual_relu(), ("acc", "bias", "residual"))
        self.assertEqual(rule.forward, residual_relu())
        self.assertEqual(rule.sources, (("output", 0), ("grad", 0)))
        self.assertEqual(rule.wanted, {"acc": 0, "bias": 1, "residual": 0})
        self.assertExpectedInline(
            str(rule.backward),
            """\
%0 = full output_0
%1 = constant 0.0
%2 = le %0 %1
%3 = full grad_0
%4 = select %2 %1 %3
store %4
sum channel %4
""",
        )

    def test_a_gradient_that_is_given_is_not_computed(self):
        tested = Program(program.store(program.acc() + program.channel("bias") + program.full("residual")))
        rule = derivative(tested, ("acc", "bias", "residual"))
        self.assertEqual(rule.passed, {"acc": 0, "residual": 0})
        self.assertEqual(rule.wanted, {"bias": 0})
        self.assertExpectedInline(
            str(rule.backward),
            """\
%0 = full grad_0
sum channel %0
""",
        )
        rule = derivative(tested, ("acc", "residual"))
        self.assertEqual((rule.backward, rule.sources), (None, ()))

    def test_the_gradient_of_acc_has_the_data_type_of_acc(self):
        tested = Program(program.store(program.acc() + program.full("residual"), torch.float32))
        rule = derivative(tested, ("acc", "residual"))
        self.assertEqual((rule.passed, rule.wanted), ({"residual": 0}, {"acc": 0}))

    def test_the_gradient_of_a_wide_residual(self):
        """Gradients of a sum in two data types are added up as they are read, and the sum is not rounded."""
        value = program.acc() + program.full("residual")
        tested = Program(program.store(value, torch.float32), program.store(value))
        rule = derivative(tested, ("acc", "residual"), wide=frozenset(["residual"]))
        self.assertEqual((rule.passed, rule.wanted), ({}, {"acc": 0, "residual": 1}))
        self.assertExpectedInline(
            str(rule.backward),
            """\
%0 = full grad_0
%1 = full grad_1
%2 = add %0 %1
store %2
store %2 float32
""",
        )

    def test_running_statistics(self):
        tested = fused_programs.normalise_and_update(frozenset(["scale"]), "none", 1e-5, 0.1, (torch.float32,) * 2)
        self.assertExpectedInline(
            str(tested),
            """\
%0 = acc
%1 = channel mean
%2 = sub %0 %1
%3 = channel squares
%4 = rows
%5 = div %3 %4
%6 = constant 1e-05
%7 = add %5 %6
%8 = rsqrt %7
%9 = channel scale
%10 = mul %8 %9
%11 = mul %2 %10
%12 = channel running_mean
%13 = constant 0.1
%14 = sub %1 %12
%15 = mul %13 %14
%16 = add %12 %15
%17 = channel running_var
%18 = constant 1.0
%19 = sub %4 %18
%20 = div %3 %19
%21 = sub %20 %17
%22 = mul %13 %21
%23 = add %17 %22
store %11
store channel %16 float32
store channel %23 float32
""",
        )

    def test_silu_keeps_what_it_is_of(self):
        value = program.acc() + program.channel("bias")
        rule = derivative(Program(program.store(program.silu(value))), ("acc", "bias"))
        self.assertExpectedInline(
            str(rule.forward),
            """\
%0 = acc
%1 = channel bias
%2 = add %0 %1
%3 = sigmoid %2
%4 = mul %2 %3
store %4
store %2
""",
        )
        self.assertEqual(rule.sources, (("grad", 0), ("output", 1)))

    def test_a_comparison_is_saved_as_a_mask(self):
        rule = derivative(Program(program.store(program.leaky_relu(program.acc()))), ("acc",))
        self.assertExpectedInline(
            str(rule.forward),
            """\
%0 = constant 0.0
%1 = acc
%2 = lt %0 %1
%3 = constant 0.01
%4 = mul %1 %3
%5 = select %2 %1 %4
store %5
store %2 bool
""",
        )

    def test_random_numbers_are_drawn_again(self):
        dropped = program.select(program.random("key") < 0.5, 0, program.acc() * 2)
        rule = derivative(Program(program.store(dropped)), ("acc",))
        self.assertEqual(len(rule.forward.outputs), 1)
        self.assertEqual(rule.sources, (("input", "key"), ("grad", 0)))


def test_equal_programs():
    assert residual_relu() == residual_relu() and hash(residual_relu()) == hash(residual_relu())
    assert residual_relu() != Program(program.store(program.acc()))


def test_equal_values_are_computed_once():
    value = program.acc() * 2
    tested = Program(program.store((value + 1) * (program.acc() * 2 + 1)))
    assert [node.op for node in tested.nodes] == ["acc", "constant", "mul", "constant", "add", "mul"]


def test_equal_numbers_are_one_constant():
    """Zeros of different signs remain two constants."""
    numbers = [1, 1.0, True, 2, 2.0, 0.0, -0.0, 0, False, float("nan"), float("nan")]
    tested = Program(*(program.store(program.acc() * number) for number in numbers))
    assert [str(node.attribute) for node in tested.nodes if node.op == "constant"] == [
        "1.0",
        "2.0",
        "0.0",
        "-0.0",
        "nan",
    ]
    assert decode(tested.code).code == tested.code


@pytest.mark.parametrize("name", program.ACTIVATIONS)
def test_code_round_trips(name):
    value = program.ACTIVATIONS[name](program.acc() * program.scalar("s") - program.row("row")) / program.rows()
    sums = [
        program.sum(-(value * program.channel("c")) / 3, "channel"),
        program.max(value, "row"),
        program.moments(value, "all"),
    ]
    tested = Program(
        program.store(value, torch.float16), program.store(value < program.random("key"), torch.bool), *sums
    )
    again = decode(tested.code)
    assert again.code == tested.code
    assert [*again.inputs.values()] == [*tested.inputs.values()]
    assert [(o.kind, o.per, o.dtype) for o in again.outputs] == [(o.kind, o.per, o.dtype) for o in tested.outputs]


def test_what_is_the_same_in_a_channel_is_multiplied_once():
    def summed(value):
        tested = Program(program.sum(value))
        inputs, node = tested.code[0], tested.code[-4]
        return [*OPERANDS][tested.code[3 + inputs + 5 * node]]

    a, c, d = program.acc(), program.channel("c"), program.channel("d")
    for value in (a * c, c * a, -a, -(a / c), d * (a * c) / 3, a * (c * d)):
        assert summed(value) == "acc"
    assert summed(a + c) == "add"
    assert summed((a + c) * d) == "add"


def test_a_sum_term_by_term():
    value = program.acc() / program.channel("c")
    tested = Program(dataclasses.replace(program.sum(value), term_by_term=True))
    again = decode(tested.code)
    assert tested != Program(program.sum(value)) and again.code == tested.code and again.outputs[0].term_by_term


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda: Program(), "at least one output"),
        (lambda: Program(program.store(program.full("a") + program.channel("a"))), "'a' is both full and channel"),
        (lambda: program.channel("two words"), "a Python identifier, got 'two words'"),
        (lambda: program.channel(3), "got 3"),
        (lambda: program.sum(program.acc(), per="column"), "'plane', 'height' or 'all', got 'column'"),
        (lambda: program.store(program.acc(), torch.int8), "bool, int64 or int32, got torch.int8"),
        (lambda: program.max(program.acc(), dtype=torch.bool), "max takes float32, float64, float16 or bfloat16, got"),
        (lambda: program.store(program.acc(), per="all"), "per 'element', 'channel', 'row' or 'plane', got 'all'"),
        (lambda: program.store(program.acc(), per="row"), "a value stored per row may only depend on row values"),
        (
            lambda: program.store(program.channel("c") * program.row("r"), per="channel"),
            "a value stored per channel may only depend on channel values",
        ),
        (lambda: program.activation("swish"), "got 'swish'"),
        (lambda: derivative(residual_relu(), ("weight",)), "no input 'weight'"),
        (lambda: derivative(Program(program.store(program.random("k"))), ("k",)), "'k' is a key of random numbers"),
        (
            lambda: derivative(Program(program.max(program.acc())), ("acc",), (0,)),
            "no program computes the gradient of output 0, max of acc",
        ),
        (
            lambda: derivative(Program(program.store(program.channel("c"), per="channel")), ("c",), (0,)),
            "output 0, stored of channels, has no gradient",
        ),
        (lambda: decode((1, 2)), "no program's code"),
        (lambda: decode((0, 1, 1, 99, -1, -1, -1, 0, 0, 0, 0, -1, -1)), "no program's code"),
    ],
)
def test_errors(write, sentence):
    with pytest.raises(ValueError) as error:
        write()
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "write",
    [
        lambda: program.acc() + "1",
        lambda: program.relu(torch.ones(2)),
        lambda: program.relu(program.acc(), 1),
        lambda: Program(program.acc()),
        lambda: 1 if program.acc() > 0 else 2,
    ],
)
def test_what_is_no_value(write):
    with pytest.raises(TypeError, match="program"):
        write()


def test_every_operation_has_a_meaning():
    assert {*COMPUTED, *OF_ROWS} == {name for name, operands in OPERANDS.items() if operands}
