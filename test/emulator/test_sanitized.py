"""Run the emulated tests again under the compiler's sanitizers, in their own processes: one case of each test, or all
that `make test` runs."""

import pytest

import emulator

FAMILIES = [
    "test_emulator",
    "test_tile_gemm",
    "test_depthwise_emulated",
    "test_depthwise_planes_emulated",
    "test_implicit_gemm_emulated",
    "test_implicit_gemm_programs_emulated",
    "test_packed_gemm_emulated",
    "test_stitch_emulated",
    "test_tma_bugs",
    "test_tma_depthwise_programs_emulated",
    "test_tma_emulated",
    "test_tma_programs_emulated",
    "test_tma_windows_emulated",
]

pytestmark = [emulator.needed, emulator.without_sanitizers]


def check(*options, families):
    files = [f"test/emulator/{family}.py" for family in families]
    done = emulator.sanitized(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=short", *options, *files])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def test_no_complaints_of_first_cases():
    """One case of each test, all in one process."""
    check("--first-cases", families=FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_no_complaints(family):
    check("-m", "not slow", families=[family])
