"""MIOpen's solvers on AMD's GPUs: the package with a strict stub of MIOpen (test/miopen).

The GPUs' memory is the host's (host_gpu.py). Each test is a separate process.
"""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import compiled
import host_gpu
import pytest
from marks import needs_aten, needs_cpu_build, slow
from miopen import stub

pytestmark = [needs_aten, needs_cpu_build]
TEST = Path(__file__).parent
REAL = TEST.parent.parent / "shared/data/miopen/gfx908.fdb.txt.xz"

PRELUDE = """
import os, threading, time, warnings
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
    return [name for name, each in miopens(problem, device).items() if each.reason is None]

def refusals(problem=ConvProblem(2, 8, 9, 9, 16, 3, 3, 1, 1), device="gfx908"):
    return {each.reason for each in miopens(problem, device).values()}

def convolved(x, w, device=GPU):
    # How often MIOpen ran; the result is checked.
    before = runs()
    y = torch_reformer.conv2d(x.to(device), w.to(device), padding=1)
    torch.testing.assert_close(y.cpu(), F.conv2d(x, w, padding=1), rtol=1e-5, atol=1e-5)
    return runs() - before

def step(model, x):
    y = model(x)
    y.square().mean().backward()
    return [y.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]

torch.manual_seed(0)
X, W = torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3)
"""


@pytest.fixture(scope="session", params=[False, *slow(True)], ids=["plain", "sanitized"])
def sanitize(request):
    """True if the stub is sanitized, and with it all memory of the process that it or the C library touches."""
    return request.param


# For tests of which solvers are offered, whose calls of MIOpen others make under sanitizers, too.
without_sanitizers = pytest.mark.parametrize("sanitize", [False], ids=["plain"], indirect=True)


@pytest.fixture(scope="session")
def libraries(sanitize, tmp_path_factory):
    folder = tmp_path_factory.mktemp("miopen")
    built = {"MIOPEN": stub.build(folder, sanitize), "FAKE_HIP": stub.build_hip(folder, sanitize)}
    return built | {"HOST_GPU": host_gpu.build()}


@pytest.fixture(scope="session")
def run(libraries, sanitize):
    def pretend(code: str, archs: str = "gfx908,gfx908", **environment: str | None) -> subprocess.CompletedProcess:
        """Run code in a process that has such GPUs and the stub."""
        paths = os.pathsep.join([str(TEST), str(TEST.parent), *filter(None, sys.path)])
        variables = os.environ | {name: str(path) for name, path in libraries.items()}
        variables |= compiled.sanitizer_environment("g++") if sanitize else {}
        variables |= {"PYTHONPATH": paths, "FAKE_HIP_ARCHS": archs} | environment
        variables = {name: value for name, value in variables.items() if value is not None}
        # Exit at once: Python does not know autograd's GPU threads, and would not end in order with them.
        end = "\nimport sys\nsys.stdout.flush()\nos._exit(0)\n"
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code) + end]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=TEST)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return pretend


@pytest.mark.parametrize(
    "sanitize, arch, registry",
    [
        (False, "gfx908", "old"),
        (False, "gfx942", "newest"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (False, "gfx908", "newest"),
                (False, "gfx90a", "old"),
                (False, "gfx90a", "newest"),
                (False, "gfx942", "old"),
                (True, "gfx908", "old"),
                (True, "gfx942", "newest"),
            ]
        ),
    ],
    indirect=["sanitize"],
)
def test_every_offered_solver_computes_what_pytorch_does(run, arch, registry):
    run(
        f"""
        from dataclasses import replace
        from torch_reformer.tuning.verify import samples
        stub.use_registry("{registry}")
        # Smaller, as the stub takes its time; and what only solvers for other filters compute.
        problems = [replace(each, c=min(each.c, 32), k=min(each.k, 32), h=8, w=8) for each in samples()]
        for r, s in (7, 7), (7, 1), (1, 7):
            problems.append(ConvProblem(2, 8, 8, 8, 8, r, s, r // 2, s // 2, direction="W"))
        problems += [ConvProblem(2, 8, 14, 14, 8, 5, 5, 2, 2, direction=direction) for direction in "FB"]
        ran, reasons = set(), {{}}
        for problem in problems:
            solvers = applicable(problem, GPU)
            wrong = check(operands(problem, GPU), solvers)
            assert not wrong, (problem, wrong)
            ran.update(solvers)
            for name, each in miopens(problem, "{arch}").items():
                reasons.setdefault(name, set()).add(each.reason)
        never = {{
            "MIOpen does not tell whether this solver applies", "it does not run on this architecture",
            "this version of MIOpen has no such solver",
        }}
        lacking = {{name for name, why in reasons.items() if name not in ran and not why & never}}
        assert lacking == {{"ConvMlirIgemmWrWXdlops"}}, "which MIOpen lacks without MLIR"
        assert stub.live_handles() == 1 and stub.looks_at_solutions() == 0
        """,
        f"{arch},{arch}",
    )


