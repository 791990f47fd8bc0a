"""Products over dimensions by the GPU's kernels, emulated, against eager."""

import pytest
import torch
from marks import needs_aten, slow
from prod_cases import PROGRAMS
from test_compiler_prod import is_call
from test_compiler_scans import TOLERANCES, check

import emulator
from emulator.graphs import emulated

pytestmark = [needs_aten, emulator.needed]


@pytest.mark.parametrize("dtype", [torch.float32, *slow(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, dtype):
    function, x = PROGRAMS[name]
    with emulated(multiprocessors=2, seed=0):
        lines = check(lambda x: function(x.detach()), x.to(dtype), rtol=TOLERANCES[dtype])
    assert not is_call(lines)
