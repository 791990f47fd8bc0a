"""Kernels generated for programs, emulated, against the plain interpreter."""

import ctypes
import functools

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow
from placements import PLACES, in_sizes, placed_programs, placed_tensors, written_like
from test_stitch import CHANNEL, FORMATS, FULL, OPERATIONS, acc_for, check_types, in_types, programs, tensors_for

import emulator
from emulator.stitching import check, planner, source, stitch
from torch_reformer import program
from torch_reformer.operators import fused_programs
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative
from torch_reformer.program.interpreter import interpret

pytestmark = emulator.needed

WARPS = (32, 64)


@pytest.mark.parametrize("warp", [32, *slow(64)])
@pytest.mark.parametrize("layout", FORMATS)
def test_every_operation(layout, warp):
    outputs = [program.store(value) for value in OPERATIONS.values()]
    for first in range(0, len(outputs), 12):
        check(Program(*outputs[first : first + 12]), (2, 6, 5, 9), torch.float32, layout, warp)


SIZES = [(2, 24, 9, 8), (1, 40, 3, 5), (3, 3, 7, 7), (2, 264, 2, 2), (2, 16, 1, 1), (1, 2, 33, 64)]
TWO_SIZES = [*SIZES[:2], *slow(*SIZES[2:])]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", TWO_SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_reductions(dtype, size, layout):
    value = program.acc() * CHANNEL + FULL
    kinds = [
        kind(value, per) for kind in (program.sum, program.max, program.moments) for per in ("channel", "plane", "all")
    ]
    tested = Program(
        program.store(program.relu(value)), *kinds, program.sum(value / 3), program.store(value < 0, torch.bool)
    )
    for warp in WARPS:
        check(tested, size, dtype, layout, warp, atol=1e-6 * size[0] * size[1] * size[2] * size[3], seed=warp)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_results_that_are_written_over_what_is_read(size, layout):
    value = program.acc() * CHANNEL + FULL
    sums = program.sum(value), program.sum(value, "all")
    tested = Program(program.store(program.relu(value)), *sums, program.store(FULL - program.acc()))
    tolerance = 1e-6 * size[0] * size[1] * size[2] * size[3]
    check(tested, size, torch.float32, layout, over={0: "full", 3: "acc"}, atol=tolerance)


def prod(value, per):
    """Product of factors near 1."""
    return program.prod(1 + 1e-3 * program.tanh(value), per)


KINDS = (program.sum, program.max, program.moments)


def reductions(*per, kinds=KINDS):
    value = program.acc() * CHANNEL + FULL
    return Program(program.store(value), *(kind(value, each) for kind in kinds for each in per))


# One group of columns and several, with idle threads; few parts and, with more multiprocessors, more of them. For many
# reductions of several parts another kernel is expected to be faster.
@pytest.mark.parametrize("multiprocessors", [7, *slow(20)])
@pytest.mark.parametrize(
    "case",
    [
        (("channel",), (3, 264, 14, 7)),
        (("all",), (2, 24, 18, 16)),
        (("channel", "plane"), (2, 24, 18, 16)),
        *slow((("channel",), (1, 40, 32, 10)), (("channel",), (1, 520, 20, 16)), (("channel", "all"), (2, 24, 18, 16))),
    ],
    ids=str,
)
@pytest.mark.parametrize("kinds", [KINDS, (prod,)], ids=["sums", "products"])
def test_the_last_block_adds_up(case, multiprocessors, kinds):
    """The last block also resets the counters, so that the next launch gives equal bits."""
    per, size = case
    tested = reductions(*per, kinds=kinds[:1] if per == ("channel", "all") else kinds)
    acc, everything = (of(size, torch.bfloat16, "nhwc") for of in (acc_for, tensors_for))
    tensors = [everything[name] for name in tested.inputs]
    semaphores = torch.zeros(1024, dtype=torch.int32)
    for warp in WARPS:
        run = functools.partial(stitch, tested, acc, tensors, warp=warp, multiprocessors=multiprocessors)
        actual, again, expected = run(semaphores=semaphores), run(semaphores=semaphores, seed=1), run()
        assert 0 < planner().semaphores() <= 1024
        assert not semaphores.any()
        for one, other, exact in zip(actual, again, expected, strict=True):
            assert torch.equal(one, other)
            torch.testing.assert_close(one, exact, rtol=1e-5, atol=1e-4)


