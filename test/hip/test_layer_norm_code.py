"""Layer norm's kernels compile for every GPU that is supported, and keep their values in registers."""

import sys
from pathlib import Path

import pytest
import torch
from emulator import layer_norms
from test_mma_code import check_generated

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "csrc" / "hip"))
import compile_kernels  # noqa: E402

HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize("input", [HALF, SINGLE], ids=["bf16", "fp32"])
@pytest.mark.parametrize("width", [96, 744, 767, 1024])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_compiles(architecture, width, input, tmp_path):
    for backward in (False, True):
        file = layer_norms.source(1000, width, (input, HALF, SINGLE), backward=backward)
        kernels = {"layer_norm_test", "layer_norm_test_finish"} if backward else {"layer_norm_test"}
        check_generated(architecture, file, tmp_path, kernels)
