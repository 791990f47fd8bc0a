"""Programs with reductions per height, emulated, against the plain interpreter."""

import pytest
import torch
from marks import slow

import emulator
from emulator.row_programs import ACC, CHANNEL, FULL, ROW, mean
from emulator.stitching import check, stitch
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = emulator.needed


def softmax_backward():
    """Derivative of a softmax with a bias for each head and row, whose gradient is summed over windows."""
    grad = FULL * (ACC - program.row_sum(ACC * FULL))
    return Program(program.store(grad, torch.bfloat16), program.sum(grad, "height"))


def modulated_norm_backward():
    """Derivative of a norm with a scale and shift per image, and a weight for all; acc is the gradient."""
    normal = (FULL - ROW) * program.scalar("scalar")
    grad = ACC * CHANNEL
    return Program(
        program.store(grad - mean(grad) - normal * mean(grad * normal)),
        program.sum(ACC * normal, "height", torch.bfloat16),
        program.sum(ACC, "height"),
        program.sum(ACC * normal),
        program.sum(ACC * ACC, "all"),
        program.store(CHANNEL * 2, torch.float32, "channel"),
    )


def others():
    """Without a reduction of rows."""
    return Program(program.max(ACC, "height"), program.moments(ACC + FULL, "height"), program.sum(FULL, "height"))


PROGRAMS = {each.__name__: each() for each in (softmax_backward, modulated_norm_backward, others)}
# Windows x rows of a window, images x tokens, both; one image, one window, one row; heights of fewer rows than a block
# computes at once, fewer and more heights than blocks.
SIZES = [
    *((37, 49, 21, 1), (1, 24, 5, 33), (3, 136, 6, 4), (1, 40, 1, 19), (1, 40, 70, 1), (9, 7, 2, 1)),
    *((2, 1096, 3, 2), (400, 16, 3, 1), (1, 8, 2, 500), (5, 33, 300, 1)),
]


@pytest.mark.parametrize("setting", [(torch.bfloat16, 32, 2), *slow((torch.float32, 64, 7))])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_reductions_per_height(name, size, setting):
    dtype, warp, multiprocessors = setting
    options = {"multiprocessors": multiprocessors, "seed": warp, "rtol": 2e-5}
    check(PROGRAMS[name], size, dtype, "nhwc", warp, atol=3e-5 * max(8, size[1], size[0] * size[3]), **options)


def test_nan_stays_at_its_height():
    acc = torch.ones(6, 20, 4, 3).contiguous(memory_format=torch.channels_last)
    acc[2, 5, 1, 2], acc[0, 7, 3, 0] = torch.nan, torch.inf
    sums, largest = stitch(Program(program.sum(ACC, "height"), program.max(ACC, "height")), acc, [])
    for found, expected in ((sums, acc.sum((0, 3)).T), (largest, acc.amax((0, 3)).T)):
        assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1)) and found.isnan().sum() == 1