# A thread has several lines, the last block's fewer: of the whole, of images, of columns that end within a group.
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", [(1, 64, 40, 30), (2, 65, 30, 19), *slow((3, 8, 61, 40), (1, 1, 300, 41))], ids=str)
def test_lines_of_threads(size, layout):
    value = program.acc() * CHANNEL + FULL
    of_planes = program.acc() * program.plane("plane") + FULL
    for tested in (
        Program(program.store(program.acc() * 2 + FULL)),
        *map(Program, map(program.store, (value, of_planes))),
    ):
        for multiprocessors in (1, 3):
            check(tested, size, torch.bfloat16, layout, multiprocessors=multiprocessors)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", [(2, 24, 3, 4), *slow((3, 16, 5, 5))], ids=str)
def test_planes_of_one_part_need_no_other_kernel(size, layout):
    acc, everything = (of(size, torch.bfloat16, layout) for of in (acc_for, tensors_for))
    for per, needs in {("plane",): False, ("plane", "channel"): True}.items():
        tested = reductions(*per)
        source(tested, acc, [everything[name] for name in tested.inputs])
        assert bool(planner().workspace_bytes()) is needs
        check(tested, size, torch.bfloat16, layout, atol=1e-4)


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("multiprocessors", [6, *slow(40)])
def test_planes_of_several_parts(multiprocessors, warp):
    size = (1, 24, 40, 48)
    check(reductions("plane"), size, torch.bfloat16, "nhwc", warp, atol=1e-3, multiprocessors=multiprocessors)
    assert planner().workspace_bytes()


