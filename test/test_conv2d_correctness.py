"""The operators against PyTorch's own, over random geometries, data types and strides, by every solver that applies."""

import itertools

import pytest
import torch
from cases import (
    DTYPES,
    STRIDES,
    Case,
    by_pytorch,
    cases,
    chosen_for,
    directions,
    examples,
    expected_rounding,
    in_double,
    ops,
    significant_strides,
    solvers_for,
    strided,
    values,
)
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_reformer
from torch_reformer import ConvProblem, config, conv2d
from torch_reformer.selector.candidates import candidates


def is_transformed(solver: str) -> bool:
    """True for Winograd: its transforms round where a plain sum would not, and spread non-finite values over a tile."""
    return solver.startswith("winograd")


def same(a, b) -> bool:
    """True if all elements are equal, NaN included."""
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def check_accuracy(got, exact, by_torch, spread, solver, count):
    """Check that the error against fp64 is at most twice PyTorch's plus a few units in the last place of the scale.

    The scale is the root of the sum of squares of the terms, which unlike the result does not cancel. (fp64 is no more
    exact than the reference: more units are allowed there.)

    In three cases PyTorch's error is no measure, and counts as at least three standard deviations of an ordinary sum of
    as many products: among a few elements it may be small by luck; Winograd's transforms round integers, too, which
    PyTorch adds up exactly (test_winograd.py compares the two where PyTorch uses oneDNN); and for PyTorch's own kernels
    in another layout.
    """
    units = 64 if got.dtype == torch.float64 else 4
    scale = spread.max().sqrt().item()
    floor = units * torch.finfo(got.dtype).eps * scale
    error, theirs = ((result.double() - exact).abs().max().item() for result in (got, by_torch))
    if got.dtype != torch.float64 and (exact.numel() < 32 or is_transformed(solver) or solver.startswith("aten")):
        theirs = max(theirs, 3 * expected_rounding(solver, count) * torch.finfo(torch.float32).eps * scale)
    assert error <= 2 * theirs + floor, f"error {error:.3g}, PyTorch's {theirs:.3g}, floor {floor:.3g}"


