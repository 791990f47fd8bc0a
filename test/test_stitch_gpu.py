"""Epilogue programs on a GPU against the plain interpreter in fp64. Run by `make test-gpu`."""

import pytest
import torch
from rounded import reduced_rounded
from test_stitch import CHANNEL, FORMATS, FULL, OPERATIONS, acc_for, tensors_for

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret

pytestmark = pytest.mark.gpu
SIZES = [(2, 24, 9, 8), (4, 64, 56, 56), (3, 3, 7, 7), (2, 2048, 7, 7), (8, 40, 1, 1), (1, 1, 5, 3)]


def check(tested, size, dtype, layout):
    acc = acc_for(size, dtype, layout).cuda().contiguous(memory_format=FORMATS[layout])
    everything = tensors_for(size, dtype, layout)
    tensors = {name: everything[name].cuda() for name in tested.inputs}
    results = torch.ops.reformer.stitch(acc, list(tensors.values()), tested.code)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    expected = interpret(tested, size, torch.float64, wide, acc.double())
    for output, result, exact in zip(tested.outputs, results, expected, strict=True):
        eps = torch.finfo(result.dtype).eps if result.is_floating_point() else 0
        atol = 3e-6 if output.kind == "store" else 1e-6 * acc.numel()
        torch.testing.assert_close(result.double(), exact.to(result.dtype).double(), rtol=eps + 3e-6, atol=atol)
    return results


