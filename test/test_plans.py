"""Sequences of operators that run in one call (runtime/plan.py, csrc/plan/plan.h)."""

import functools

import pytest
import torch

import torch_reformer
from torch_reformer import program
from torch_reformer.operators import run_plan
from torch_reformer.program import Program
from torch_reformer.runtime import c_api, native, plan
from torch_reformer.runtime.aten_call import AtenCall

GEOMETRY = (1, 1), (1, 1), (1, 1), 1
DOUBLED = Program(program.store(program.acc() * 2), program.moments(program.acc()))
UPDATE = Program(
    program.store(program.acc() - program.channel("mean")),
    program.store(program.channel("running") + 0.5 * program.channel("mean"), torch.float32, per="channel"),
)


def sequence():
    """A convolution of an input and a weight, its moments, and a program that uses them and updates a running mean."""
    steps = plan.Plan(3)
    doubled, moments = steps.conv2d(DOUBLED.code, plan.geometry_number(*GEOMETRY), 0, 1, [])
    mean, squares = steps.parts(moments, 2)
    at = {"mean": mean, "running": 2}
    result, _ = steps.stitch(UPDATE.code, doubled, [at[name] for name in UPDATE.inputs], [2])
    of_input, of_weight = steps.conv2d_grads((True, True), plan.geometry_number(*GEOMETRY), result, 0, 1)
    return steps.give(result, of_input, of_weight, squares)


def test_is_what_its_steps_are():
    x, w, running = torch.randn(2, 3, 5, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
    expected_running = running.clone()
    y = torch_reformer.conv2d(x, w, padding=1)
    mean = y.mean((0, 2, 3))
    result = 2 * y - mean.view(-1, 1, 1)
    expected_running += 0.5 * mean
    squares = (y - mean.view(-1, 1, 1)).square().sum((0, 2, 3))
    of_input = torch.nn.grad.conv2d_input(x.shape, w, result, padding=1)
    of_weight = torch.nn.grad.conv2d_weight(x, w.shape, result, padding=1)
    for gradients in (False, True):  # in one call, and by the public operators
        with torch.set_grad_enabled(gradients):
            there = running.clone()
            actual = run_plan.run(sequence(), [x, w, there])
        expected = [result, of_input, of_weight, squares]
        for got, right in zip([*actual, there], [*expected, expected_running], strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def code(**changes):
    """Code of a plan with one step, the parts of its one tensor, with changes."""
    parts = dict(inputs=1, outputs=[1], kind=3, what=[2], operands=[0], into=[], frees=[], title=b"") | changes
    numbers = [parts["inputs"], len(parts["outputs"]), *parts["outputs"], parts["kind"]]
    for name in ("what", "operands", "into", "frees", "title"):
        numbers += [len(parts[name]), *parts[name]]
    return numbers


RELU = AtenCall(torch.ops.aten.relu.default, [0], {})


def aten_code(inputs=1, results=1, **changes):
    """Code of a plan with one step, a call of an operator, with changes."""
    return code(**{"kind": 5, "what": [RELU.call.number, inputs, results], **changes})


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ([], "it ends early"),
        (code()[:-1], "it ends early"),
        (code(inputs=-1), "a count"),
        (code(outputs=[3]), "a tensor that is not there"),
        (code(kind=6), r"an unknown step \(step 0\)"),
        (code(operands=[1]), "a tensor that is not there"),
        (code(operands=[0, 0]), "a step has another number of inputs"),
        (code(into=[0]), "what a step writes to"),
        (code(frees=[3]), "a tensor that is not there"),
        (code(frees=[1]), "a tensor that was freed"),
        (code(frees=[0, 0]), "a tensor that was freed"),
        (code() + [3, 1, 2, 1, 3, 0, 0, 0], "a tensor that is not there \\(step 1\\)"),
        (code(frees=[2]) + [3, 1, 2, 1, 2, 0, 0, 0], "a tensor that was freed"),
        (code(frees=[2]) + [1, 0, 0, 0, 0, 0], "it ends early \\(step 1\\)"),
        (code(title=[256]), "a byte"),
        (code(what=[2**33]), "a count"),
        (code(what=[-1]), "a count"),
        (code(what=[2, 2]), "a step is longer than what it says"),
        (code(what=[]), "it ends early"),
        (code()[:4] + [2**40], "it ends early"),
        (code()[:4] + [-1], "it ends early"),
        (code(kind=2, what=[0, 8], operands=[0, 0, 0]), "gradients that there are not"),
        (code(kind=2, what=[-1, 1], operands=[0, 0, 0]), "-1 is not a geometry"),
        (code(kind=1, what=[]), "it ends early"),
        (code(kind=4, what=[0, 65]), "a count"),
        (code(kind=4, what=[0, 1, -1, 1]), "a size"),
        (code(kind=4, what=[0, 1, 1, -1]), "a stride"),
        (code(kind=4, what=[2**60, 0]), "an offset"),
        (code(kind=4, what=[0, 2, 2**50, 2**50, 2**50, 1]), "a view of more memory than there is"),
        (code(kind=4, what=[0, 1, 3]), "it ends early"),
        (aten_code(what=[1 << 40, 1, 1]), r"no call has the number \d+ \(any more\) \(step 0\)"),
        (aten_code(what=[-1, 1, 1]), "no call has the number -1"),
        (aten_code(inputs=2), "a step has another number of inputs"),
        (aten_code(inputs=-1), "a count"),
        (aten_code(results=2**40), "a count"),
        (aten_code(results=0), "a tensor that is not there"),
        (aten_code(into=[0]), "what a step writes to"),
    ],
)
def test_malformed(numbers, sentence):
    with pytest.raises(ValueError, match=sentence):
        native.intern_plan(numbers)


