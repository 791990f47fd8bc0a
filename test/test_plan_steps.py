"""Plan steps that run by PyTorch's dispatcher, views, and the order in which tensors are freed."""

import gc
import threading
import weakref

import pytest
import torch
from expecttest import assert_expected_inline
from hypothesis import given
from hypothesis import strategies as st

import torch_reformer
from torch_reformer import program as ep
from torch_reformer.operators import run_plan
from torch_reformer.runtime import c_api, plan

aten = torch.ops.aten
DOUBLED = ep.Program(ep.store(ep.acc() * 2))
GEOMETRY = plan.geometry_number((1, 1), (1, 1), (1, 1), 1)


def called(operator, args=(), kwargs=None, lengths=(), inputs=0):
    """A plan with one call."""
    steps = plan.Plan(inputs)
    return steps.give(*steps.aten(operator, args, kwargs, lengths))


def test_views():
    steps = plan.Plan(1)
    (row,) = steps.view(0, (4,), (1,), 4)
    (column,) = steps.view(row, [2], [4], 1)
    (before,) = steps.view(row, (), (), -4)
    (empty,) = steps.view(0, (3, 0), (1, 1), 2)
    steps.give(row, column, before, empty)
    base = torch.arange(20.0)
    x = base[4:].view(4, 4)
    actual = plan.run(steps, [x])
    expected = [x[1], torch.stack([x[1, 1], x[2, 1]]), x[0, 0], torch.empty(3, 0)]
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
        assert one.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert all(map(torch.equal, actual, run_plan.run(steps, [x.requires_grad_()])))
    with pytest.raises(ValueError, match=r"a view has as many strides as sizes, got 1 and 2"):
        plan.Plan(1).view(0, [2, 2], [1])


@pytest.mark.parametrize("view", [((5,), (4,), 0), ((4, 4), (4, 1), 1), ((1,), (1,), -5), ((0,), (1,), 17)])
def test_views_beyond_memory(view):
    steps = plan.Plan(1)
    steps.give(*steps.view(*steps.view(0, (4, 4), (4, 1), 0), *view))
    with pytest.raises(RuntimeError, match=r"the view reaches beyond the tensor's memory \[step 1 of the plan: view\]"):
        plan.run(steps, [torch.rand(20)[4:].clone()])


def test_outputs_that_are_inputs_or_views_of_them():
    steps = plan.Plan(2)
    (turned,) = steps.aten(aten.t.default, (0,))
    (twice,) = steps.aten(aten.mul.Tensor, (0, 0))
    steps.give(0, turned, twice, 0, twice)
    x = torch.rand(2, 3)
    same, view, square, again, square_again = plan.run(steps, [x, x])
    assert same is x and again is x
    assert view.data_ptr() == x.data_ptr() and torch.equal(view, x.t())
    assert square is square_again
    assert plan.run(plan.Plan(1).give(0), [x])[0] is x


def test_writes_in_place():
    """ATen's in-place operators and those with `out`, and programs that write channels, into inputs and into new
    tensors."""
    steps = plan.Plan(4)
    (in_place,) = steps.aten(aten.mul_.Tensor, (0, 1))
    (out,) = steps.aten(aten.mm.out, (0, 1), {"out": 2})
    (zeros,) = steps.aten(aten.zeros.default, ([2, 2],))
    (filled,) = steps.aten(aten.copy_.default, (zeros, in_place))
    assert not steps.aten(aten._foreach_mul_.List, ([zeros, 3], [1, 1]))
    steps.give(in_place, out, filled)
    x, y, z, w = (torch.rand(2, 2) for _ in range(4))
    first, last = x.clone(), w.clone()
    results = plan.run(steps, [x, y, z, w])
    assert results[0] is x and results[1] is z
    for one, other in zip([*results, w], [first * y, first * y @ y, first * y * y, last * y], strict=True):
        torch.testing.assert_close(one, other)


