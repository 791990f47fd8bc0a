"""Layer norm's kernels compile for every GPU that is supported, and keep their values in registers."""

import pytest
import torch
from compiled import compile_kernels
from emulator import layer_norms
from marks import slow
from test_mma_code import check_generated

HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize("input", [HALF, SINGLE], ids=["bf16", "fp32"])
@pytest.mark.parametrize("width", [767, *slow(96, 744, 1024)])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_compiles(architecture, width, input):
    for backward in (False, True):
        file = layer_norms.source(1000, width, (input, HALF, SINGLE), backward=backward)
        kernels = {"layer_norm_test", "layer_norm_test_finish"} if backward else {"layer_norm_test"}
        check_generated(architecture, file, kernels)