def test_training(run):
    """Gradients of a small network with biases, by modules and by fused operators, under autograd."""
    run("""
        def network():
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16),
                nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 1),
            )
        x = torch.randn(4, 8, 16, 16)
        expected = step(network(), x)
        for change in torch_reformer.convert, torch_reformer.fuse:
            model, before = network().to(GPU), runs()
            change(model)
            for a, b in zip(step(model, x.to(GPU)), expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            assert runs() - before >= 8, "forward and both gradients"
    """)


def test_compiled_training(run):
    """torch.compile's graphs choose MIOpen's solvers, too; programs that a kernel could fuse run after it."""
    run("""
        def network():
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1)
            )
        x = torch.randn(4, 8, 16, 16)
        expected = step(network(), x)
        model = torch.compile(network().to(GPU), backend="reformer")
        for _ in range(2):
            model.zero_grad()
            before = runs()
            for a, b in zip(step(model, x.to(GPU)), expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert runs() - before == 5, "two forward, two gradients of weights, one of an input"
    """)


@without_sanitizers
def test_collect(run, tmp_path):
    """MIOpen's solvers are in the database by its names, with right results. The GPU's clock is the host's here."""
    problems, database = tmp_path / "problems", tmp_path / "times.fdb.txt"
    problems.write_text("8-9-9-3x3-16-9-9-2-1x1-1x1-1x1-0-NCHW-FP32-F\n64-7-7-1x1-32-7-7-4-0x0-1x1-1x1-0-NCHW-FP32-F\n")
    run(
        f"""
        from torch_reformer.__main__ import main
        from torch_reformer.selector.timings import read_timings
        from torch_reformer.tuning import timing
        timing._on_gpu = lambda calls, before, device: timing.stopwatches(calls, before)
        command = ["collect", "--problems", "{problems}", "--out", "{database}", "--device", "cuda"]
        assert main([*command, "--directions", "F,W", "--repeats", "1"]) == 0
        records = read_timings("{database}")
        assert len(records) == 4
        for record in records:
            names = set(record.times)
            assert names >= {{"aten"}} | set(offered(record.problem)), names
    """
    )


@without_sanitizers
def test_verify(run, tmp_path):
    """The status is 0 if every offered solver is right, and 1 if one fails; problems that can't be run are skipped."""
    problems = tmp_path / "problems"
    problems.write_text("8-9-9-3x3-16-9-9-2-1x1-1x1-1x1-0-NCHW-FP32-F\n8-9-9-3x3-16-9-9-2-1x1-1x1-1x1-0-NCHW-INT8-F\n")
    done = run(f"""
        from torch_reformer.__main__ import main
        command = ["verify", "--device", "cuda", "--problems", "{problems}"]
        assert main(command) == 0
        stub.inject("miopenConvolutionForwardImmediate", 7, 1)
        assert main(command) == 1
    """)
    assert "GemmFwdRest" in done.stdout and " right" in done.stdout and "1 WRONG" in done.stdout
    assert done.stderr.count("PyTorch has no convolution of INT8") == 2
    assert "it failed: miopenConvolutionForwardImmediate gave" in done.stderr


def test_bias_follows(run):
    run("""
        b = torch.randn(16)
        for layout in torch.contiguous_format, torch.channels_last:
            x, w = X.contiguous(memory_format=layout), W.contiguous(memory_format=layout)
            for convolve in torch_reformer.conv2d, torch.ops.reformer.conv2d:
                before = runs()
                y = convolve(x.to(GPU), w.to(GPU), b.to(GPU), (1, 1), (1, 1), (1, 1), 1)
                assert runs() == before + 1
                torch.testing.assert_close(y.cpu(), F.conv2d(x, w, b, padding=1), rtol=1e-5, atol=1e-5)
    """)