def mixed():
    """Steps of all kinds, for an image, a weight, sums per channel and an unused tensor."""
    steps = plan.Plan(4)
    (y,) = steps.conv2d(DOUBLED.code, GEOMETRY, 0, 1, [])
    (sums,) = steps.aten(aten.sum.dim_IntList, (y, [0, 2, 3]))
    first, second = steps.aten(aten.split.Tensor, (y, 2, 1), lengths=[2])
    (square,) = steps.view(first, (8, 8), (8, 1))
    (product,) = steps.aten(aten.mm.default, (square, square))
    steps.aten(aten.mul_.Tensor, (2, sums))
    (second,) = steps.aten(aten.relu_.default, (second,))
    top, _ = steps.aten(aten.max.dim, (product, 0))
    (of_input,) = steps.conv2d_grads((True, False), GEOMETRY, y, 0, 1)
    return steps.give(top, second, of_input)


def test_text():
    assert_expected_inline(
        str(mixed()),
        """\
given %0, %1, %2, %3
%4 = conv2d(%0, %1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)  # frees %3
%5 = aten::sum.dim_IntList(%4, [0, 2, 3], False, dtype=None)
%6, %7 = aten::split.Tensor(%4, 2, 1)
%8 = view(%6, sizes=(8, 8), strides=(8, 1), offset=0)  # frees %6
%9 = aten::mm(%8, %8)  # frees %8
%10 = aten::mul_.Tensor(%2, %5)  # writes %2; frees %2, %5, %10
%11 = aten::relu_(%7)  # writes %7; frees %7
%12, %13 = aten::max.dim(%9, 0, False)  # frees %9, %13
%14 = conv2d_grads(%4, %0, %1, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)  # frees %0, %1, %4
gives %12, %11, %14""",
    )


def test_is_what_its_steps_are():
    x, w, sums, other = torch.rand(1, 3, 4, 8) - 0.5, torch.rand(4, 3, 3, 3) - 0.5, torch.rand(4), torch.rand(2)
    steps, results = mixed(), []
    for gradients in (False, True):  # in one call, and step by step
        with torch.set_grad_enabled(gradients):
            there = sums.clone()
            results.append([*run_plan.run(steps, [x, w, there, other]), there])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)
    y = 2 * torch_reformer.conv2d(x, w, padding=1)
    torch.testing.assert_close(results[0][1], y[:, 2:].relu())
    torch.testing.assert_close(results[0][3], sums * y.sum((0, 2, 3)))


def test_gradients_through_steps():
    """If gradients are needed the plan runs step by step, and autograd sees the operators."""
    steps = plan.Plan(2)
    (product,) = steps.aten(aten.mm.default, (0, 1))
    (row,) = steps.view(product, (2,), (2,), 1)
    steps.give(*steps.aten(aten.sum.dim_IntList, (row, None)))
    x, y = torch.rand(2, 3, requires_grad=True), torch.rand(3, 2, requires_grad=True)
    actual = torch.autograd.grad(run_plan.run(steps, [x, y])[0], (x, y))
    expected = torch.autograd.grad((x @ y)[:, 1].sum(), (x, y))
    assert all(map(torch.equal, actual, expected))


class Watch:
    """An operator in Python that records which earlier tensors are alive at each call, and can run a callback."""

    def __init__(self, library: torch.library.Library):
        self.seen: list[weakref.ref] = []
        self.alive: list[list[bool]] = []
        self.then = lambda: None
        library.define("step(Tensor x) -> Tensor")
        library.impl("step", self.step, "CPU")

    def step(self, x):
        self.alive.append([reference() is not None for reference in self.seen])
        self.then()
        result = x + 1
        self.seen.append(weakref.ref(result))
        return result


@pytest.fixture
def watch():
    with torch.library._scoped_library("plan_steps", "FRAGMENT") as library:
        yield Watch(library)


