"""Programs inside convolution kernels compile, use matrix instructions, and keep their values in registers."""

import pytest
import torch
from code_objects import amd_opcodes, find_llvm, resources
from compiled import code_object, compile_kernels, made
from emulator import conv_programs, implicit_gemm, tma_gemm
from emulator.plans import Problem
from marks import slow
from test_mma_code import need, ptx_of

from torch_reformer import program
from torch_reformer.operators import fused_programs
from torch_reformer.program import Program

BIASED = program.acc() + program.channel("bias")
RECTIFIED = program.relu(BIASED * program.full("residual"))
BEFORE = program.full("before")
GELU_GRADIENT = program.acc() * (program.normal_cdf(BEFORE) + BEFORE * program.normal_pdf(BEFORE))
PROGRAMS = {
    "residual, silu": Program(program.store(program.silu(BIASED + program.full("residual")))),
    "gelu and what it is of": Program(program.store(BIASED), program.store(program.gelu(BIASED))),
    "dropout": Program(program.store(program.select(program.random("key") < 0.1, 0, program.relu(BIASED)))),
    "normalise": fused_programs.normalise(frozenset(["mean", "squares", "scale", "shift", "residual"]), "silu", 1e-5),
}


# All programs with a kernel of each kind, and one with the kernel for 1x1 filters, which needs fewer registers.
KINDS = [*((name, 3) for name in PROGRAMS), ("normalise", 1)]
REDUCING = {
    "moments": fused_programs.moments(frozenset()),
    "moments with a bias": fused_programs.moments(frozenset(["bias"])),
    "sum": Program(program.store(RECTIFIED), program.sum(RECTIFIED)),
    "gradient of gelu and its sum": Program(program.store(GELU_GRADIENT), program.sum(GELU_GRADIENT)),
}


def tensor(kind):
    if kind == "full":
        return torch.empty(2, 24, 4, 4, dtype=torch.bfloat16)
    return torch.empty(1, dtype=torch.int64 if kind == "random" else torch.float32)


def source(with_program, name, filter, tile, type_name="bf16", direction="forward"):
    tested, half = (PROGRAMS | REDUCING)[name], filter // 2
    c, k = (8, 24) if direction == "forward" else (24, 8)
    problem = Problem(direction, type_name, 2, c, 4, 4, k, filter, filter, pad=(half, half))
    kernel = with_program(problem, tile)
    return conv_programs.source(problem, kernel, tested, [tensor(kind) for kind in tested.inputs.values()])


def check_hopper(file, instruction):
    text = ptx_of(file, "sm_90a")
    code = made("kernel.sm_90a.cubin", [compile_kernels.find_nvcc(), "-arch=sm_90a", "-cubin"], text)
    assert instruction in text.read_text()
    (used,) = resources(code).values()
    assert not used.stack_bytes and not used.spills


# The tiles with the most sums per thread, and those of the smallest blocks.
@pytest.mark.parametrize("tile", ["128x256_4", *slow("128x192_4", "128x128_6", "64x64_3")])
@pytest.mark.parametrize("filter", [1, 3])
@pytest.mark.parametrize("name", [*PROGRAMS, *REDUCING])
def test_tma_gemm(name, filter, tile):
    check_hopper(source(tma_gemm.with_program, name, filter, tile), "wgmma.mma_async")


# In input gradients the second operand lies along columns.
@pytest.mark.parametrize("direction", ["forward", "input_grad"])
@pytest.mark.parametrize("tile", ["128x192_4_pingpong", *slow("128x128_6_pingpong", "128x128_6", "128x64_6")])
@pytest.mark.parametrize("name", [*PROGRAMS, *REDUCING])
def test_product(name, tile, direction):
    check_hopper(source(tma_gemm.with_program, name, 1, tile, direction=direction), "wgmma.mma_async")


OF_CHANNELS = {
    "moments": REDUCING["moments"],
    "moments with a bias": REDUCING["moments with a bias"],
    "silu and its sum": Program(program.store(program.silu(BIASED)), program.sum(program.silu(BIASED))),
    "relu of moments with a bias": Program(program.store(program.relu(BIASED)), program.moments(BIASED)),
    "normalise": fused_programs.normalise(frozenset(["mean", "squares", "scale", "shift"]), "silu", 1e-5),
}


@pytest.mark.parametrize("kind", [(3, 1), *slow((3, 2), (5, 1), (5, 2), (7, 1), (7, 2))], ids=str)
@pytest.mark.parametrize("name", OF_CHANNELS)
def test_tma_depthwise(name, kind):
    """Blocks of small filters have an occupancy of three."""
    filter, stride = kind
    tested, half = OF_CHANNELS[name], filter // 2
    others = dict(pad=(half, half), stride=(stride, stride), groups=64)
    problem = Problem("forward", "bf16", 2, 64, 8, 8, 64, filter, filter, **others)
    kernel = tma_gemm.depthwise_with_program((2, 1, 3, 1))
    tensors = [tensor(kind) for kind in tested.inputs.values()]
    check_hopper(conv_programs.source(problem, kernel, tested, tensors), "mma.sync")


@pytest.mark.parametrize(
    "kind",
    [
        ("bf16", "128x256_8x1_4", "wgmma.mma_async"),
        ("fp32", "128x128_2x2_3", "mma.sync"),
        *slow(
            ("bf16", "128x128_8x1_3", "wgmma.mma_async"),
            ("bf16", "64x64_4x1_4", "wgmma.mma_async"),
            ("bf16", "64x32_2x2_4", "mma.sync"),
            ("fp32", "64x64_2x2_4", "mma.sync"),
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("name, filter", KINDS)
def test_implicit_gemm(name, filter, kind):
    type_name, tile, instruction = kind
    check_hopper(source(implicit_gemm.with_program, name, filter, tile, type_name), instruction)


@pytest.mark.parametrize(
    "kind", [("bf16", "128x128_2x2_3"), *slow(("bf16", "64x64_2x2_4"), ("fp32", "128x64_2x2_3"))], ids=str
)
@pytest.mark.parametrize("name, filter", KINDS)
@pytest.mark.parametrize("architecture", ["gfx942", *slow("gfx908")])
def test_implicit_gemm_of_amd(architecture, name, filter, kind):
    type_name, tile = kind
    clang = need(compile_kernels.find_clang(), "a compiler for AMD's GPUs (apt install clang-19 lld-19)")
    need(find_llvm("llvm-readelf") and find_llvm("llvm-objdump"), "llvm-readelf or llvm-objdump (apt install llvm-19)")
    code = code_object(clang, architecture, source(implicit_gemm.with_program, name, filter, tile, type_name))
    (opcodes,) = amd_opcodes(code).values()
    assert any("mfma" in opcode for opcode in opcodes)
    (used,) = resources(code).values()
    assert not used.stack_bytes and not used.spills