@pytest.mark.parametrize("layout", FORMATS)
def test_every_operation(layout):
    outputs = [program.store(value) for value in OPERATIONS.values()]
    for first in range(0, len(outputs), 12):
        check(Program(*outputs[first : first + 12]), (2, 6, 5, 9), torch.float32, layout)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_reductions(size, dtype, layout):
    value = program.acc() * CHANNEL + FULL
    kinds = [
        kind(value, per) for kind in (program.sum, program.max, program.moments) for per in ("channel", "plane", "all")
    ]
    tested = Program(program.store(program.relu(value)), *kinds, program.sum(value / 3))
    first, again = (check(tested, size, dtype, layout) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", FORMATS)
def test_planes_are_stored(layout):
    value = CHANNEL * program.plane("plane")
    outputs = [program.store(value, to, "plane") for to in (None, torch.float32, torch.bool)]
    for size in SIZES:
        check(Program(*outputs, program.store(program.acc() * value)), size, torch.bfloat16, layout)


def test_more_lines_than_a_launch_has_blocks_along_y():
    x = torch.randn(1, 70000, 1, 2048, dtype=torch.bfloat16, device="cuda")
    shift = torch.randn(70000, device="cuda")
    result = torch_reformer.stitch(x, Program(program.store(program.acc() + CHANNEL)), {"channel": shift})
    assert torch.equal(result, (x.float() + shift[:, None, None]).to(torch.bfloat16))


@pytest.mark.parametrize("layout", FORMATS)
def test_channels_are_stored(layout):
    value = CHANNEL * 2 + program.scalar("scalar") / program.rows()
    outputs = [program.store(value, to, "channel") for to in (None, torch.float32, torch.float16, torch.bool)]
    for size in SIZES:
        check(
            Program(*outputs, program.store(program.acc() * CHANNEL), program.sum(program.acc())),
            size,
            torch.bfloat16,
            layout,
        )
        check(Program(*outputs), size, torch.float32, layout)


def test_random_numbers_are_those_of_the_cpu():
    tested, x, key = (
        Program(program.store(program.random("key"))),
        torch.empty(3, 20, 7, 9),
        torch.tensor(-98765432198765),
    )
    on_cpu = torch_reformer.stitch(x, tested, {"key": key})
    assert torch.equal(torch_reformer.stitch(x.cuda(), tested, {"key": key.cuda()}).cpu(), on_cpu)


def test_in_a_graph_and_on_a_side_stream():
    tested = Program(program.store(program.gelu(program.acc())), program.moments(program.acc()))
    x = torch.randn(4, 32, 14, 14, device="cuda", dtype=torch.bfloat16)
    expected = torch_reformer.stitch(x, tested)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        on_side = torch_reformer.stitch(x, tested)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch_reformer.stitch(x, tested)
    graph.replay()
    for results in (on_side, captured):
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def kernels_of(function):
    """Names of the kernels that a call runs, after a first call."""
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


BIASED = program.acc() + CHANNEL
RECTIFIED = program.relu(BIASED * FULL)
INSIDE = {
    "residual, silu": [program.store(program.silu(BIASED + FULL))],
    "gelu and what it is of": [program.store(BIASED), program.store(program.gelu(BIASED))],
    "relu and its mask": [program.store(BIASED > 0, torch.bool), program.store(program.relu(BIASED))],
    "dropout": [program.store(program.select(program.random("key") < 0.5, 0, BIASED * program.row("row")))],
}


REDUCED = {  # by kernels that support it, which are forced
    "moments": [program.store(program.acc()), program.moments(program.acc())],
    "moments with a bias": [program.store(BIASED), program.moments(BIASED)],
    "sum": [program.store(RECTIFIED), program.sum(RECTIFIED)],
    "max": [program.store(BIASED), program.max(BIASED)],
}


def check_inside(name, solver, size, dtype, *, filter, stride=1, groups=1, reduces_result=False, by_columns=False):
    """Run a program with a convolution and return the names of the kernels.

    Sums are multiples of 1/64, so exact.

    Args:
        size: n, c, h, w, k.
        reduces_result: as in conv_programs.check.
        by_columns: the weight lies in memory as [C][K]; the filter is 1x1.
    """
    n, c, h, w, k = size
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        (torch.randint(-2, 3, sizes, generator=generator) / scale).to(dtype).cuda()
        for sizes, scale in (((n, c, h, w), 16), ((k, c // groups, filter, filter), 4))
    )
    x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
    if by_columns:
        weight = weight.transpose(0, 1).contiguous().transpose(0, 1)
    geometry = dict(stride=stride, padding=filter // 2, groups=groups)
    acc = torch.conv2d(x.double(), weight.double(), **geometry)
    tested = Program(*(INSIDE | REDUCED)[name])
    everything = tensors_for(acc.shape, dtype, "nhwc")
    tensors = {name: everything[name].cuda() for name in tested.inputs}
    results = []

    def run():
        value = torch_reformer.conv2d_epilogue(x, weight, tested, tensors, **geometry)
        results[:] = [value] if isinstance(value, torch.Tensor) else value

    with torch_reformer.config(force=solver):
        kernels = kernels_of(run)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    expected = interpret(tested, acc.shape, torch.float64, wide, acc)
    if reduces_result:
        expected = reduced_rounded(tested, expected, dtype)
    for output, result, exact in zip(tested.outputs, results, expected, strict=True):
        eps = torch.finfo(result.dtype).eps if result.is_floating_point() else 0
        atol = 1e-7 * n * h * w if output.kind == "sum" else 1e-5  # of terms that cancel each other
        assert result.dim() < 4 or result.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(result.double(), exact.to(result.dtype).double(), rtol=eps + 1e-5, atol=atol)
    return kernels


@pytest.mark.parametrize("filter, kernel", [(1, "tma_gemm"), (3, "tma_windows")])
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_the_convolution(name, filter, kernel):
    """There are too many blocks for the depth to be split."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is for Hopper GPUs")
    kernels = check_inside(name, "gpu_tma_gemm_128x64", (67, 72, 29, 29, 136), torch.bfloat16, filter=filter)
    assert len(kernels) == 1 and kernels[0].startswith(f"{kernel}_forward_bf16_128x64"), kernels


@pytest.mark.parametrize("filter, kernel", [(1, "tma_gemm"), (3, "tma_windows")])
@pytest.mark.parametrize("tile", ["128x256", "128x192", "128x128", "128x64", "64x128", "64x64"])
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_inside_of_the_convolution(name, tile, filter, kernel):
    """A second kernel adds up the partial results of blocks."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is for Hopper GPUs")
    options = dict(filter=filter, reduces_result=True)
    kernels = check_inside(name, f"gpu_tma_gemm_{tile}", (67, 72, 29, 29, 136), torch.bfloat16, **options)
    assert len(kernels) == 2 and kernels[1].startswith("stitch_finish_"), kernels
    assert kernels[0].startswith(f"{kernel}_forward_bf16_{tile}"), kernels


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("solver", ["pingpong_128x192", "pingpong_128x128", "128x128", "128x64"])
@pytest.mark.parametrize("name", [*INSIDE, *REDUCED])
def test_kernels_of_products(name, solver, by_columns):
    """A weight in the other order of memory is the filter of an input gradient, and not copied."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is for Hopper GPUs")
    options = dict(filter=1, reduces_result=True, by_columns=by_columns)
    kernels = check_inside(name, f"gpu_tma_gemm_{solver}", (67, 72, 29, 29, 136), torch.bfloat16, **options)
    direction, tile = "input_grad" if by_columns else "forward", solver.removeprefix("pingpong_")
    assert len(kernels) == (2 if name in REDUCED else 1), kernels
    assert kernels[0].startswith(f"tma_gemm_{direction}_bf16_{tile}"), kernels
    assert ("pingpong" in kernels[0]) == ("pingpong" in solver), kernels


@pytest.mark.parametrize("filter, stride", [(3, 1), (3, 2), (5, 1), (7, 2)])
@pytest.mark.parametrize("name", ["moments", "moments with a bias", "max"])
def test_reductions_inside_of_depthwise(name, filter, stride):
    """Tiles reach beyond images of 29 x 29; the last box of 64 channels has 8."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is for Hopper GPUs")
    options = dict(filter=filter, stride=stride, groups=72)
    kernels = check_inside(name, "gpu_tma_depthwise", (67, 72, 29, 29, 72), torch.bfloat16, **options)
    assert len(kernels) == 2 and kernels[1].startswith("stitch_finish_"), kernels
    assert kernels[0].startswith(f"tma_depthwise_forward_bf16_{filter}_{stride}"), kernels


# Warps multiply tiles of 32 columns on all GPUs; on Hopper warp groups multiply other tiles of 16-bit types.
TILES = ["128x128", "128x64", "64x128", "64x64", "128x32", "64x32", "32x32"]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FORWARD = {  # n, c, h, w, k and the geometry: too many blocks to split the depth; blocks have several tiles
    "1x1": ((67, 72, 29, 29, 136), dict(filter=1)),
    "3x3": ((67, 24, 29, 29, 136), dict(filter=3)),
    "strides": ((67, 24, 57, 57, 72), dict(filter=3, stride=2)),
    "groups": ((67, 96, 29, 29, 144), dict(filter=3, groups=2)),
}


@pytest.mark.parametrize("tile", ["128x256", *TILES])
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_implicit_gemm(name, tile):
    if tile == "128x256" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("it is for Hopper GPUs")
    size, geometry = FORWARD["3x3"]
    kernels = check_inside(name, f"gpu_gemm_{tile}", size, torch.bfloat16, **geometry)
    assert len(kernels) == 1 and kernels[0].startswith(f"implicit_gemm_forward_bf16_general_{tile}_"), kernels


@pytest.mark.parametrize("problem", FORWARD)
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("tile", ["64x64", "64x32"])
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_implicit_gemm_problems(name, tile, type_name, problem):
    size, geometry = FORWARD[problem]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        kernels = check_inside(name, f"gpu_gemm_{tile}", size, TYPES[type_name], **geometry)
    kind = "pointwise" if problem == "1x1" else "general"
    assert len(kernels) == 1 and kernels[0].startswith(f"implicit_gemm_forward_{type_name}_{kind}_{tile}_"), kernels


PACKED = {
    "stem": ((32, 3, 60, 60, 64), dict(filter=7, stride=2)),
    "groups": ((32, 64, 30, 30, 64), dict(filter=3, groups=16)),
}


@pytest.mark.parametrize("problem", PACKED)
@pytest.mark.parametrize("tile", ["128x64", "64x64", "128x32"])
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_packed_implicit_gemm(name, tile, problem):
    size, geometry = PACKED[problem]
    kernels = check_inside(name, f"gpu_packed_gemm_{tile}", size, torch.bfloat16, **geometry)
    assert len(kernels) == 2 and kernels[0].startswith("pack_pack_bf16"), kernels
    assert kernels[1].startswith(f"implicit_gemm_forward_bf16_general_{tile}_"), kernels


@pytest.mark.parametrize("size", [(1, 1024, 7, 7, 64), (2, 2048, 14, 14, 96), (8, 256, 14, 14, 64)], ids=str)
@pytest.mark.parametrize("name", INSIDE)
def test_inside_of_implicit_gemm_with_a_cut_depth(name, size):
    """Clusters add up their sums before the program. After partial sums the program is a separate kernel, on fp32
    results, which are exact, too."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        kernels = check_inside(name, "gpu_gemm_64x64", size, torch.float32, filter=3)
    kinds = sorted(next(kind for kind in ("finish", "stitch", "forward") if kind in kernel) for kernel in kernels)
    assert kinds in (["forward"], ["finish", "forward", "stitch"]), kernels


@pytest.mark.parametrize("activation", program.ACTIVATIONS)
@torch.backends.cudnn.flags(enabled=True, allow_tf32=False)  # two kernels' tf32 sums differ by more than this
def test_batch_norm_trains_as_pytorch(activation):
    x = torch.randn(4, 16, 14, 14, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    ours = torch_reformer.nn.Conv2dBatchNormAct(16, 32, 3, padding=1, activation=activation).cuda()
    result = ours(x)
    value = torch.nn.functional.batch_norm(
        torch.nn.functional.conv2d(x, ours.conv.weight, padding=1), None, None, ours.norm.weight, ours.norm.bias, True
    )
    (expected,) = interpret(
        Program(program.store(program.ACTIVATIONS[activation](program.acc()))), value.shape, torch.float32, {}, value
    )
    weights = torch.randn_like(result)
    wanted = [x, *ours.parameters()]
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
    theirs = torch.autograd.grad(expected, wanted, weights)
    torch.testing.assert_close(torch.autograd.grad(result, wanted, weights), theirs, rtol=1e-2, atol=1e-2)
