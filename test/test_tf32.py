"""Kernels that round fp32 to tf32 are candidates where PyTorch's settings, read at every choice, allow it.

GPUs are only named here, not used: test_gpu.py compares results.
"""

import threading

import kernel_folders
import pytest
import torch

from torch_reformer import ConvProblem, config
from torch_reformer.runtime import native
from torch_reformer.selector.candidates import candidates

GPU = "sm_89"  # no other test uses its kernels: an architecture's packaged kernels are looked up only once
PROBLEM = ConvProblem(8, 64, 28, 28, 64, 3, 3, 1, 1, layout="NHWC")
SOLVER = "gpu_gemm_64x64"


@pytest.fixture(autouse=True)
def gpu(tmp_path):
    (tmp_path / "implicit_gemm.sm_80.cubin").write_bytes(b"\x7fELF")
    with kernel_folders.used(tmp_path):
        assert refusal(PROBLEM.replace(dtype="BF16")) is None
        yield


@pytest.fixture(autouse=True)
def pytorch_settings():
    yield
    torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True  # torch's default


def refusal(problem: ConvProblem = PROBLEM, device: str = GPU) -> str | None:
    return next(candidate.reason for candidate in candidates(problem, device) if candidate.name == SOLVER)


def chosen() -> str:
    return config.solvers()[native.decide(PROBLEM.native(), GPU)]


def test_pytorch_allows_it_unless_told_otherwise():
    assert refusal() is None
    torch.backends.cudnn.allow_tf32 = False
    assert refusal() == (
        "it rounds fp32 to tf32, which torch.backends.cudnn.conv.fp32_precision and the configuration do not allow"
    )
    assert refusal(PROBLEM.replace(dtype="FP16")) is None
    with config(reduced_accuracy=True):
        assert refusal() is None


def test_every_setting_of_pytorch_counts():
    backends = torch.backends
    backends.cudnn.conv.fp32_precision = "ieee"
    assert refusal() is not None
    backends.cudnn.conv.fp32_precision = "tf32"
    assert refusal() is None
    backends.cudnn.conv.fp32_precision = "none"  # it inherits the setting above
    backends.cudnn.fp32_precision = "ieee"
    assert refusal() is not None
    backends.cudnn.fp32_precision = "none"
    backends.fp32_precision = "tf32"
    assert refusal() is None


def test_settings_that_end():
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert refusal() is not None
    assert refusal() is None


def test_other_devices_have_none():
    assert native.allows_tf32(GPU)
    assert not any(map(native.allows_tf32, ["gfx90a", "cpu-avx2-1t", None]))


def test_choices_under_either_setting_are_remembered():
    with config(force=SOLVER):
        for _ in range(2):
            torch.backends.cudnn.allow_tf32 = True
            assert chosen() == SOLVER
            torch.backends.cudnn.allow_tf32 = False
            assert chosen() != SOLVER
            hits, misses = native.cache_counts()
        torch.backends.cudnn.allow_tf32 = True
        assert chosen() == SOLVER
        assert native.cache_counts() == (hits + 1, misses)


def test_read_in_every_thread():
    torch.backends.cudnn.allow_tf32 = False
    results = []
    thread = threading.Thread(target=lambda: results.append(refusal()))
    thread.start()
    thread.join()
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda grad: results.append(refusal()))
    leaf.sum().backward()
    assert len(results) == 2 and None not in results
