"""Whole numbers in programs: those that fp32 holds are exact, and others stay PyTorch's."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from against_eager import without_dynamo
from gpu_rules import as_on_gpus
from torch.utils._pytree import tree_leaves
from whole_number_cases import CALLS, EDGE, NANS, PLACES, PROGRAMS, edges, large, numbers, pairs

from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret

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
    # Programs compute them on GPUs only.
    on_gpus = {"sliced", "padded", "transposed", "transposed numbers", "two numbers", "views of limited ones"}
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


@pytest.mark.parametrize("name", ["chosen among", "limited", "limited by others", "wider"])
def test_what_is_chosen_is_not_computed_before(name):
    """A kernel compares what the operator has chosen among, not its result."""
    reports: list = []
    function, *args = PROGRAMS[name]
    without_dynamo(function, reports.append)(*args)
    operations = {each.split("[")[0] for report in reports for line in report.lines for each in line.operations}
    assert not operations & {"where", "clamp", "maximum", "minimum", "_to_copy", "scalar_tensor"}


def test_numbers_that_are_written_after_they_were_limited():
    def function(i, j):
        limited = i.clamp(min=0)
        i.add_(1)
        return limited[:, None] == i, limited[:, None] == j

    mine, eager = edges(), edges()
    found, expected = without_dynamo(function, lambda _: None)(mine, edges()), function(eager, edges())
    assert torch.equal(mine, eager) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("rules", [contextlib.nullcontext, as_on_gpus])
def test_windows_of_what_is_chosen(rules):
    """Their elements are not along the dimensions of what they were chosen among."""
    number = 2**53
    columns, rows = torch.arange(6).view(6, 1) * number, torch.arange(10) * number
    is_there = torch.ones(6, 10, dtype=torch.bool)
    with rules():
        check(lambda i, t: torch.where(t, i, -1).flatten()[:16].unfold(0, 8, 1) == number, columns, is_there)
        check(lambda i, t: torch.where(t, i, -1).as_strided((8, 8), (1, 1)) == number, columns, is_there)
        check(lambda i, t: torch.where(t, i, -1).flatten()[:16].unfold(0, 8, 1) == 5 * number, rows, is_there)


def test_sizes_of_symbols():
    def function(i):
        filled = torch.full_like(i, i.shape[0])
        of_sizes = filled <= i[:1], torch.minimum(filled, i) <= i[:1], torch.where(i > 0, i, i.shape[0]) <= i[:1]
        return pairs(i.clamp(max=i.shape[0]), i), i < i.shape[0], of_sizes

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="reformer", dynamic=True)
    for size in (9, 20, 61):
        numbers = edges()[:size]
        assert all(map(torch.equal, tree_leaves(compiled(numbers)), tree_leaves(function(numbers))))


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


KINDS_OF_LEAVES = "full", "channel", "row", "plane", "scalar", "table"


def digits_of_leaves(layout: str, dtype: torch.dtype):
    """A program that stores all digits of an input of each kind, the call's result, and its tensors."""
    n, k, h, w = size = 2, 5, 3, 7
    format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    numbers = edges(dtype)
    generator = torch.Generator().manual_seed(0)
    sizes = {"full": size, "channel": (k,), "row": (n, h, w), "plane": (n, k), "scalar": (1,), "table": (4, k)}
    tensors = {kind: numbers[torch.randint(len(numbers), sizes[kind], generator=generator)] for kind in KINDS_OF_LEAVES}
    tensors["full"] = tensors["full"].contiguous(memory_format=format)
    tensors["table_index"] = torch.randint(4, (n, h, w), generator=generator)
    kinds = KINDS_OF_LEAVES if layout == "nhwc" else KINDS_OF_LEAVES[:-1]
    leaves = [program.digit(getattr(program, kind)(kind), i) for kind in kinds for i in (1, 2, 3)]
    return Program(*map(program.store, leaves)), torch.zeros(size).contiguous(memory_format=format), tensors


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("wide", [False, True])
def test_digits_of_leaves(dtype, layout, wide):
    """Three digits make the number again, in fp32 and fp64."""
    tested, acc, tensors = digits_of_leaves(layout, dtype)
    acc = acc.double() if wide else acc
    given = [tensors[name] for name in tested.inputs]
    results = torch.ops.reformer.stitch(acc, given, tested.code)
    by_operators = interpret(tested, acc.shape, acc.dtype, tensors)
    whole = {
        "full": tensors["full"],
        "channel": tensors["channel"].view(1, -1, 1, 1),
        "row": tensors["row"].unsqueeze(1),
        "plane": tensors["plane"][:, :, None, None],
        "scalar": tensors["scalar"],
        "table": tensors["table"][tensors["table_index"]].permute(0, 3, 1, 2),
    }
    for of in (results, by_operators):
        for i, kind in enumerate([kind for kind in KINDS_OF_LEAVES if kind in tested.inputs]):
            low, middle, high = (digit.long() for digit in of[3 * i : 3 * i + 3])
            assert torch.equal(low + (middle << 24) + (high << 48), whole[kind].long().expand(acc.shape)), kind
    again = program.program.decode(tested.code)
    assert again.code == tested.code and "full t0 digit 3" in str(again)


def test_only_inputs_of_whole_numbers_have_digits():
    with pytest.raises(ValueError, match="digits 1 to 3"):
        program.digit(program.full("x"), 4)
    with pytest.raises(ValueError, match="only inputs have digits"):
        program.digit(program.full("x") + 1, 1)
    tested = Program(program.store(program.digit(program.row("x"), 1)))
    with pytest.raises(RuntimeError, match=r"tensors\[0\] \(row\), of which digits are read, has data type Float"):
        torch.ops.reformer.stitch(torch.zeros(2, 5, 3, 7), [torch.zeros(2, 3, 7)], tested.code)
    assert program.digit(program.channel_index(), 2).attribute == 0


def test_whole_numbers_are_no_reductions():
    with pytest.raises(ValueError, match="sum takes"):
        program.sum(program.acc(), dtype=torch.int64)
