"""Programs inside the implicit GEMM kernels, emulated, against the plain interpreter and the CPU."""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow
from test_stitch import CHANNEL, FULL, OPERATIONS, WITHOUT_PLANES, programs

import emulator
from emulator import conv_programs
from emulator.conv_programs import BIASED, NAMED
from emulator.implicit_gemm import tiles_of, with_program
from emulator.plans import TYPES
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = emulator.needed

PATHS = ["mma_sync", "mfma"]
# n, c, h, w, k, r, s: rows and columns are not multiples of a tile's
KINDS = {
    "1x1": ((2, 40, 7, 9, 88, 1, 1), {}),
    "1x1, stride 2, 3": ((2, 24, 9, 11, 40, 1, 1), dict(stride=(2, 3))),
    "3x3": ((1, 16, 9, 10, 72, 3, 3), dict(pad=(1, 1))),
    "3x5, strides": ((2, 16, 10, 11, 40, 3, 5), dict(pad=(0, 2), stride=(2, 3))),
    "dilation": ((1, 8, 9, 12, 16, 3, 3), dict(pad=(2, 1), dilation=(2, 3))),
    "groups": ((2, 48, 5, 6, 72, 3, 1), dict(pad=(1, 0), groups=3)),
    "1x1, groups": ((1, 48, 5, 7, 80, 1, 1), dict(groups=2)),
    "few of all": ((1, 8, 1, 3, 8, 1, 1), {}),
}


def check(tested, kind, type_name="bf16", tile="32x32_2x2_4", path="mma_sync", *, seed=0, **options):
    problem = conv_programs.problem_of(*KINDS[kind], type_name)
    conv_programs.check(tested, problem, with_program(problem, tile, path, **options), seed=seed)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("path", ["mma_sync", *slow("mfma")])
def test_named(path, name):
    for seed, (kind, type_name) in enumerate([("1x1", "bf16"), ("groups", "fp32")]):
        check(Program(*NAMED[name]), kind, type_name, path=path, seed=seed)


# Outputs of every type and inputs of every kind that has an element per element, row or column of the result.
EVERYTHING = Program(
    program.store(BIASED > FULL, torch.bool),
    program.store(program.silu(BIASED + FULL) * program.row("row") + program.scalar("scalar")),
    program.store(program.select(program.full("mask"), program.full("half"), BIASED), torch.float32),
    program.store(program.acc() * program.random("key"), torch.float16),
    program.store(program.acc() - CHANNEL, torch.bfloat16),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type_name", ["bf16", *slow("fp16", "fp32")])
@pytest.mark.parametrize("path", PATHS)
def test_everything(path, type_name, kind):
    check(EVERYTHING, kind, type_name, path=path)


# On the mma.sync path a block computes several tiles of rows, the last block fewer.
@pytest.mark.parametrize("tiles", [2, 3, 100])
@pytest.mark.parametrize("kind", ["1x1", "3x3", "groups"])
def test_several_tiles_a_block(kind, tiles):
    check(EVERYTHING, kind, tiles=tiles, seed=tiles)


# Columns with so many rows that the tensors of several rows are read at once: two tensors, and one.
@pytest.mark.parametrize(
    "type_name, tile", [("bf16", "64x64_2x2_4"), pytest.param("fp32", "128x64_2x2_3", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("path", PATHS)
def test_rows_read_at_once(path, type_name, tile):
    for tested in (EVERYTHING, Program(program.store(program.silu(BIASED + FULL)))):
        check(tested, "3x3", type_name, tile, path)


# wgmma kernels, too, which hold and store their sums as those of mma.sync do.
@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("type_name", ["bf16", "fp32"])
@pytest.mark.parametrize("path", PATHS)
def test_all_tiles(path, type_name):
    problem = conv_programs.problem_of((1, 8, 12, 13, 136, 3, 3), dict(pad=(1, 1)), type_name)
    one, two = program.store(program.silu(BIASED + FULL)), program.store(FULL - BIASED > program.row("row"), torch.bool)
    for tile in tiles_of("forward", type_name):
        for tested in (Program(program.store(program.relu(BIASED))), Program(one), Program(one, two)):
            conv_programs.check(tested, problem, with_program(problem, tile, path))


def test_bf16_of_gfx908():
    check(EVERYTHING, "3x3", tile="64x32_2x2_4", path="mfma_gfx908")


@pytest.mark.slow
@emulator.without_sanitizers
@pytest.mark.parametrize("path", PATHS)
def test_every_operation(path):
    outputs = [program.store(value) for name, value in OPERATIONS.items() if "plane" not in name]
    for first in range(0, len(outputs), 12):
        check(Program(*outputs[first : first + 12]), "1x1", path=path)


@emulator.without_sanitizers
@settings(max_examples=examples(16))
@given(
    programs(types=(None, torch.float32, torch.float16), kinds=("store",), leaves=WITHOUT_PLANES),
    st.sampled_from([*KINDS]),
    st.sampled_from([*TYPES]),
    st.sampled_from(["32x32_2x2_4", "64x32_2x2_4", "64x64_2x2_4"]),
    st.sampled_from(PATHS),
    st.integers(1, 3),
)
def test_random_programs(tested, kind, type_name, tile, path, tiles):
    check(tested, kind, type_name, tile, path, tiles=tiles)


@pytest.mark.parametrize(
    "output", [program.sum(program.acc()), program.store(program.acc(), torch.float64)], ids=["sum", "fp64"]
)
def test_what_is_refused(output):
    with pytest.raises(AssertionError, match="the kernels don't support this program"):
        check(Program(program.store(program.acc()), output), "1x1")
