"""Programs inside the TMA GEMM kernels, emulated, against the plain interpreter."""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow
from test_stitch import FULL, OPERATIONS, WITHOUT_PLANES, programs

import emulator
from emulator import conv_programs
from emulator.conv_programs import BIASED, NAMED
from emulator.tma_gemm import COLUMNS, NOTHING, ROWS, with_program
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = emulator.needed

# n, c, h, w, k, r, s: rows and columns are not multiples of a tile's
POINTWISE, WINDOWS = (2, 72, 9, 10, 88, 1, 1), (2, 40, 9, 10, 88, 3, 3)
KINDS = {"1x1": (POINTWISE, {}), "3x3": (WINDOWS, dict(pad=(1, 1))), "3x3, stride 2": (WINDOWS, dict(stride=(2, 2)))}


def check(tested, kind, type_name="bf16", tile="64x64_3", *, seed=0, **cut):
    problem = conv_programs.problem_of(*KINDS[kind], type_name)
    conv_programs.check(tested, problem, with_program(problem, tile, **cut), seed=seed, reduces_result=True)


@pytest.mark.parametrize("kind", ["3x3", *slow("1x1", "3x3, stride 2")])
@pytest.mark.parametrize("name", NAMED)
def test_named(name, kind):
    check(Program(*NAMED[name]), kind, seed=len(name))


# Tiles that end beyond the last column, tiles wholly beyond it, several tiles of rows per block, and clusters that
# share an operand.
@pytest.mark.parametrize("kind", ["3x3", *slow("1x1")])
@pytest.mark.parametrize(
    "tile, cut",
    [
        ("64x64_3", dict(row_blocks=1)),
        ("64x64_3", dict(shared=ROWS)),
        ("64x64_6", dict(shared=COLUMNS, row_blocks=1)),
        ("128x64_6", dict(row_blocks=1)),
        ("64x128_4", dict(shared=COLUMNS)),
        ("128x128_6", dict(shared=NOTHING)),
        ("128x192_4", dict(shared=ROWS, row_blocks=1)),
        ("128x256_4", dict(shared=COLUMNS)),
    ],
    ids=str,
)
def test_tiles(tile, cut, kind):
    tested = Program(program.store(program.silu(BIASED + FULL)), program.store(BIASED > FULL, torch.bool))
    check(tested, kind, "fp16", tile, **cut)


# Two tensors that are loaded and two that are stored; the third of each, and those of other types, threads access
# themselves. Several tiles a consumer, and a depth of more steps than the ring has stages.
HALF, OTHER = program.full("half"), program.full("other")
GRADIENT = program.acc() * program.sigmoid(FULL)
TENSORS = {
    "residual": [program.store(program.relu(BIASED + FULL))],
    "gelu and what it is of": [program.store(BIASED), program.store(program.gelu(BIASED))],
    "gradient and its sum": [program.store(GRADIENT), program.sum(GRADIENT)],
    "many": [
        program.store(BIASED + FULL),
        program.store(HALF * program.acc(), torch.float32),
        program.store(OTHER - program.acc()),
        program.store(OTHER * HALF),
    ],
}


# In input gradients the second operand's lines run along the columns.
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize(
    "tile", ["128x192_4_pingpong", "128x128_6", *slow("128x128_6_pingpong", "64x64_3", "128x256_4")]
)
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_by_the_copy_engine(name, tile, direction):
    c, k = (520, 328) if direction == "forward" else (328, 520)
    problem = conv_programs.problem_of((2, c, 17, 13, k, 1, 1), {}, "bf16", direction)
    for seed, cut in enumerate((dict(row_blocks=1), dict(row_blocks=1, shared=COLUMNS), dict(shared=ROWS))):
        kernel = with_program(problem, tile, **cut)
        conv_programs.check(Program(*TENSORS[name]), problem, kernel, seed=seed, reduces_result=True)


@pytest.mark.slow
@emulator.without_sanitizers
def test_every_operation():
    outputs = [program.store(value) for name, value in OPERATIONS.items() if "plane" not in name]
    for first in range(0, len(outputs), 12):
        check(Program(*outputs[first : first + 12]), "1x1")


@emulator.without_sanitizers
@settings(max_examples=examples(12))
@given(
    programs(types=(None, torch.float32, torch.float16), kinds=("store",), leaves=WITHOUT_PLANES),
    st.sampled_from([*KINDS]),
    st.sampled_from([NOTHING, ROWS, COLUMNS]),
    st.sampled_from([1, 2, 1000]),
)
def test_random_programs(tested, kind, shared, row_blocks):
    check(tested, kind, shared=shared, row_blocks=row_blocks)


