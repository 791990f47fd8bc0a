"""Run some of the emulated tests of `make test` again under the compiler's sanitizers, each file in its own process."""

import pytest

import emulator

FAMILIES = [
    "test_emulator",
    "test_tile_gemm",
    "test_depthwise_emulated",
    "test_depthwise_planes_emulated",
    "test_few_rows_emulated",
    "test_implicit_gemm_emulated",
    "test_implicit_gemm_programs_emulated",
    "test_mapped_emulated",
    "test_packed_gemm_emulated",
    "test_random_graphs_emulated",
    "test_stitch_emulated",
    "test_tma_bugs",
    "test_tma_depthwise_programs_emulated",
    "test_tma_emulated",
    "test_tma_programs_emulated",
    "test_tma_windows_emulated",
]

pytestmark = [emulator.needed, emulator.without_sanitizers, pytest.mark.nightly]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_complaints(family):
    file = f"test/emulator/{family}.py"
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "emulator.few_cases", "--tb=short", "-m", "not slow"]
    done = emulator.sanitized(["-m", "pytest", *options, file])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
