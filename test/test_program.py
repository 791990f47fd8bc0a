"""Epilogue programs: how they are written, what their text and code are, and what is refused."""

import expecttest
import pytest
import torch

from torch_reformer import program as ep
from torch_reformer.operators import fused_programs
from torch_reformer.program.derivative import derivative
from torch_reformer.program.operations import COMPUTED, OPERANDS
from torch_reformer.program.program import decode


def residual_relu():
    return ep.Program(ep.store(ep.relu(ep.acc() + ep.channel("bias") + ep.full("residual"))))


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
        program = ep.Program(ep.store(ep.acc() + ep.channel("bias") + ep.full("residual")))
        rule = derivative(program, ("acc", "bias", "residual"))
        self.assertEqual(rule.passed, {"acc": 0, "residual": 0})
        self.assertEqual(rule.wanted, {"bias": 0})
        self.assertExpectedInline(
            str(rule.backward),
            """\
%0 = full grad_0
sum channel %0
""",
        )
        rule = derivative(program, ("acc", "residual"))
        self.assertEqual((rule.backward, rule.sources), (None, ()))

    def test_the_gradient_of_acc_has_the_data_type_of_acc(self):
        program = ep.Program(ep.store(ep.acc() + ep.full("residual"), torch.float32))
        rule = derivative(program, ("acc", "residual"))
        self.assertEqual((rule.passed, rule.wanted), ({"residual": 0}, {"acc": 0}))

    def test_the_gradient_of_a_wide_residual(self):
        """Gradients of a sum in two data types are added up as they are read, and the sum is not rounded."""
        value = ep.acc() + ep.full("residual")
        program = ep.Program(ep.store(value, torch.float32), ep.store(value))
        rule = derivative(program, ("acc", "residual"), wide=frozenset(["residual"]))
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
        program = fused_programs.normalise_and_update(frozenset(["scale"]), "none", 1e-5, 0.1, (torch.float32,) * 2)
        self.assertExpectedInline(
            str(program),
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
        value = ep.acc() + ep.channel("bias")
        rule = derivative(ep.Program(ep.store(ep.silu(value))), ("acc", "bias"))
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

    def test_a_comparison_is_kept_as_a_mask(self):
        rule = derivative(ep.Program(ep.store(ep.leaky_relu(ep.acc()))), ("acc",))
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
        kept = ep.select(ep.random("key") < 0.5, 0, ep.acc() * 2)
        rule = derivative(ep.Program(ep.store(kept)), ("acc",))
        self.assertEqual(len(rule.forward.outputs), 1)
        self.assertEqual(rule.sources, (("input", "key"), ("grad", 0)))


def test_equal_programs():
    assert residual_relu() == residual_relu() and hash(residual_relu()) == hash(residual_relu())
    assert residual_relu() != ep.Program(ep.store(ep.acc()))


def test_equal_values_are_computed_once():
    value = ep.acc() * 2
    program = ep.Program(ep.store((value + 1) * (ep.acc() * 2 + 1)))
    assert [node.op for node in program.nodes] == ["acc", "constant", "mul", "constant", "add", "mul"]


@pytest.mark.parametrize("name", ep.ACTIVATIONS)
def test_code_round_trips(name):
    value = ep.ACTIVATIONS[name](ep.acc() * ep.scalar("s") - ep.row("row")) / ep.rows()
    sums = [ep.sum(-(value * ep.channel("c")) / 3, "channel"), ep.max(value, "row"), ep.moments(value, "all")]
    program = ep.Program(ep.store(value, torch.float16), ep.store(value < ep.random("key"), torch.bool), *sums)
    again = decode(program.code)
    assert again.code == program.code
    assert [*again.inputs.values()] == [*program.inputs.values()]
    assert [(o.kind, o.per, o.dtype) for o in again.outputs] == [(o.kind, o.per, o.dtype) for o in program.outputs]


def test_what_is_the_same_in_a_channel_is_multiplied_once():
    def summed(value):
        program = ep.Program(ep.sum(value))
        inputs, node = program.code[0], program.code[-3]
        return [*OPERANDS][program.code[3 + inputs + 5 * node]]

    a, c, d = ep.acc(), ep.channel("c"), ep.channel("d")
    for value in (a * c, c * a, -a, -(a / c), d * (a * c) / 3, a * (c * d)):
        assert summed(value) == "acc"
    assert summed(a + c) == "add"
    assert summed((a + c) * d) == "add"


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda: ep.Program(), "at least one output"),
        (lambda: ep.Program(ep.store(ep.full("a") + ep.channel("a"))), "'a' is both full and channel"),
        (lambda: ep.channel("two words"), "a Python identifier, got 'two words'"),
        (lambda: ep.channel(3), "got 3"),
        (lambda: ep.sum(ep.acc(), per="column"), "per 'channel', 'row' or 'all', got 'column'"),
        (lambda: ep.store(ep.acc(), torch.int8), "got torch.int8"),
        (lambda: ep.store(ep.acc(), per="row"), "per 'element' or 'channel', got 'row'"),
        (
            lambda: ep.store(ep.channel("c") * ep.row("r"), per="channel"),
            "stored of a channel is computed of channels'",
        ),
        (lambda: ep.activation("swish"), "got 'swish'"),
        (lambda: derivative(residual_relu(), ("weight",)), "no input 'weight'"),
        (lambda: derivative(ep.Program(ep.store(ep.random("k"))), ("k",)), "'k' is a key of random numbers"),
        (lambda: derivative(ep.Program(ep.max(ep.acc())), ("acc",), (0,)), "output 0, max of acc, has no program"),
        (
            lambda: derivative(ep.Program(ep.store(ep.channel("c"), per="channel")), ("c",), (0,)),
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
        lambda: ep.acc() + "1",
        lambda: ep.relu(torch.ones(2)),
        lambda: ep.relu(ep.acc(), 1),
        lambda: ep.Program(ep.acc()),
        lambda: 1 if ep.acc() > 0 else 2,
    ],
)
def test_what_is_no_value(write):
    with pytest.raises(TypeError, match="program"):
        write()


def test_every_operation_has_a_meaning():
    assert set(COMPUTED) == {name for name, operands in OPERANDS.items() if operands}
