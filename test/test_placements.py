"""Programs on tensors in other memory orders, slices of tensors, and tensors with repeated elements."""

import pytest
import torch
from placements import PLACES, TURNED, TURNED_TWICE, in_sizes, on, placed_programs, placed_tensors, written_like

from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.runtime import plan

SIZES = [(2, 24, 3, 5), (5, 40, 2, 1), (1, 1024, 2, 3), (64, 8, 3, 4)]


@pytest.mark.parametrize("way", [*PLACES, *TURNED, *TURNED_TWICE])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_inputs(dtype, size, way, device):
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("results in fp64 are never in channels_last on a GPU")
    for tested in placed_programs():
        acc, dense, placed = placed_tensors(tested, size, dtype, way)
        acc, dense, placed = (
            on(acc, device),
            [on(each, device) for each in dense],
            [on(each, device) for each in placed],
        )
        for operator in (torch.ops.reformer.stitch, torch.ops.reformer._stitch_unfused):
            expected, actual = (operator(acc, tensors, tested.code) for tensors in (dense, placed))
            for one, other in zip(actual, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", [*PLACES, *TURNED])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_outputs(dtype, size, way, device):
    """Outputs are written at their strides and nowhere else."""
    tested = Program(program.store(program.acc() > 0, torch.bool), program.store(program.acc() * 2))
    acc = on(placed_tensors(tested, size, dtype, way)[0], device)
    memory = on(written_like({**PLACES, **TURNED}[way](size), dtype), device)
    steps = plan.Plan(2)
    above, result = plan.run(steps.give(*steps.stitch(tested.code, 0, [], [1])), [acc, memory])
    assert torch.equal(above, acc > 0) and torch.equal(in_sizes(result, size), acc * 2)
    around = memory.as_strided((memory.untyped_storage().size() // memory.itemsize,), (1,), 0)
    assert around.isnan().sum() == around.numel() - acc.numel()


def test_what_no_program_reads():
    tested = Program(program.store(program.acc() + program.full("full")))
    acc = torch.randn(2, 8, 3, 3).contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match=r"tensors\[0\] \(full\) has size \[1, 2, 3, 3, 4\]"):
        torch.ops.reformer.stitch(acc, [torch.randn(1, 2, 3, 3, 4)], tested.code)
    other = torch.randn(1, 2, 3, 3, 16)[..., ::2]  # neither channels nor positions are adjacent
    result = torch.ops.reformer.stitch(acc, [other], tested.code)[0]
    torch.testing.assert_close(result, acc + in_sizes(other, acc.shape))