@pytest.mark.parametrize("name", ["CompileSolution", "Immediate"])
def test_a_failure_is_reported_once_and_pytorch_runs(run, name):
    done = run(f"""
        warnings.simplefilter("always")
        stub.inject("miopenConvolutionForward{name}", 7, 1)
        convolved(X, W)
        assert convolved(X, W) == 1 and convolved(X, W) == 1, "by another solver of MIOpen's"
        problem = ConvProblem(2, 8, 9, 9, 16, 3, 3, 1, 1)
        failed = {{name: each.reason for name, each in miopens(problem).items() if "gave" in (each.reason or "")}}
        print(*failed, *failed.values(), sep=chr(10))
    """)
    solver, sentence = done.stdout.splitlines()
    assert sentence.startswith(f"miopenConvolutionForward{name} gave ")
    assert sentence.endswith(f" (7) for {solver} on 8-9-9-3x3-16-9-9-2-1x1-1x1-1x1-0-NCHW-FP32-F")
    assert done.stderr.count(f"{sentence}; PyTorch's own convolution runs instead") == 1


WORKSPACE = "ConvolutionForwardGetSolutionWorkspaceSize"
CALLS = [
    "CreateWithStream", "SetStream", "CreateTensorDescriptor", "SetNdTensorDescriptorWithLayout",
    "CreateConvolutionDescriptor", "InitConvolutionNdDescriptor", "SetConvolutionGroupCount",
    WORKSPACE, "ConvolutionForwardCompileSolution", "ConvolutionForwardImmediate",
]  # fmt: skip


def test_every_status(run):
    """After a failure of any call the result is right, there is one warning, and another solver of MIOpen's runs."""
    done = run(f"""
        from itertools import product

        for status, (number, name) in product(range(1, 11), enumerate({CALLS})):
            x = torch.randn(2, 8, 9 + number, 9 + status)
            stub.inject(f"miopen{{name}}", status, 1)
            with config(force="GemmFwdRest"):
                convolved(x, W)
            stub.inject(f"miopen{{name}}", 0, 0)
            assert convolved(x, W) == 1, (name, status)
    """)
    for name, status in itertools.product(CALLS, range(1, 11)):
        # By status 3 the query reports that a solver does not apply. There is one handle, whose stream never changes.
        silent = name == "SetStream" or {"CreateWithStream": status > 1, WORKSPACE: status == 3}.get(name, False)
        warned = re.findall(rf"miopen{name} gave \w+ \({status}\)", done.stderr)
        assert len(warned) == (not silent), (name, status, done.stderr)


def test_capture(run):
    """Solvers that have run on the thread's handle run in a graph; PyTorch's convolution replaces others, without a
    failure."""
    run("""
        warnings.simplefilter("error")
        hip.fake_set_capturing(1)
        assert convolved(X, W) == 0 and stub.live_handles() == 0 and stub.queries() == 0
        hip.fake_set_capturing(0)
        assert convolved(X, W) == 1
        hip.fake_set_capturing(1)
        assert convolved(X, W) == 1
        asked = stub.queries()
        assert convolved(X[:1], W) == 0
        assert stub.queries() == asked
        hip.fake_set_capturing(0)
        assert convolved(X[:1], W) == 1
    """)


def test_threads_and_devices(run):
    """One handle per thread and device; the current device is restored; handles outlive their threads."""
    run("""
        assert convolved(X, W) == 1 and stub.live_handles() == 1
        stub.expect_stream_of_thread(host.host_gpu_stream(1))
        assert convolved(X, W, torch.device("cuda", 1)) == 1 and stub.live_handles() == 2
        current = ctypes.c_int()
        assert hip.hipGetDevice(ctypes.byref(current)) == 0 and current.value == 0
        failed = []
        def work():
            try:
                for _ in range(10):
                    y = torch_reformer.conv2d(X.to(GPU), W.to(GPU), padding=1)
                    torch.testing.assert_close(y.cpu(), F.conv2d(X, W, padding=1), rtol=1e-5, atol=1e-5)
            except Exception as error:
                failed.append(error)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not failed
        handles = stub.live_handles()
        assert 3 <= handles <= 10
        other = threading.Thread(target=work)
        other.start()
        other.join()
        assert not failed and stub.live_handles() == handles, "that of a thread which has ended is taken over"
        assert stub.queries() < 40, "answers are shared"
    """)


def test_the_second_device_alone(run):
    """A process with tensors only on the second of two equal devices has no handle on the first."""
    run("""
        assert hip.hipSetDevice(0) == 0
        stub.expect_stream_of_thread(host.host_gpu_stream(1))
        assert convolved(X, W, torch.device("cuda", 1)) == 1
        assert stub.live_handles() == 1
    """)


def test_the_naive_solver_is_a_last_resort(run):
    """The weights know no other solver of MIOpen's there, and it is often far slower than PyTorch's."""
    run(
        """
        problem = ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1, groups=64, layout="NHWC")
        found = {each.name: each for each in candidates(problem, "gfx90a")}
        assert found["ConvDirectNaiveConvFwd"].reason is None
        assert not found["ConvDirectNaiveConvFwd"].chosen
    """,
        "gfx90a,gfx90a",
    )