def test_frees_at_the_last_use(watch):
    steps = plan.Plan(1)
    (a,) = steps.aten(torch.ops.plan_steps.step.default, (0,))
    (b,) = steps.aten(torch.ops.plan_steps.step.default, (a,))
    (c,) = steps.aten(torch.ops.plan_steps.step.default, (b,))
    steps.aten(torch.ops.plan_steps.step.default, (0,))
    (e,) = steps.aten(torch.ops.plan_steps.step.default, (a,))
    steps.give(e, c)
    with torch.no_grad():
        results = plan.run(steps, [torch.rand(2)])
    # b is freed after c exists, an unused tensor at once, a after its last use; outputs stay.
    assert watch.alive == [[], [True], [True, True], [True, False, True], [True, False, True, False]]
    gc.collect()
    assert [reference() is not None for reference in watch.seen] == [False, False, True, False, True]
    assert all(any(tensor is reference() for tensor in results) for reference in watch.seen[2::2])


def test_frees_what_it_is_given(watch):
    """Inputs are freed unless the caller refers to them, as callers of an operator with a list of tensors do."""
    steps = plan.Plan(3)
    (a,) = steps.aten(torch.ops.plan_steps.step.default, (0,))
    (b,) = steps.aten(torch.ops.plan_steps.step.default, (1,))
    steps.give(*steps.aten(aten.cat.default, ([a, b, 2],)))
    for run, is_freed in ((plan.run, False), (plan.run_and_free, True)):
        tensors = [torch.rand(2) for _ in range(3)]
        watch.seen, watch.alive = [weakref.ref(tensor) for tensor in tensors], []
        expected, held = torch.cat([tensors[0] + 1, tensors[1] + 1, tensors[2]]), tensors[2]
        with torch.no_grad():
            assert torch.equal(run(steps, tensors)[0], expected)
        assert watch.alive[1][:3] == [not is_freed, True, True]
        assert (tensors == []) is is_freed and held.shape == (2,)


def test_held_tensors_are_for_one_run():
    steps = plan.Plan(0)
    (zeros,) = steps.aten(aten.zeros.default, ([2, 3],))
    assert torch.equal(plan.run_and_free(steps.give(zeros), [])[0], torch.zeros(2, 3))
    held = torch.ops.reformer._hold([torch.rand(2)])
    with pytest.raises(RuntimeError, match="the plan takes 0 tensors, got 1"):
        torch.ops.reformer._run_held(held, steps.number)
    with pytest.raises(RuntimeError, match=f"_run_held: no tensors are held by the number {held}"):
        torch.ops.reformer._run_held(held, steps.number)


def test_a_plan_that_is_released_while_it_runs(watch):
    steps = called(torch.ops.plan_steps.step.default, (0,), inputs=1)
    number = steps.number
    watch.then = lambda: c_api.release_plan(number)
    x = torch.rand(2)
    torch.testing.assert_close(plan.run(steps, [x])[0], x + 1)
    with pytest.raises(RuntimeError, match="no plan has the number"):
        plan.run(steps, [x])


def test_a_plan_inside_of_a_plan(watch):
    inner, results = mixed(), []
    inputs = [torch.rand(1, 3, 4, 8), torch.rand(4, 3, 3, 3), torch.rand(4), torch.rand(2)]
    watch.then = lambda: results.extend(plan.run(inner, inputs))
    outer = plan.Plan(1)
    (a,) = outer.aten(torch.ops.plan_steps.step.default, (0,))
    outer.give(*outer.aten(aten.cat.default, ([0, a],)))
    x = torch.rand(2)
    assert torch.equal(plan.run(outer, [x])[0], torch.cat([x, x + 1]))
    assert len(results) == 3


def test_errors_name_the_step(watch, capfd):
    steps = plan.Plan(1)
    (a,) = steps.aten(aten.relu.default, (0,))
    steps.give(*steps.aten(aten.mm.default, (a, 0)))
    with pytest.raises(RuntimeError, match=r"\[step 1 of the plan: aten::mm\]") as error:
        plan.run(steps, [torch.rand(2, 3)])
    assert "cannot be multiplied (2x3 and 2x3)" in str(error.value) + capfd.readouterr().err
    steps = called(aten.unbind.int, (0,), lengths=[3], inputs=1)
    expected = r"it gave a list of 2 tensors; the plan says 3 \[step 0 of the plan: aten::unbind\]"
    with pytest.raises(RuntimeError, match=expected):
        plan.run(steps, [torch.rand(2)])
    with pytest.raises(RuntimeError, match="aten::unbind.int gave a list of 2 tensors; the plan says 3"):
        run_plan.run(steps, [torch.rand(2, requires_grad=True)])
    steps = plan.Plan(1)
    (a,) = steps.aten(aten.relu.default, (0,))
    steps.give(*steps.stitch(DOUBLED.code, a, []))
    with pytest.raises(RuntimeError, match=r"reformer::stitch: .*\[step 1 of the plan: stitch\]"):
        plan.run(steps, [torch.rand(2)])

    def fail():
        raise KeyError("of the operator's own")

    watch.then = fail
    with pytest.raises(RuntimeError, match=r"\[step 0 of the plan: plan_steps::step\]"):
        plan.run(called(torch.ops.plan_steps.step.default, (0,), inputs=1), [torch.rand(2)])