@settings(max_examples=examples(250))
@given(
    case=cases(),
    dtype=st.sampled_from(DTYPES),
    strides=st.tuples(*[st.sampled_from(STRIDES)] * 3),
    has_bias=st.booleans(),
    integers=st.booleans(),
    threads=st.sampled_from([1, 1, 2, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_solver_agrees_with_pytorch(case, dtype, strides, has_bias, integers, threads, seed):
    # Equal terms are rounded alike: their errors add up, and the test would compare summation orders.
    integers = integers or "expanded" in strides
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(seed)
    sizes = case.input_size, case.weight_size, case.output_size
    x, w, y = (strided(values(s, dtype, generator, integers), how) for s, how in zip(sizes, strides, strict=True))
    bias = values((case.k,), dtype, generator, integers) if has_bias else None

    for direction, ((first, second), run) in directions(case, x, w, y, bias).items():
        added = bias if direction == "F" else None
        exact = in_double(case, direction, first, second, added)
        theirs = by_pytorch(case, direction, first, second, added)
        squares = (None if added is None else added.double().square(),)
        spread = in_double(case, direction, first.double().square(), second.double().square(), *squares)
        default = run(first, second)
        problem = case.problem(direction, first, second, added is not None)
        for solver in (None, *solvers_for(problem)):
            event(f"{direction} {solver}")
            with config(force=solver):
                got = run(first, second)
                again = run(first, second)
            assert got.shape == exact.shape and got.dtype == dtype
            assert significant_strides(got) == significant_strides(default)
            assert torch.equal(got, again), f"{solver}: {direction} is not repeatable"
            try:
                if integers and solver and not is_transformed(solver) and not solver.startswith("aten"):
                    assert torch.equal(got, exact.to(dtype)), "integers are not exact"
                check_accuracy(got, exact, theirs, spread, solver or chosen_for(problem), case.summed(direction))
            except AssertionError as error:
                raise AssertionError(f"{solver}, {direction}: {error}") from error


@pytest.mark.parametrize(
    ("direction", "case"),
    [
        ("F", Case(n=1, c=2, h=4, w=3, k=4, stride=(1, 2), groups=2)),
        ("F", Case(n=2, c=8, h=6, w=6, k=24, r=2, s=5, stride=(1, 3), groups=8)),
        ("W", Case(n=2, c=16, h=6, w=1, k=3, r=5, s=5, padding=(0, 2), stride=(3, 2))),
        ("W", Case(n=3, c=17, h=8, w=1, k=8, r=5, s=3, padding=(1, 1), stride=(3, 2))),
        ("W", Case(n=1, c=1, h=2, w=2, k=16, r=2, s=2, stride=(1, 3))),
        ("W", Case(n=2, c=17, h=1, w=1, k=8, r=2, s=3, padding=(1, 2), stride=(2, 2))),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_no_element_is_left_out(direction, case, threads):
    """oneDNN's bf16 kernels leave some out, depending on processor and layout (csrc/dispatch/aten_solvers.cpp)."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    sizes = case.input_size, case.weight_size, case.output_size
    for how, _ in itertools.product(STRIDES[:2], range(10)):
        x, w, y = (strided(values(size, torch.bfloat16, generator, True), how) for size in sizes)
        (first, second), run = directions(case, x, w, y)[direction]
        exact = in_double(case, direction, first, second).bfloat16()
        for solver in (None, *solvers_for(case.problem(direction, first, second))):
            freed = [torch.full(exact.shape, 3e4, dtype=torch.bfloat16) for _ in range(4)]
            del freed
            with config(force=solver):
                assert torch.equal(run(first, second), exact), solver


@settings(max_examples=examples(150))
@given(case=cases(), dtype=st.sampled_from(DTYPES), strides=st.tuples(*[st.sampled_from(STRIDES)] * 2))
def test_strides_are_those_of_pytorch(case, dtype, strides):
    assume(not case.has_idle_column)
    x, w = (
        strided(torch.ones(s, dtype=dtype), how)
        for s, how in zip((case.input_size, case.weight_size), strides, strict=True)
    )
    ours, theirs = (conv(x, w, None, *case.geometry) for conv in (torch_reformer.conv2d, torch.conv2d))
    assert significant_strides(ours) == significant_strides(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("formats", [(a, b) for a in STRIDES[:2] for b in STRIDES[:2]], ids="-".join)
def test_strides_of_gradients_are_those_of_pytorch(formats, dtype):
    for case in (Case(), Case(c=16, r=1, s=1), Case(groups=2), Case(c=6, groups=6), Case(k=1), Case(n=1)):
        x, w = (
            strided(torch.ones(size, dtype=dtype), how).requires_grad_()
            for size, how in zip((case.input_size, case.weight_size), formats, strict=True)
        )
        results = []
        for conv in (torch_reformer.conv2d, torch.conv2d):
            result = conv(x, w, None, *case.geometry)
            gradients = torch.autograd.grad(result, (x, w), torch.ones_like(result))
            results.append([significant_strides(gradient) for gradient in gradients])
        assert results[0] == results[1], case


@settings(max_examples=examples(100))
@given(
    case=cases(),
    dtype=st.sampled_from(DTYPES),
    value=st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    nhwc=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_not_finite_propagates(case, dtype, value, nhwc, seed):
    """NaN and infinity appear where they do in plain loops in fp64.

    One operand has a non-finite element, the other has zeros. Products with padding may add to them where that depends
    on the kernel, as in PyTorch.
    """
    generator = torch.Generator().manual_seed(seed)
    how = "channels_last" if nhwc else "contiguous"
    sizes = case.input_size, case.weight_size, case.output_size
    for direction, poisoned in itertools.product("FBW", (0, 1)):
        (first, second), run = directions(case, *(strided(values(s, dtype, generator, True), how) for s in sizes))[
            direction
        ]
        tensor = (first, second)[poisoned]
        at = torch.randint(tensor.numel(), (), generator=generator)
        tensor[tuple(torch.unravel_index(at, tensor.shape))] = value
        # Kernels read borders of zeros around the input, in input_grad around grad_output, in weight_grad around both.
        meets_padding = direction == "W" or (poisoned == 0 if direction == "B" else poisoned == 1)
        with config(force="reference"):
            exact = run(first.double(), second.double())
        if case.padding == (0, 0):
            assert same(exact, in_double(case, direction, first, second))
        for solver in (None, *solvers_for(case.problem(direction, first, second))):
            with config(force=solver):
                got = run(first, second)
            if meets_padding or solver is None or is_transformed(solver) or solver.startswith("aten"):
                assert not got[~exact.isfinite()].isfinite().any(), f"{solver}, {direction}"
            else:
                assert same(got, exact.to(dtype)), f"{solver}, {direction}"


EMPTY = [
    Case(n=0),
    Case(n=0, groups=2),
    Case(n=0, r=1, s=1, stride=(2, 2)),
    Case(c=0),
    Case(c=0, k=4, groups=2),
    Case(h=0, padding=(2, 1)),
    Case(k=0),
]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("how", STRIDES[:2])
@pytest.mark.parametrize("case", EMPTY, ids=str)
def test_empty_sums(case, how, has_bias):
    """Empty sums give results that are empty, zero, or the bias alone.

    PyTorch refuses some of these; for an input without channels it returns an output without channels, whatever the
    weight's size.
    """
    x, w, y = (strided(torch.ones(size), how) for size in (case.input_size, case.weight_size, case.output_size))
    bias = torch.arange(float(case.k)) if has_bias else None
    for direction, ((first, second), run) in directions(case, x, w, y, bias).items():
        got = run(first, second)
        assert got.shape == {"F": case.output_size, "B": case.input_size, "W": case.weight_size}[direction]
        if 0 in first.shape or 0 in second.shape:
            expected = bias.view(1, -1, 1, 1) if has_bias and direction == "F" else torch.zeros(())
            assert torch.equal(got, expected.expand_as(got))
    ours = torch_reformer.conv2d(x.requires_grad_(), w.requires_grad_(), bias, *case.geometry)
    assert [g.shape for g in torch.autograd.grad(ours.sum(), (x, w))] == [x.shape, w.shape]


@pytest.mark.parametrize("case", EMPTY[:3], ids=str)
def test_empty_batch_is_as_in_pytorch(case):
    for how in STRIDES[:2]:
        x, w = strided(torch.ones(case.input_size), how), strided(torch.ones(case.weight_size), how)
        ours, theirs = (conv(x, w, None, *case.geometry) for conv in (torch_reformer.conv2d, torch.conv2d))
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride()


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("padding", ["same", "valid", 1, (2, 1), [1]])
@pytest.mark.parametrize("filter_size", [(3, 3), (2, 5), (4, 1), (1, 1)])
def test_named_padding_and_unbatched_input(filter_size, padding, unbatched):
    generator = torch.Generator().manual_seed(0)
    x, w = (
        values((2, 3, 7, 8), torch.float64, generator, True),
        values((4, 3, *filter_size), torch.float64, generator, True),
    )
    x = x[0] if unbatched else x
    for dilation in (1, (2, 1)):
        ours, theirs = (
            conv(x, w, None, 1, padding, dilation) for conv in (torch_reformer.conv2d, torch.nn.functional.conv2d)
        )
        assert torch.equal(ours, theirs)


HUGE = 2**30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("geometry", [dict(stride=HUGE, padding=HUGE, dilation=HUGE), dict(stride=HUGE)], ids=str)
def test_pixels_beyond_32_bits(geometry, nhwc, dtype):
    """Kernels count positions in 32 bits and refuse larger problems; PyTorch's own kernel remains."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    x, w = torch.randn(1, 4, 3, 3), torch.randn(4, 4, 2, 2)
    x, w = (tensor.to(dtype, memory_format=layout).requires_grad_() for tensor in (x, w))
    wide_x, wide_w = (tensor.detach().float().requires_grad_() for tensor in (x, w))
    y, expected = conv2d(x, w, **geometry), torch.conv2d(wide_x, wide_w, **geometry)
    actual = torch.autograd.grad(y.sum(), (x, w))
    wanted = torch.autograd.grad(expected.sum(), (wide_x, wide_w))
    for tensor, right in zip((y, *actual), (expected, *wanted), strict=True):
        torch.testing.assert_close(tensor.float(), right, atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize("device", ["cpu-avx512-2t", "sm_90"])
def test_only_pytorch_counts_beyond_32_bits(device):
    problem = ConvProblem(1, 4, 3, 3, 4, 2, 2, HUGE, HUGE, HUGE, HUGE, HUGE, HUGE)
    refusals = {candidate.name: candidate.reason for candidate in candidates(problem, device)}
    assert refusals.pop("aten") is None
    assert refusals and all(why is not None for why in refusals.values())
    assert "kernels count pixels by 32 bits" in refusals["reference" if device != "sm_90" else "aten_nhwc"]


@pytest.mark.parametrize(
    "sizes", [((2, 0, 4, 4), (3, 0, 3, 3)), ((0, 4, 4, 4), (3, 4, 3, 3)), ((2, 4, 4, 4), (0, 4, 3, 3))]
)
def test_strides_of_empty_results_are_those_of_pytorch(sizes):
    x, w = (torch.ones(size, dtype=torch.float64, requires_grad=True) for size in sizes)
    y = conv2d(x, w)
    for result in (y, *torch.autograd.grad(y.sum(), (x, w))):
        assert result.stride() == torch.empty(result.shape).stride()
    with FakeTensorMode() as mode:
        assert conv2d(mode.from_tensor(x), mode.from_tensor(w)).stride() == y.stride()
    assert torch.autograd.gradcheck(conv2d, (x, w))


def test_bias_grad_is_the_sum_over_pixels():
    grad = torch.randn(3, 5, 4, 2)
    assert torch.equal(ops.conv2d_bias_grad(grad), grad.sum((0, 2, 3)))


def test_results_do_not_depend_on_where_a_tensor_starts():
    """Loads from a buffer that is not aligned to a vector."""
    case = Case(n=2, c=16, h=9, w=9, k=24)
    storage = torch.randn(2 * 16 * 9 * 9 + 3)
    w = torch.randn(case.weight_size)
    for offset in range(4):
        x = storage[offset : offset + 2 * 16 * 9 * 9].view(case.input_size)
        for solver in solvers_for(case.problem("F", x, w)):
            with config(force=solver):
                assert torch.equal(ops.conv2d(x, w), ops.conv2d(x.clone(), w)), solver
