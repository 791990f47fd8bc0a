"""Kernels generated for programs compile for every GPU that is supported, and keep their values in registers."""

import sys
from pathlib import Path

import pytest
import torch
from emulator.stitching import source
from test_mma_code import check_generated

import torch_reformer
from torch_reformer import _programs
from torch_reformer import epilogue as ep
from torch_reformer.epilogue.derivative import derivative

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "csrc" / "hip"))
import compile_kernels  # noqa: E402


def programs():
    """Of batch norm, its derivative, and one with every activation: the program, and the types of its tensors."""
    names = frozenset(["mean", "squares", "scale", "shift", "residual"])
    normalise = _programs.normalise(names, "silu", 1e-5)
    backward = derivative(normalise, ("acc", *normalise.inputs), None, True).backward
    everything = ep.Program(
        *(ep.store(function(ep.acc())) for function in ep.ACTIVATIONS.values()), ep.moments(ep.acc())
    )
    dropout = ep.Program(ep.store(ep.select(ep.random("key") < 0.5, 0, ep.acc())), ep.max(ep.acc(), "all"))
    return {"normalise": normalise, "backward": backward, "everything": everything, "dropout": dropout}


def tensor(kind):
    if kind == "full":
        return torch.empty(2, 24, 4, 4, dtype=torch.bfloat16)
    return torch.empty(1, dtype=torch.int64 if kind == "random" else torch.float32)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("name", programs())
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_compiles(architecture, name, layout, tmp_path):
    program = programs()[name]
    acc = torch.empty(2, 24, 4, 4, dtype=torch.bfloat16).contiguous(memory_format=layout)
    file = source(program, acc, [tensor(kind) for kind in program.inputs.values()])
    check_generated(architecture, file, tmp_path, {"stitch_test", "stitch_test_finish"})


def test_is_what_the_package_compiles():
    """The text of a kernel follows the packaged source's, so what the test compiles is what a user's GPU gets."""
    packaged = Path(torch_reformer.__file__).parent / "kernels/src/kernels/stitch.hip"
    assert packaged.read_text() == (Path(__file__).parent.parent.parent / "csrc/hip/kernels/stitch.hip").read_text()
