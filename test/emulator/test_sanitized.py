"""All that is emulated runs once more under the compiler's sanitizers, in processes of their own."""

import pytest

import emulator

FAMILIES = [
    "test_emulator",
    "test_tile_gemm",
    "test_depthwise_emulated",
    "test_depthwise_planes_emulated",
    "test_implicit_gemm_emulated",
    "test_implicit_gemm_programs_emulated",
    "test_layer_norm_emulated",
    "test_packed_gemm_emulated",
    "test_stitch_emulated",
    "test_tma_bugs",
    "test_tma_emulated",
    "test_tma_programs_emulated",
    "test_tma_windows_emulated",
]


@pytest.mark.slow
@pytest.mark.skipif(emulator.SANITIZE, reason="this process has sanitizers")
@emulator.needed
@pytest.mark.parametrize("family", FAMILIES)
def test_no_complaints(family):
    file = f"test/emulator/{family}.py"
    done = emulator.sanitized(
        ["-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=short", file]
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
