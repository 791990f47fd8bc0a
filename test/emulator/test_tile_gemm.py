"""Matrix products by mma.h, with copies by async_copy.h: exact on small integers, for every type, layout and path."""

import ctypes

import pytest
import torch
from marks import slow

import emulator

pytestmark = emulator.needed

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "single": torch.float32}
TILES = [
    (32, 32, "depth", "depth"),
    (32, 32, "outer", "depth"),
    (32, 32, "depth", "outer"),
    (32, 64, "outer", "outer"),
    (16, 64, "depth", "depth"),
    (16, 16, "outer", "outer"),
]


class Arguments(ctypes.Structure):
    _fields_ = [
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("rows", ctypes.c_int),
        ("columns", ctypes.c_int),
        ("depth", ctypes.c_int),
    ]


def tile_gemm(a, b, type_name, tile, *, warp, launch=emulator.launch, **options):
    """a [rows, depth] times b [columns, depth] transposed, with operands in memory as the tile's layouts say."""
    tile_rows, tile_columns, lines_a, lines_b = tile
    (rows, depth), columns = a.shape, b.shape[0]
    a = a.to(TYPES[type_name]) if lines_a == "depth" else a.to(TYPES[type_name]).t().contiguous()
    b = b.to(TYPES[type_name]) if lines_b == "depth" else b.to(TYPES[type_name]).t().contiguous()
    c = torch.full((rows, columns), torch.nan, device=a.device)
    launch(
        "test/hip/tile_gemm.hip",
        f"tile_gemm_{type_name}_{tile_rows}_{tile_columns}_along_{lines_a}_along_{lines_b}",
        grid=(-(-columns // (2 * tile_columns)), -(-rows // (2 * tile_rows)), 1),
        threads=4 * warp,
        arguments=Arguments(a.data_ptr(), b.data_ptr(), c.data_ptr(), rows, columns, depth),
        shared_bytes=2 * 64 * 2 * (tile_rows + tile_columns),
        warp=warp,
        **options,
    )
    return c


# (warp, macros): gfx908 has other bf16 instructions than later GPUs.
PATHS = {"mma_sync": (32, ()), "mfma": (64, ()), "mfma_gfx908": (64, ("REFORMER_MFMA_BF16_PAIRS",))}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, tile)))
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("path", ["mma_sync", "mfma", *slow("mfma_gfx908")])
def test_integers_are_exact(path, type_name, tile, seed):
    warp, defines = PATHS[path]
    a, b = torch.randint(-8, 9, (88, 72)).float(), torch.randint(-8, 9, (104, 72)).float()
    c = tile_gemm(a, b, type_name, tile, warp=warp, seed=seed, defines=defines)
    torch.testing.assert_close(c, a @ b.t(), rtol=0, atol=0)


@pytest.mark.parametrize("warp, bits", [(32, 11), (64, 24)])
def test_how_fp32_is_rounded(warp, bits):
    """NVIDIA's instructions round fp32 to tf32, to the nearest; AMD's don't."""
    a, b = torch.randn(32, 8), torch.eye(16, 8)
    c = tile_gemm(a, b, "single", TILES[0], warp=warp)[:, :8]
    mantissa, exponent = torch.frexp(a)
    expected = torch.ldexp(torch.round(torch.ldexp(mantissa, torch.tensor(bits))), exponent - bits)
    torch.testing.assert_close(c, expected, rtol=0, atol=0)