# One and several images of a block, the last block's fewer; a line of an image at once, and several.
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("size", [(700, 16, 3, 1), (150, 40, 2, 2), *slow((301, 24, 5, 2), (97, 21, 3, 3))], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_planes_of_few_lines(dtype, size, warp):
    of_planes = program.acc() * program.plane("plane") + FULL
    for tested in (reductions("plane"), reductions("plane", "channel"), Program(program.sum(of_planes, "plane"))):
        for multiprocessors in (1, 3):
            check(tested, size, dtype, "nhwc", warp, atol=1e-3, multiprocessors=multiprocessors)


def test_images_of_few_lines_share_blocks():
    acc = torch.empty((50176, 256, 20, 1), dtype=torch.bfloat16, device="meta")
    acc = acc.contiguous(memory_format=torch.channels_last)
    blocks = (ctypes.c_uint32 * 4)(), (ctypes.c_uint32 * 4)()
    source(Program(program.max(program.acc(), "plane")), acc, [], 132)
    planner().launches(*blocks)
    assert blocks[0][0] * 256 == 50176 * 256 / 8  # no thread is idle


@pytest.mark.parametrize("channels", [24, 272])
def test_a_group_of_many_parts_is_left_to_another_kernel(channels):
    acc = torch.empty((1, channels, 4096, 64), dtype=torch.bfloat16, device="meta")
    acc = acc.contiguous(memory_format=torch.channels_last)
    source(Program(program.sum(program.acc())), acc, [], 1320)
    assert planner().workspace_bytes() and not planner().semaphores()


@pytest.mark.parametrize("layout", FORMATS)
def test_reductions_in_types_of_their_own(layout):
    tested, size = in_types(program.acc() + FULL, (torch.bfloat16,)), SIZES[0]
    acc, everything = acc_for(size, torch.bfloat16, layout), tensors_for(size, torch.bfloat16, layout)
    check_types(tested, stitch(tested, acc, [everything[name] for name in tested.inputs]))


@pytest.mark.parametrize("size", [(1, 70000, 1, 2048), (70000, 8, 1, 16)], ids=str)
@pytest.mark.parametrize("layout", FORMATS)
def test_a_launch_has_few_blocks_along_y(layout, size):
    acc = torch.empty(size, dtype=torch.bfloat16, device="meta").contiguous(memory_format=FORMATS[layout])
    source(Program(program.sum(program.acc(), "plane")), acc, [], 132)
    shapes = [(ctypes.c_uint32 * 4)() for _ in range(2)]
    planner().launches(*shapes)
    assert all(1 <= y < 65536 for _, y, _, _ in shapes)


@pytest.mark.parametrize("way", PLACES)
@pytest.mark.parametrize("size", [(2, 24, 3, 5), *slow((5, 40, 2, 1), (1, 264, 2, 2))], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *slow(torch.float32)], ids=str)
def test_placements(dtype, size, way):
    """Tensors in other memory orders, slices, and tensors with repeated elements, read and written in place."""
    for tested in placed_programs():
        acc, tensors, placed = placed_tensors(tested, size, dtype, way)
        results = [written_like(PLACES[way](size), output.dtype or dtype) for output in tested.outputs[:1]]
        actual = stitch(tested, acc, placed, into={0: results[0]})
        expected = stitch(tested, acc, tensors)
        actual[0] = in_sizes(actual[0], size)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("way", PLACES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_placements_that_are_written_over(dtype, way):
    size = (2, 24, 3, 5)
    for tested in placed_programs():
        acc, tensors, placed = placed_tensors(tested, size, dtype, way)
        expected = stitch(tested, acc, tensors)
        read = placed[list(tested.inputs).index("full")]
        actual = stitch(tested, acc, placed, into={0: read})
        assert actual[0].data_ptr() == read.data_ptr()
        actual[0] = in_sizes(actual[0], size)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", TWO_SIZES, ids=str)
def test_channels_are_stored_in_place(size, layout):
    """Channel vectors are stored in place by one thread per channel, though other blocks read the channels' other
    inputs."""
    running, share = program.channel("running"), program.scalar("scalar")
    tested = Program(
        program.store(program.acc() * CHANNEL),
        program.store(running + share * (CHANNEL - running), torch.float32, "channel"),
        program.store(CHANNEL > 0, torch.bool, "channel"),
    )
    acc, everything = acc_for(size, torch.bfloat16, layout), tensors_for(size, torch.bfloat16, layout)
    tensors = [torch.ones(size[1]) if name == "running" else everything[name] for name in tested.inputs]
    at = [*tested.inputs].index("running")
    for warp in WARPS:
        before = tensors[at].clone()
        _, running, above = stitch(tested, acc, tensors, warp=warp, into={1: tensors[at]})
        assert running is tensors[at] and torch.equal(above, everything["channel"] > 0)
        expected = before + everything["scalar"] * (everything["channel"] - before)
        torch.testing.assert_close(running, expected)


@pytest.mark.parametrize("layout", FORMATS)
def test_batch_norm_and_its_derivative(layout):
    tested = fused_programs.normalise(frozenset(["mean", "squares", "scale", "shift", "residual"]), "relu", 1e-5)
    size = (2, 24, 6, 6)
    acc = acc_for(size, torch.bfloat16, layout)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.rand(24, generator=generator) + 0.5 for name in ("mean", "squares", "scale", "shift")}
    tensors["squares"] *= 72
    tensors["residual"] = tensors_for(size, torch.bfloat16, layout)["full"]
    (result,) = stitch(tested, acc, [tensors[name] for name in tested.inputs])
    rule = derivative(tested, ("acc", *tested.inputs), None, True)
    grad = tensors_for((*size[:3], 7), torch.bfloat16)["full"][..., 1:].contiguous(memory_format=FORMATS[layout])
    known = {("input", name): tensor for name, tensor in tensors.items()}
    known |= {("acc", 0): acc, ("output", 0): result, ("grad", 0): grad}
    inputs = [known[source] for source in rule.sources]
    results = stitch(rule.backward, acc, inputs)
    named = {name: tensor.double() for name, tensor in zip(rule.backward.inputs, inputs, strict=True)}
    expected = interpret(rule.backward, size, torch.float64, named)
    for output, got, exact in zip(rule.backward.outputs, results, expected, strict=True):
        rounding = 2.0**-7 if output.kind == "store" else 1e-5
        torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=1e-4)


