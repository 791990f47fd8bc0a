"""One table of GPUs (csrc/hip/devices.def), read by C++, by Python and by the kernels' build."""

import re

import pytest
from compiled import ROOT, compile_kernels

from torch_reformer import ConvProblem
from torch_reformer.compiler.ir import device_model
from torch_reformer.runtime import native
from torch_reformer.selector.candidates import candidates

SPECS = native.gpu_specs()
ARCHITECTURES = sorted({spec.architecture.decode() for spec in SPECS})
TMA = {"gpu_tma_gemm_128x128": (3, 1), "gpu_tma_depthwise": (3, 64)}  # solver: the filter's size, and groups


def test_what_is_packaged_is_in_the_table():
    assert compile_kernels.ARCHITECTURES == tuple(sorted({spec.code.decode() for spec in SPECS} - {""}))
    assert {spec.code.decode() for spec in SPECS if spec.has_tma} == {
        arch for arch in compile_kernels.ARCHITECTURES if compile_kernels.is_packaged("tma_gemm", arch)
    }


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("solver", TMA)
def test_tma_solvers_are_for_gpus_with_tma(solver, arch):
    size, groups = TMA[solver]
    problem = ConvProblem(8, 64, 28, 28, 64, size, size, 1, 1, groups=groups, dtype="BF16", layout="NHWC")
    (reason,) = (candidate.reason for candidate in candidates(problem, arch) if candidate.name == solver)
    if native.has_tma(arch):
        assert reason != "it is for Hopper GPUs (sm_90)"
    else:
        assert reason is not None


def test_times_are_of_the_table():
    for spec in SPECS:
        names = {spec.name.decode(), spec.architecture.decode()} & device_model.GPUS.keys()
        assert bool(names) == bool(spec.gb_per_s)
    assert device_model.GPUS["sm_90"] != device_model.GPUS["H100"]  # the usual one is an H200


def test_nothing_else_compares_architectures():
    """Only MIOpen's rules compare architectures: its releases have errors on some of them."""
    files = [
        path for path in (ROOT / "csrc").rglob("*.*") if path.suffix in (".h", ".cpp") and "miopen" not in path.parts
    ]
    files += [path for path in (ROOT / "torch_reformer").rglob("*.py") if "kernels" not in path.parts]
    assert not [path for path in files if re.search(r'[!=]= "(sm_|gfx)\d', path.read_text())]