@pytest.mark.gpu
def test_one_device():
    """All tensors except numbers, which may be on the CPU."""
    steps = called(aten.mul.Tensor, (0, 1), inputs=2)
    x, number = torch.rand(2, 3, device="cuda"), torch.tensor(2.0)
    assert torch.equal(plan.run(steps, [x, number])[0], 2 * x)
    assert torch.equal(plan.run(steps, [number, x])[0], 2 * x)
    for tensors in ([x, torch.rand(3)], [torch.rand(3), x]):
        with pytest.raises(RuntimeError, match="_run: tensor 1 of the plan is on another device than those before it"):
            plan.run(steps, tensors)


def test_threads():
    steps, number = mixed(), mixed().number
    inputs = [[torch.rand(1, 3, 4, 8), torch.rand(4, 3, 3, 3), torch.rand(4), torch.rand(2)] for _ in range(4)]
    expected = [plan.run(steps, [tensor.clone() for tensor in tensors]) for tensors in inputs]
    wrong = []

    def work(i):
        for _ in range(100):
            actual = plan.run(steps, [each.clone() for each in inputs[i]])
            if not all(map(torch.equal, actual, expected[i])):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and number >= 0


ATEN = {
    aten.relu_.default: 1,
    aten.abs_.default: 1,
    aten.sigmoid.default: 1,
    aten.t.default: 1,
    aten.mul.Tensor: 2,
    aten.mm.default: 2,
}
KINDS = [*ATEN, "view", "stitch", "sort", "split"]


@given(st.data())
def test_random_graphs(data):
    """Compare with separate calls: views, writes through them, several results, unused ones, empty tensors."""
    count, size = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    steps, tensors = plan.Plan(count), [torch.rand(size, size) - 0.5 for _ in range(count)]
    there, matrices = [tensor.clone() for tensor in tensors], list(range(count))

    def call(operator, *args, lengths=()):
        numbers = steps.aten(operator, args, lengths=lengths)
        step = steps.steps[-1].call
        there.extend(step.run([there[i] for i in step.inputs]))
        return numbers

    for kind in data.draw(st.lists(st.sampled_from(KINDS), max_size=12)):
        one, two = (data.draw(st.sampled_from(matrices)) for _ in range(2))
        if kind in ATEN:
            matrices += call(kind, *(one, two)[: ATEN[kind]])
        elif kind == "view":
            matrices += steps.view(one, (size, size), there[one].stride()[::-1])
            there.append(there[one].t())
        elif kind == "stitch":
            (image,) = call(aten.view.default, *call(aten.clone.default, one), [1, 1, size, size])
            (result,) = steps.stitch(DOUBLED.code, image, [])
            there.append(2 * there[image])
            matrices += call(aten.view.default, result, [size, size])
        elif kind == "sort":
            matrices.append(call(aten.sort.default, one)[0])
        else:
            (joined,) = call(aten.cat.default, [one, two])
            matrices += call(aten.split_with_sizes.default, joined, [size, size], lengths=[2])
    outputs = data.draw(st.lists(st.sampled_from(matrices), max_size=4))
    results = plan.run(steps.give(*outputs), tensors)
    for one, other in zip([*results, *tensors], [there[i] for i in (*outputs, *range(count))], strict=True):
        torch.testing.assert_close(one, other)