def test_random_numbers_are_those_of_the_cpu():
    tested = Program(program.store(program.random("key")))
    for layout in FORMATS.values():
        acc = torch.empty(2, 12, 3, 5).contiguous(memory_format=layout)
        key = torch.tensor(-987654321987654321)
        assert torch.equal(stitch(tested, acc, [key])[0], torch.ops.reformer.stitch(acc, [key], tested.code)[0])


def test_a_block_stays_at_its_place_of_a_period():
    """A block thereby finds elements that it reads again in its own cache."""
    lines, period, channels = 1 << 20, 2048, 64
    acc = torch.empty((1, channels, lines, 1), dtype=torch.bfloat16, device="meta")
    acc = acc.contiguous(memory_format=torch.channels_last)
    angles = torch.empty(period, channels, dtype=torch.bfloat16, device="meta")
    tested = Program(program.store(program.acc() * program.full("angles")))
    source(tested, acc, [angles.expand(1, 1, lines // period, period, channels)], 132)
    shapes = [(ctypes.c_uint32 * 4)() for _ in range(2)]
    planner().launches(*shapes)
    blocks, _, _, threads = shapes[0]
    assert blocks > 2 * 132
    assert blocks * threads * 8 // channels % period == 0


@emulator.without_sanitizers
@settings(max_examples=examples(12))
@given(
    programs(per=("channel", "plane", "all"), types=(None, torch.float16)),
    st.sampled_from(SIZES),
    st.sampled_from([*FORMATS]),
    st.sampled_from(WARPS),
)
def test_random_programs(tested, size, layout, warp):
    count = size[0] * size[1] * size[2] * size[3]
    check(tested, size, torch.float32, layout, warp, rtol=1e-5, atol=4e-6 * count)


@pytest.mark.parametrize("reduces_rows", [False, True])
@pytest.mark.parametrize("width, bounds", [(16, (8,)), (24, (8, 16)), (16, (7,))], ids=str)
def test_concatenations(width, bounds, reduces_rows):
    """Each column is read from the part that it is chosen from; only that part is read if the parts' ends are multiples
    of a thread's elements."""
    size = (1, width, 15, 1)
    acc, memory = acc_for(size, torch.bfloat16, "nhwc"), torch.randn(15, 3 * width).bfloat16()
    parts = [memory[:, 8 * i : 8 * i + width] for i in range(len(bounds) + 1)]
    value = program.full(f"part{len(bounds)}") * 2
    for i, bound in reversed([*enumerate(bounds)]):
        value = program.select(program.channel_index() < bound, -program.full(f"part{i}"), value)
    result = value * program.acc()
    tested = Program(program.store(result - program.row_sum(value) if reduces_rows else result), program.sum(value))
    placed = {f"part{i}": part[None, None, None] for i, part in enumerate(parts)}
    results = stitch(tested, acc, [placed[name] for name in tested.inputs])
    text = planner().source().decode()
    assert text.count("column <") == (0 if bounds == (7,) else (4 if reduces_rows else 2) * len(bounds))
    dense = {name: in_sizes(each, size).double() for name, each in placed.items()}
    for one, other in zip(results, interpret(tested, size, torch.float64, dense, acc.double()), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2.0**-8, atol=1e-4)
