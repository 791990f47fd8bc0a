"""MIOpen's solvers on AMD's GPUs: the package with a strict stub of MIOpen (test/miopen), on GPUs whose memory is the
host's (host_gpu.py). Each test is a process of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import host_gpu
import pytest
from marks import needs_aten
from miopen import stub

pytestmark = needs_aten
TEST = Path(__file__).parent

PRELUDE = """
import os, threading, warnings
import host_gpu
host_gpu.load(os.environ["HOST_GPU"], os.environ["FAKE_HIP"])
import ctypes
hip = ctypes.CDLL(os.environ["FAKE_HIP"])
from miopen.controls import Stub
host = ctypes.CDLL(os.environ["HOST_GPU"])
host.host_gpu_stream.restype = ctypes.c_void_p
if "MIOPEN" in os.environ:
    stub = Stub(os.environ["MIOPEN"])
    stub.expect_stream(host.host_gpu_stream(0))
import torch
from torch import nn
from torch.nn import functional as F
import torch_reformer
from torch_reformer import ConvProblem, config
from torch_reformer.problem import DIRECTIONS, LAYOUTS
from torch_reformer.selector.candidates import candidates
from torch_reformer.tuning.measure import applicable, check, operands
GPU = torch.device("cuda", 0)

def miopens(problem, device="gfx908"):
    return {each.name: each for each in candidates(problem, device) if not each.name.islower() or each.name == "fft"}

def runs():
    return sum(stub.calls(f"miopenConvolution{name}Immediate") for name in Stub._DIRECTIONS)

def offered(problem, device="gfx908"):
    return [name for name, each in miopens(problem, device).items() if each.refusal is None]
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("miopen")
    return {"MIOPEN": stub.build(folder), "FAKE_HIP": stub.build_hip(folder), "HOST_GPU": host_gpu.build()}


@pytest.fixture
def run(libraries):
    def pretend(code: str, archs: str = "gfx908,gfx908", **environment: str | None) -> subprocess.CompletedProcess:
        """Runs code in a process that has such GPUs and the stub."""
        paths = os.pathsep.join([str(TEST), str(TEST.parent), *filter(None, sys.path)])
        variables = os.environ | {name: str(path) for name, path in libraries.items()}
        variables |= {"PYTHONPATH": paths, "FAKE_HIP_ARCHS": archs} | environment
        variables = {name: value for name, value in variables.items() if value is not None}
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=TEST)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return pretend


@pytest.mark.parametrize("registry", ["old", "newest"])
@pytest.mark.parametrize("arch", ["gfx908", "gfx90a", "gfx942"])
def test_every_offered_solver_computes_what_pytorch_does(run, arch, registry):
    run(
        f"""
        stub.use_registry("{registry}")
        from torch_reformer.tuning.verify import samples
        ran = set()
        for problem in samples():
            solvers = applicable(problem, GPU)
            wrong = check(operands(problem, GPU), solvers)
            assert not wrong, (problem, wrong)
            ran.update(solvers)
        assert len(ran) > 12, ran
        assert stub.live_handles() == 1 and stub.looks_at_solutions() == 0 and stub.failures() == 0
        """,
        f"{arch},{arch}",
    )


def test_training(run):
    """Gradients of a small network, with biases, through autograd and `fuse`."""
    run("""
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 1),
        )
        x = torch.randn(4, 8, 16, 16)
        def step(model, x):
            model.zero_grad()
            y = model(x)
            y.square().mean().backward()
            return [y.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]
        expected = step(model, x)
        model = model.to(GPU)
        for change in (torch_reformer.nn.convert, torch_reformer.fuse):
            before = runs()
            found = step(change(model), x.to(GPU))
            assert runs() > before
            for a, b in zip(found, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    """)
