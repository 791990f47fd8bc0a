"""Run the emulator's tests of mma.h, async_copy.h and warp.h on NVIDIA's GPUs: the same kernels, compiled by nvcc."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import emulator
import pytest
import torch
from emulator import ROOT
from emulator.test_emulator import PRIMITIVES, THREADS, WarpArguments
from emulator.test_tile_gemm import TILES, TYPES, tile_gemm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.version.hip is not None or shutil.which("nvcc") is None, reason="it takes nvcc"),
]
DYNAMIC_SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@functools.cache
def driver():
    torch.cuda.init()
    torch.cuda.synchronize()  # creates the context that the driver's functions use
    return ctypes.CDLL("libcuda.so.1")


def check(status: int) -> None:
    text = ctypes.c_char_p()
    if status:
        driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA's driver: {text.value}")


@functools.cache
def module(file: str) -> ctypes.c_void_p:
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "kernels.cubin")
        flags = ["-x", "cu", "-std=c++17", "-O3", f"-arch=sm_{major}{minor}", f"-I{ROOT / 'csrc/hip/device'}", "-cubin"]
        subprocess.run(["nvcc", *flags, ROOT / file, "-o", code], check=True)
        loaded = ctypes.c_void_p()
        check(driver().cuModuleLoadData(ctypes.byref(loaded), code.read_bytes()))
    return loaded


def launch(file, name, *, grid, threads, arguments, shared_bytes=0, warp=32):
    """Launch on the current stream; the arguments are those of emulator.launch."""
    function, data = ctypes.c_void_p(), ctypes.create_string_buffer(bytes(arguments))
    check(driver().cuModuleGetFunction(ctypes.byref(function), module(file), name.encode()))
    check(driver().cuFuncSetAttribute(function, DYNAMIC_SHARED_LIMIT, shared_bytes))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(data))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    check(driver().cuLaunchKernel(function, *grid, threads, 1, 1, shared_bytes, stream, parameters, None))


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "-".join(map(str, tile)))
@pytest.mark.parametrize("type_name", TYPES)
def test_integers_are_exact(type_name, tile):
    a, b = torch.randint(-8, 9, (88, 72)).float(), torch.randint(-8, 9, (104, 72)).float()
    c = tile_gemm(a.cuda(), b.cuda(), type_name, tile, warp=32, launch=launch)
    torch.testing.assert_close(c.cpu(), a @ b.t(), rtol=0, atol=0)


def test_rounding_to_tf32_is_the_emulators():
    a, b = torch.randn(88, 72), torch.eye(104, 72)
    c = tile_gemm(a.cuda(), b.cuda(), "single", TILES[0], warp=32, launch=launch)
    torch.testing.assert_close(c.cpu(), tile_gemm(a, b, "single", TILES[0], warp=32), rtol=0, atol=0)


def test_warp_primitives():
    numbers = torch.randn(THREADS)

    def results(run, device):
        given, result = numbers.to(device), torch.full((THREADS, 8), torch.nan, device=device)
        arguments = WarpArguments(given.data_ptr(), result.data_ptr(), 5, 3)
        run(PRIMITIVES, "warp_primitives", grid=(1, 1, 1), threads=THREADS, arguments=arguments, warp=32)
        return result.cpu()

    torch.testing.assert_close(results(launch, "cuda"), results(emulator.launch, "cpu"), rtol=0, atol=0)
