"""All that is emulated runs once more under the compiler's sanitizers, in processes of their own."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import emulator

FAMILIES = [
    "test_emulator",
    "test_tile_gemm",
    "test_depthwise_emulated",
    "test_depthwise_planes_emulated",
    "test_implicit_gemm_emulated",
    "test_packed_gemm_emulated",
    "test_tma_bugs",
    "test_tma_emulated",
    "test_tma_windows_emulated",
]


def run(family):
    file = f"test/emulator/{family}.py"
    return emulator.sanitized(
        ["-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short", file]
    )


@pytest.fixture(scope="module")
def runs(request):
    """Of all families that were asked for, as many at once as there are cores: most of the time goes to compilers."""
    asked = [item.callspec.params["family"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {family: pool.submit(run, family) for family in asked}


@pytest.mark.slow
@pytest.mark.skipif(emulator.SANITIZE, reason="this process has sanitizers")
@emulator.needed
@pytest.mark.parametrize("family", FAMILIES)
def test_no_complaints(family, runs):
    done = runs[family].result()
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