def test_determinism(run):
    """By the configuration or by PyTorch's settings; with the attribute set, MIOpen itself refuses solvers."""
    run("""
        problem = ConvProblem(4, 32, 28, 28, 64, 3, 3, 1, 1, direction="W", layout="NHWC")
        free = set(offered(problem))
        with config(deterministic=True):
            fixed = set(offered(problem))
        assert fixed < free
        torch.backends.cudnn.deterministic = True
        assert set(offered(problem)) == fixed
        torch.backends.cudnn.deterministic = False
        torch.use_deterministic_algorithms(True)
        assert set(offered(problem)) == fixed
        torch.use_deterministic_algorithms(False)
        assert set(offered(problem)) == free
    """)


def test_a_solver_of_another_algorithm_is_refused(run):
    run("""
        stub.use_registry("changed:91")
        problem = ConvProblem(2, 8, 9, 9, 16, 3, 3, 1, 1)
        assert miopens(problem)["GemmFwdRest"].reason == "this version of MIOpen has no such solver"
        assert convolved(X, W) == 1
    """)


@without_sanitizers
def test_without_the_library(run, sanitize, tmp_path):
    run(
        'assert "MIOpen is not in this process" in refusals() and offered(ConvProblem(2, 8, 9, 9, 16, 3, 3)) == []',
        MIOPEN=None,
    )
    run('assert any("MIOPEN_HIPDNN_FORWARDING" in (each or "") for each in refusals())', MIOPEN_HIPDNN_FORWARDING="1")
    lacking = stub.build(tmp_path, sanitize, without=("miopenConvolutionForwardImmediate",))
    sentence = "the GPU's libraries have no miopenConvolutionForwardImmediate: they are too old"
    run(f"assert {sentence!r} in refusals()", MIOPEN=str(lacking))
    decoy = stub.build(tmp_path, sanitize, soname="libMIOpen_private.so.1", defines=("STUB_DECOY",))
    run(f'ctypes.CDLL({str(decoy)!r}); assert "MIOpen is not in this process" in refusals()', MIOPEN=None)
    run(f"ctypes.CDLL({str(decoy)!r}); assert convolved(X, W) == 1")


@without_sanitizers
@pytest.mark.parametrize(("name", "solvers"), [("gfx90a", "Winograd"), ("gfx908", "GTCDynamicFwdXdlops$")])
def test_xnack(run, name, solvers):
    found = f"""
        import re
        problem = ConvProblem(2, 64, 28, 28, 64, 3, 3, 1, 1, direction="F")
        found = [solver for solver in offered(problem, {name!r}) if re.search({solvers!r}, solver)]
    """
    run(f"{found}    assert not found", f"{name}:sramecc+:xnack+")
    run(f"{found}    assert found", f"{name}:sramecc+:xnack-")


@without_sanitizers
def test_other_gpus(run):
    """Without weights for the architecture none of them is chosen, and none is asked."""
    run(
        """
        problem = ConvProblem(2, 8, 9, 9, 16, 3, 3, 1, 1)
        assert next(each for each in candidates(problem, "gfx1100") if each.chosen).name == "aten"
        asked = stub.queries()
        torch_reformer.conv2d(X.to(GPU), W.to(GPU), padding=1)
        assert stub.queries() == asked and runs() == 0
    """,
        "gfx1100,gfx1100",
    )


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not there")
def test_few_queries_for_a_decision(run):
    """2,000 real problems, where MIOpen reports that just the solvers of a record apply."""
    done = run(f"""
        from pathlib import Path
        from torch_reformer.runtime import native
        from torch_reformer.selector.timings import read_timings
        from torch_reformer.selector.dataset import useless
        stub.use_registry("old")
        records = read_timings(Path({str(REAL)!r}))
        records = [each for each in records[:: len(records) // 2500] if not useless(each)][:2000]
        def line(record):
            entries = (f"{{t.solver}}:{{t.ms}},{{t.workspace}},{{t.algorithm}}" for t in record.timings)
            return f"{{record.key}}={{';'.join(entries)}}"
        stub.set_applicable(chr(10).join(map(line, records)))
        problems = native._array(each.problem.native() for each in records)
        choices = native.decide_all(problems, "gfx908")
        known = sum(config.solvers()[choice] in each.times for choice, each in zip(choices, records, strict=True))
        assert known > 0.9 * len(records), known
        print(len(records), stub.queries() / len(records))
    """)
    count, queries = done.stdout.split()
    assert int(count) == 2000 and float(queries) <= 3, done.stdout
