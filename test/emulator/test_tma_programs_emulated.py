"""Programs inside the TMA GEMM kernels, emulated, against the plain interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stitch import CHANNEL, FULL, OPERATIONS, programs, tensors_for

import emulator
from emulator import tma_programs
from emulator.plans import Problem
from emulator.tma_gemm import COLUMNS, NOTHING, ROWS
from torch_reformer import epilogue as ep
from torch_reformer.epilogue.interpret import interpret

pytestmark = emulator.needed

# n, c, h, w, k, r, s: rows and columns are not what tiles are
POINTWISE, WINDOWS = (2, 72, 9, 10, 88, 1, 1), (2, 40, 9, 10, 88, 3, 3)
KINDS = {"1x1": (POINTWISE, {}), "3x3": (WINDOWS, dict(pad=(1, 1))), "3x3, stride 2": (WINDOWS, dict(stride=(2, 2)))}


def problem_of(kind, type_name="bf16"):
    """Sums are multiples of 1/64, so exact, and below about 1."""
    sizes, others = KINDS[kind]
    problem = Problem("forward", type_name, *sizes, **others)
    problem.expected = (problem.expected - problem.bias.view(1, -1, 1, 1)) / 64  # without the bias
    problem.x, problem.filter = problem.x / 16, problem.filter / 4
    return problem


def check(program, problem, tile="64x64_3", **options):
    size, dtype = problem.expected.shape, problem.type[0]
    everything = tensors_for(size, dtype, "nhwc")
    for name in ("half", "mask"):
        everything[name] = everything[name].contiguous(memory_format=torch.channels_last)
    tensors = {name: everything[name] for name in program.inputs}
    results = tma_programs.run(problem, tile, program, [*tensors.values()], **options)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    expected = interpret(program, size, torch.float64, wide, problem.expected)
    for result, exact in zip(results, expected, strict=True):
        rounding = torch.finfo(result.dtype).eps if result.is_floating_point() else 0
        torch.testing.assert_close(
            result.double(), exact.to(result.dtype).double(), rtol=rounding + 1e-5, atol=1e-5, equal_nan=True
        )


BIASED = ep.acc() + CHANNEL
KEPT = ep.random("key") < 0.75
NAMED = {
    "bias, relu": [ep.store(ep.relu(BIASED))],
    "residual, silu": [ep.store(ep.silu(BIASED + FULL))],
    "gelu and what it is of": [ep.store(BIASED), ep.store(ep.gelu(BIASED))],
    "relu and its mask": [ep.store(BIASED > 0, torch.bool), ep.store(ep.relu(BIASED))],
    "in fp32, too": [ep.store(BIASED * FULL, torch.float32), ep.store(BIASED)],
    "dropout": [ep.store(ep.select(KEPT, ep.gelu(BIASED) / 0.75, 0)), ep.store(KEPT, torch.bool)],
    "rows": [ep.store(ep.acc() * ep.row("row") + ep.scalar("scalar"))],
    "mask": [ep.store(ep.select(ep.full("mask"), ep.acc(), ep.full("half")))],
    "without acc": [ep.store(FULL * CHANNEL)],
    "acc alone": [ep.store(ep.acc())],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMED)
def test_named(name, kind):
    check(ep.Program(*NAMED[name]), problem_of(kind), seed=len(name))


# Tiles that end beyond the columns, whole ones beyond them, several tiles of rows a block, and clusters that share.
@pytest.mark.parametrize("kind", ["1x1", "3x3"])
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
    program = ep.Program(ep.store(ep.silu(BIASED + FULL)), ep.store(BIASED > FULL, torch.bool))
    check(program, problem_of(kind, "fp16"), tile, **cut)


@pytest.mark.slow
def test_every_operation():
    outputs = [ep.store(value) for value in OPERATIONS.values()]
    for first in range(0, len(outputs), 12):
        check(ep.Program(*outputs[first : first + 12]), problem_of("1x1"))


@pytest.mark.slow
@settings(max_examples=12)
@given(
    programs(types=(None, torch.float32, torch.float16), kinds=("store",)),
    st.sampled_from([*KINDS]),
    st.sampled_from([NOTHING, ROWS, COLUMNS]),
    st.sampled_from([1, 2, 1000]),
)
def test_random_programs(program, kind, shared, row_blocks):
    check(program, problem_of(kind), shared=shared, row_blocks=row_blocks)


@pytest.mark.parametrize("output", [ep.sum(ep.acc()), ep.store(ep.acc(), torch.float64)], ids=["sum", "fp64"])
def test_what_is_refused(output):
    with pytest.raises(AssertionError, match="the kernels don't take this program"):
        check(ep.Program(ep.store(ep.acc()), output), problem_of("1x1"))
