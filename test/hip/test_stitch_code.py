"""Kernels generated for programs compile for every GPU that is supported, and keep their values in registers."""

from pathlib import Path

import pytest
import torch
from compiled import compile_kernels
from emulator.stitching import source
from marks import slow
from test_mma_code import check_generated

import torch_reformer
from torch_reformer import program
from torch_reformer.operators import fused_programs
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative


def programs():
    """Batch norm, its derivative, one with every activation, and dropout."""
    names = frozenset(["mean", "squares", "scale", "shift", "residual"])
    normalise = fused_programs.normalise(names, "silu", 1e-5)
    backward = derivative(normalise, ("acc", *normalise.inputs), None, True).backward
    everything = Program(
        *(program.store(function(program.acc())) for function in program.ACTIVATIONS.values()),
        program.moments(program.acc()),
    )
    dropout = Program(
        program.store(program.select(program.random("key") < 0.5, 0, program.acc())), program.max(program.acc(), "all")
    )
    return {"normalise": normalise, "backward": backward, "everything": everything, "dropout": dropout}


def tensor(kind):
    if kind == "full":
        return torch.empty(2, 24, 4, 4, dtype=torch.bfloat16)
    return torch.empty(1, dtype=torch.int64 if kind == "random" else torch.float32)


@pytest.mark.parametrize("layout", [torch.channels_last, *slow(torch.contiguous_format)], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("name", programs())
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_compiles(architecture, name, layout):
    tested = programs()[name]
    acc = torch.empty(2, 24, 4, 4, dtype=torch.bfloat16).contiguous(memory_format=layout)
    file = source(tested, acc, [tensor(kind) for kind in tested.inputs.values()])
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


def test_is_what_the_package_compiles():
    """The text of a kernel follows the packaged source's, so what the test compiles is what a user's GPU gets."""
    packaged = Path(torch_reformer.__file__).parent / "kernels/src/kernels/stitch.hip"
    assert packaged.read_text() == (Path(__file__).parent.parent.parent / "csrc/hip/kernels/stitch.hip").read_text()