RECTIFIED = program.relu(BIASED * FULL)
REDUCTIONS = {
    "moments": [program.store(program.acc()), program.moments(program.acc())],
    "moments with a bias": [program.moments(BIASED), program.store(BIASED)],
    "sum": [program.store(RECTIFIED), program.sum(RECTIFIED)],
    "two outputs of a sum": [
        program.store(BIASED),
        program.sum(BIASED),
        program.sum(BIASED * program.channel("channel")),
    ],
    "max": [program.store(BIASED, torch.float32), program.store(program.acc()), program.max(program.acc())],
}


@pytest.mark.parametrize("kind", ["1x1", *slow("3x3", "3x3, stride 2")])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, kind):
    """Reductions are of the rounded results, in the rows and columns that exist."""
    check(Program(*REDUCTIONS[name]), kind, row_blocks=1 + len(name) % 2)


@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_in_turns(name, direction):
    """Beside the most sums, over several tiles a consumer, of which the last one ends beyond the rows."""
    problem = conv_programs.problem_of((1, 200, 25, 17, 264, 1, 1), {}, "bf16", direction)
    for seed, cut in enumerate((dict(row_blocks=1), dict(row_blocks=1, shared=COLUMNS))):
        kernel = with_program(problem, "128x192_4_pingpong", **cut)
        conv_programs.check(Program(*REDUCTIONS[name]), problem, kernel, seed=seed, reduces_result=True)


@pytest.mark.parametrize("kind", ["1x1", *slow("3x3")])
@pytest.mark.parametrize(
    "tile, cut",
    [
        ("64x64_3", dict(shared=ROWS)),
        ("64x64_6", dict(shared=COLUMNS, row_blocks=1)),
        ("128x64_6", dict(row_blocks=1)),
        ("128x128_6", dict(shared=COLUMNS)),
        ("128x192_4", dict(shared=ROWS, row_blocks=1)),
        ("128x256_4", dict(shared=COLUMNS, row_blocks=1)),
    ],
    ids=str,
)
def test_reductions_in_tiles(tile, cut, kind):
    check(Program(*REDUCTIONS["moments with a bias"]), kind, "fp16", tile, **cut)


def test_moments_of_a_large_mean():
    """A mean of some thousand times the deviation: the kernel squares differences from the mean."""
    shifted = program.acc() + 1024
    tested = Program(program.store(shifted), program.moments(shifted))
    problem = conv_programs.problem_of(*KINDS["1x1"], "fp16")
    kernel = with_program(problem, "64x64_3", row_blocks=2)
    _, (mean, squares) = conv_programs.run(problem, kernel, tested, [])
    exact = (problem.expected + 1024).half().double().transpose(0, 1).flatten(1)
    differences = exact - exact.mean(1, keepdim=True)
    torch.testing.assert_close(mean.double(), exact.mean(1), rtol=2**-23, atol=0)
    torch.testing.assert_close(squares.double(), differences.square().sum(1), rtol=1e-3, atol=0)


@emulator.without_sanitizers
@settings(max_examples=examples(8))
@given(
    programs(types=(None, torch.float32), kinds=("store",), leaves=WITHOUT_PLANES),
    st.sampled_from([program.sum, program.max, program.moments]),
    st.sampled_from([*KINDS]),
    st.sampled_from([NOTHING, ROWS, COLUMNS]),
    st.sampled_from([1, 2, 1000]),
)
def test_random_programs_with_reductions(tested, reduction, kind, shared, row_blocks):
    result = program.relu(next(output.value for output in tested.outputs if output.dtype is None))
    tested = Program(program.store(result), *tested.outputs, reduction(result))
    check(tested, kind, shared=shared, row_blocks=row_blocks)


@pytest.mark.parametrize(
    "outputs",
    [
        [program.sum(program.acc(), "all")],
        [program.sum(program.acc()), program.max(program.acc())],
        [program.sum(program.relu(program.acc()))],
        [program.store(program.acc(), torch.float64)],
        [program.store(program.channel("channel"), per="channel")],
    ],
    ids=["sum of all", "two reductions", "of what is not stored", "fp64", "of channels"],
)
def test_what_is_refused(outputs):
    with pytest.raises(AssertionError, match="the kernels don't support this program"):
        check(Program(program.store(program.acc()), *outputs), "1x1")
