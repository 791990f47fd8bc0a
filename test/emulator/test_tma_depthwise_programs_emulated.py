"""Programs inside the TMA depthwise kernels, emulated, against the plain interpreter."""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow
from test_stitch import CHANNEL, FULL, LEAVES, programs

import emulator
from emulator import conv_programs
from emulator.conv_programs import BIASED
from emulator.tma_gemm import depthwise_with_program
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = emulator.needed

KINDS = [(filter, stride) for filter in (3, 5, 7) for stride in (1, 2)]
TWO_KINDS = [(3, 1), (7, 2)]
NAMED = {
    "acc alone": [program.store(program.acc())],
    "bias, relu": [program.store(program.relu(BIASED))],
    "silu": [program.store(program.silu(program.acc() * CHANNEL + program.scalar("scalar")))],
    "without acc": [program.store(program.channel_index() * CHANNEL)],
    "moments": [program.store(program.acc()), program.moments(program.acc())],
    "moments with a bias": [program.moments(BIASED), program.store(BIASED)],
    "sum": [program.store(program.relu(BIASED)), program.sum(BIASED)],
    "two outputs of a sum": [program.store(BIASED), program.sum(BIASED), program.sum(BIASED * CHANNEL)],
    "max": [program.store(program.acc()), program.max(-abs(BIASED))],
}


# The last of 72 channels' boxes has 8, for one warp. Tiles reach beyond the image at two sides.
def problem_of(kind, type_name="bf16", *, n=2, channels=72, size=(9, 19), pad=None):
    filter, stride = kind
    others = dict(pad=pad or (filter // 2, filter // 2), stride=(stride, stride), groups=channels)
    return conv_programs.problem_of((n, channels, *size, channels, filter, filter), others, type_name)


def check(tested, problem, tile=(2, 1, 3, 1), *, multiprocessors=1, seed=0):
    conv_programs.check(tested, problem, depthwise_with_program(tile, multiprocessors), seed=seed)


@pytest.mark.parametrize("kind", [*TWO_KINDS, *slow(*(kind for kind in KINDS if kind not in TWO_KINDS))], ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_named(name, kind):
    check(Program(*NAMED[name]), problem_of(kind, ("bf16", "fp16")[len(name) % 2]), seed=len(name))


MOMENTS = Program(*NAMED["moments with a bias"])


@pytest.mark.parametrize("stride", [1, 2])
def test_paddings_and_sizes(stride):
    for pad, size in (((0, 1), (12, 17)), ((1, 0), (11, 8)), ((2, 2), (7, 12)), ((0, 0), (8, 9))):
        check(MOMENTS, problem_of((3, stride), n=1, channels=16, size=size, pad=pad), (2, 1, 4, 1))


@pytest.mark.parametrize("channels", [8, 16, 24, *slow(32, 40, 48, 56, 64, 104, 136)])
def test_channels(channels):
    """1 to 8 groups of 8 channels in the last box, divided among the warps."""
    check(MOMENTS, problem_of((3, 1), n=1, channels=channels, size=(8, 17)), (2, 2, 2, 1), seed=channels // 8)


@pytest.mark.parametrize("name", ["moments", "max"])
@pytest.mark.parametrize("stride", [1, 2])
def test_several_images_a_tile_and_blocks(stride, name):
    """The last tile reaches beyond the last batch element."""
    problem = problem_of((3, stride), n=9, channels=24, size=(6, 7))
    for images, multiprocessors in ((2, 1), (2, 2), (4, 100)):
        tile = (1, 1, 3 if stride == 2 else 6, images)
        check(Program(*NAMED[name]), problem, tile, multiprocessors=multiprocessors, seed=images)


def test_moments_of_a_large_mean():
    """A mean of 4096 times the deviation: the kernel squares differences from one of the values."""
    tested = Program(program.store(program.acc()), program.moments(program.acc() + 1024))
    problem = problem_of((3, 1))
    _, (mean, squares) = conv_programs.run(problem, depthwise_with_program((2, 1, 3, 1)), tested, [])
    exact = (problem.expected + 1024).transpose(0, 1).flatten(1)
    differences = exact - exact.mean(1, keepdim=True)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=2**-23, atol=0)
    torch.testing.assert_close(squares.double(), differences.square().sum(1), rtol=1e-3, atol=0)


OF_CHANNELS = [leaf for leaf in LEAVES if leaf.op not in ("full", "row", "plane", "random")]


@emulator.without_sanitizers
@settings(max_examples=examples(8))
@given(
    programs(types=(None,), kinds=("store",), leaves=OF_CHANNELS),
    st.sampled_from([program.sum, program.max, program.moments]),
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 100]),
)
def test_random_programs(tested, reduction, kind, multiprocessors):
    value = tested.outputs[0].value
    for outputs in ([program.store(value)], [program.store(value), reduction(value)]):
        check(Program(*outputs), problem_of(kind), multiprocessors=multiprocessors)


@pytest.mark.parametrize(
    "outputs",
    [
        [program.store(program.acc() + FULL)],
        [program.store(program.acc() + program.row("row"))],
        [program.store(program.acc() + program.plane("plane"))],
        [program.store(program.random("key"))],
        [program.store(program.acc()), program.store(program.acc() > 0, torch.bool)],
        [program.store(program.acc(), torch.float32)],
        [program.store(program.acc()), program.sum(program.acc(), "all")],
        [program.store(program.acc()), program.sum(program.acc()), program.max(program.acc())],
        [program.store(program.acc()), program.store(CHANNEL, per="channel")],
    ],
    ids=["full", "row", "plane", "random", "two results", "fp32", "sum of all", "two reductions", "of channels"],
)
def test_what_is_refused(outputs):
    with pytest.raises(AssertionError, match="the kernels don't support this program"):
        check(Program(*outputs), problem_of((3, 1)))