def test_sentences():
    number = native.intern_plan(code())
    x = torch.randn(2, 3)
    first, *_ = torch.ops.reformer._run([x], number)
    assert torch.equal(first, x[0]) and first.data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="_run: the plan takes 1 tensors, got 2"):
        torch.ops.reformer._run([x, x], number)
    with pytest.raises(RuntimeError, match="_run: there are not so many parts"):
        torch.ops.reformer._run([x[:1]], number)
    steps = plan.Plan(2)
    tested = Program(program.store(program.acc()), program.store(program.channel("c"), torch.float32, per="channel"))
    steps.give(*steps.stitch(tested.code, 0, [1], [1]))
    for wrong in (torch.ones(6)[::2], torch.ones(3, dtype=torch.float16)):
        with pytest.raises(RuntimeError, match="stitch: output 1 can't be written to a tensor of size"):
            torch.ops.reformer._run([torch.ones(1, 3, 2, 2), wrong], steps.number)


def test_parts_of_a_tensor_that_begins_within_another():
    steps = plan.Plan(1)
    steps.give(*steps.parts(0, 2))
    x = torch.arange(12.0).view(4, 3)
    for actual, expected in zip(plan.run(steps, [x[1:]]), x[1:3], strict=True):
        assert torch.equal(actual, expected)


def test_numbers_are_not_given_twice():
    before = native.interned_counts()[1]
    number = native.intern_plan(code())
    assert native.interned_counts()[1] == before + 1
    c_api.release_plan(number)
    c_api.release_plan(number)  # has no effect
    assert native.interned_counts()[1] == before
    another = native.intern_plan(code())
    assert another > number
    for stale in (number, another + 1, -1):
        with pytest.raises(RuntimeError, match=f"_run: no plan has the number {stale}"):
            torch.ops.reformer._run([torch.ones(2, 3)], stale)
    c_api.release_plan(another)


def test_a_sequence_is_released_with_its_object():
    steps = sequence()
    before, number = native.interned_counts()[1], steps.number
    assert native.interned_counts()[1] == before + 1
    del steps
    assert native.interned_counts()[1] == before
    with pytest.raises(RuntimeError, match=f"_run: no plan has the number {number}"):
        torch.ops.reformer._run([torch.ones(2, 3)], number)


@pytest.mark.parametrize("geometry", [GEOMETRY, ((255, 3), (0, 255), (1, 2), 2**15 - 1)])
def test_geometries_are_packed(geometry):
    assert plan.geometry_of(plan.geometry_number(*geometry)) == geometry


@pytest.mark.parametrize("changes", [dict(stride=256), dict(padding=256, stride=300), dict(groups=2**15)], ids=str)
def test_geometries_that_are_too_large_to_be_packed(changes):
    """They run by the public operators."""
    groups = changes.get("groups", 1)
    x, w = torch.randn(2, groups, 5, 6, requires_grad=True), torch.randn(groups, 1, 3, 3, requires_grad=True)
    fused = functools.partial(torch_reformer.conv2d_act, activation="none")
    expected, *actual = (each(x, w, None, **changes) for each in (torch.conv2d, torch_reformer.conv2d, fused))
    wanted = torch.autograd.grad(expected.sum(), (x, w))
    for y in actual:
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w)), wanted)
    with torch.no_grad():
        torch.testing.assert_close(torch_reformer.conv2d(x, w, None, **changes), expected)
    if groups > 1:
        norm = torch_reformer.conv2d_batch_norm_act(x, w, None, None, None, training=True, activation="none", **changes)
        right = torch.nn.functional.batch_norm(expected, None, None, training=True)
        torch.testing.assert_close(norm, right, atol=1e-4, rtol=1e-4)
