"""Whole numbers in programs: those that fp32 holds are exact, and others stay PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from gpu_rules import as_on_gpus
from torch.utils._pytree import tree_leaves
from whole_number_cases import CALLS, EDGE, NANS, PLACES, PROGRAMS, large, numbers

from torch_reformer import program
from torch_reformer.program import Program

PLACES_OF = {
    "argmax": lambda x, dim: x.argmax(dim),
    "argmin": lambda x, dim: x.argmin(dim, keepdim=True),
    "max": lambda x, dim: tuple(x.max(dim, keepdim=True)),
    "min": lambda x, dim: tuple(x.min(dim)),
}


def check(function, *args) -> set[str]:
    """Compare with eager, bit by bit; returns the kinds of the plan's kernels and calls."""
    reports: list = []
    found, expected = without_dynamo(function, reports.append)(*args), function(*args)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return {line.kind for report in reports for line in report.lines}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    kinds = check(*PROGRAMS[name])
    on_gpus = {"sliced", "padded", "transposed", "transposed numbers"}  # programs compute them on GPUs only
    assert kinds <= {"stitch", "aten::_assert_async.msg"} or name in on_gpus


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS | CALLS)
def test_on_a_gpu(name):
    function, *args = (PROGRAMS | CALLS)[name]
    check(function, *(arg.cuda() for arg in args))


def test_nan_and_infinities_from_floats():
    """PyTorch leaves open what they become; on CPUs it is what its kernels make of them."""
    check(lambda x: (x.long(), x.int(), x.long().clamp(-5, 5), x.long() > 0), NANS)


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    assert any(kind.startswith("aten::") for kind in check(*CALLS[name]))


def test_long_chains_are_planned_in_linear_time():
    """Each step reads the one before twice; the last place of 600 is a chain that no recursion follows."""

    def streak(*masks):
        count = masks[0].long()
        for mask in masks[1:]:
            count = torch.where(mask, count + 1, count)
        return count

    def last(*masks):
        place = masks[0].long()
        for t, mask in enumerate(masks):
            place = torch.where(mask, t, place)
        return place

    def largest(*rows):
        most = rows[0]
        for row in rows[1:]:
            most = torch.where(row > most, row, most)
        return most.argmax(-1)

    masks = [numbers(6, 20) + t % 7 > 3 for t in range(600)]
    check(streak, *masks[:30])
    check(last, *masks)
    check(largest, *(numbers(6, 20).roll(t) for t in range(30)))


def test_a_default_type_of_fp64():
    """PyTorch compares whole numbers with a float in the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check(lambda i: (i > float(EDGE), i > 0.5), large())
    finally:
        torch.set_default_dtype(before)


def test_a_number_has_no_type_of_its_own():
    for dtype in (torch.int32, torch.int16):
        assert check(lambda x: (x // 3, x % 3, x.div(2, rounding_mode="floor")), torch.tensor(7, dtype=dtype))


@pytest.mark.parametrize("name", PLACES_OF)
@pytest.mark.parametrize("of", PLACES)
def test_places(name, of, device):
    x = PLACES[of].to(device)
    for dim in range(-1, x.dim() - 1):
        check(lambda x, dim=dim: PLACES_OF[name](x, dim), x)


def test_places_in_rows_are_one_kernel():
    assert check(lambda x: x.argmax(-1), PLACES["rows"]) == {"stitch"}


def test_elements_that_are_computed_twice_have_no_place():
    x = PLACES["rows"]
    assert "aten::argmax" in check(lambda x: (x * 3 + 1).argmax(-1), x)
    with as_on_gpus():
        assert "aten::max.dim" in check(lambda x: tuple(F.avg_pool1d(x, 2).max(-1)), PLACES["ties"])
    assert "aten::argmax" not in check(lambda x: (x.relu().neg().float()).argmax(-1), x)


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_maxima(dim, keepdim):
    for of in ("ties", "bf16", "rows"):
        leaves = [PLACES[of].clone().requires_grad_() for _ in range(2)]

        def function(x):
            values, places = x.max(dim, keepdim=keepdim)
            return values * 2, places

        for run, leaf in zip((function, without_dynamo(function, lambda _: None)), leaves, strict=True):
            run(leaf)[0].sum().backward()
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_tensors_of_a_program(dtype, layout):
    """Each kind of operand, rounded as PyTorch rounds, and what is stored, rounded towards zero."""
    n, k, h, w = size = 2, 5, 3, 7
    generator = torch.Generator().manual_seed(0)

    def whole(*sizes):
        return torch.randint(-(2**30), 2**30, sizes, generator=generator).to(dtype)

    given = {"full": whole(*size), "channel": whole(k), "row": whole(n, h, w), "plane": whole(n, k)}
    format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    given["full"] = given["full"].contiguous(memory_format=format)
    acc = torch.randn(size, generator=generator).contiguous(memory_format=format)
    tested = Program(
        *(program.store(getattr(program, kind)(kind)) for kind in given),
        program.store(program.acc() * 10, dtype),
        program.store(program.channel("channel") / 1000, dtype, per="channel"),
        program.store(program.row("row") / 1000, dtype, per="row"),
    )
    results = torch.ops.reformer.stitch(acc, [given[name] for name in tested.inputs], tested.code)
    wide = {
        "full": given["full"].float(),
        "channel": given["channel"].float().view(1, k, 1, 1).expand(size),
        "row": given["row"].float().unsqueeze(1).expand(size),
        "plane": given["plane"].float().view(n, k, 1, 1).expand(size),
    }
    for kind, result in zip(given, results, strict=False):
        assert torch.equal(result, wide[kind])
    *_, of_acc, of_channel, of_row = results
    assert of_acc.dtype == of_channel.dtype == of_row.dtype == dtype
    assert torch.equal(of_acc, (acc * 10).to(dtype))
    assert torch.equal(of_channel, (given["channel"].float() / 1000).to(dtype))
    assert torch.equal(of_row, (given["row"].float() / 1000).to(dtype))


def test_whole_numbers_are_no_reductions():
    with pytest.raises(ValueError, match="sum takes"):
        program.sum(program.acc(), dtype=torch.int64)
