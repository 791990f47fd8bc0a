"""Kernels generated for programs compile for every supported GPU, and keep their values in registers."""

import os
import re
from pathlib import Path

import kernel_folders
import pytest
import torch
from compiled import compile_kernels
from emulator.row_programs import PROGRAMS as OF_ROWS
from emulator.stitching import planner, source
from emulator.tail_programs import OF_ROWS as OF_LONGER_ROWS
from emulator.tail_programs import call, labels
from emulator.test_stitch_heights_emulated import PROGRAMS as OF_HEIGHTS
from look_ups import looked_up, looking_up
from mapped import reading
from marks import slow
from placements import TURNED, TURNED_TWICE, with_five_dimensions, written_like
from test_mapped import case
from test_mma_code import check_generated, ptx_of

import torch_reformer
from torch_reformer import program
from torch_reformer.operators import fused_programs
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative
from torch_reformer.program.operations import OPERANDS
from torch_reformer.runtime import gpu

HAS_NVRTC = kernel_folders.load_nvrtc()


def programs():
    """Batch norm, its derivative, a program with every activation, dropout, and programs with row reductions."""
    names = frozenset(["mean", "squares", "scale", "shift", "residual"])
    normalise = fused_programs.normalise(names, "silu", 1e-5)
    backward = derivative(normalise, ("acc", *normalise.inputs), None, True).backward
    activations = Program(
        *(program.store(function(program.acc())) for function in program.ACTIVATIONS.values()),
        program.moments(program.acc()),
    )
    dropout = Program(
        program.store(program.select(program.random("key") < 0.5, 0, program.acc())), program.max(program.acc(), "all")
    )
    gated = program.full("other") * program.plane("gate") + program.plane("shift")
    planes = Program(
        program.store(program.silu(gated)),
        program.moments(gated, "plane"),
        program.sum(program.acc(), "plane", torch.bfloat16),
    )
    return {
        "planes": planes,
        "normalise": normalise,
        "backward": backward,
        "activations": activations,
        "dropout": dropout,
    } | OF_ROWS


def tensor(kind, size):
    if kind == "full":
        return torch.empty(size, dtype=torch.bfloat16)
    return torch.empty(1, dtype=torch.int64 if kind == "random" else torch.float32)


def compiles(architecture, tested, size, layout, shared_bytes=49152):
    acc = torch.empty(size, dtype=torch.bfloat16).contiguous(memory_format=layout)
    file = source(tested, acc, [tensor(kind, size) for kind in tested.inputs.values()], shared_bytes=shared_bytes)
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


@pytest.mark.parametrize("layout", [torch.channels_last, *slow(torch.contiguous_format)], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("name", sorted(programs().keys() - OF_ROWS.keys()))
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_compiles(architecture, name, layout):
    compiles(architecture, programs()[name], (2, 24, 4, 4), layout)


@pytest.mark.parametrize("architecture", ["gfx90a", "sm_80", *slow("gfx908", "gfx942", "sm_90a")])
@pytest.mark.parametrize("ops", ["expm1 log2 log10 floor round", "pow fmod", "atan2 copysign", "sin cos"])
def test_functions_keep_their_values_in_registers(ops, architecture):
    """But for NVIDIA's own sine and cosine, which multiply large angles in an array."""
    operands = program.acc(), program.full("y")
    values = [program.Value(op, *operands[: OPERANDS[op]]) for op in ops.split()]
    tested = Program(*map(program.store, values))
    acc = torch.empty((2, 24, 4, 4), dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    file = source(tested, acc, [acc] * len(tested.inputs))
    stack = 32 if ops == "sin cos" and architecture.startswith("sm_") else 0
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"}, stack)


def turned_programs():
    """Programs with transposed tensors, and the numbers of their transposed outputs.

    Group norm and SiLU with a transposed result, their derivatives with a transposed gradient, and a program with
    several transposed tensors.
    """
    names = ("scale", "shift", "of_grad", "of_x", "rest")
    scale, shift, of_grad, of_x, rest = (program.plane(name) for name in names)
    grad, x = program.full("grad"), program.acc()
    value = x * scale + shift
    share = program.sigmoid(value)
    through = grad * share * (value * (1 - share) + 1)
    many = [program.full(f"t{i}") for i in range(3)]
    return {
        "forward": (Program(program.store(program.silu(value))), (0,)),
        "sums": (Program(program.sum(through, "plane"), program.sum(through * x, "plane")), ()),
        "backward": (Program(program.store(through * of_grad + x * of_x + rest)), ()),
        "many": (
            Program(
                program.store(many[0] * x + many[1]),
                program.store(many[2] > 0, torch.bool),
                program.moments(many[0]),
            ),
            (0, 1),
        ),
    }


@pytest.mark.parametrize("name", turned_programs())
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_tiles_compile(architecture, name):
    tested, outputs = turned_programs()[name]
    size = (2, 320, 8, 8)
    acc = torch.empty(size, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    turned = with_five_dimensions(written_like(TURNED["turned"](size), torch.bfloat16))
    tensors = [turned if kind == "full" else tensor(kind, size) for kind in tested.inputs.values()]
    into = {i: turned.to(tested.outputs[i].dtype or torch.bfloat16) for i in outputs}
    check_generated(architecture, source(tested, acc, tensors, into=into), {"stitch_test", "stitch_test_finish"})


@pytest.mark.parametrize("way", ["columns", "rows", "transposed"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_whole_numbers_compile(architecture, dtype, way):
    whole, of_row, size = program.full("whole"), program.row("of_row"), (2, 320, 8, 8)
    most = program.row_max(program.acc()) if way == "rows" else 0
    outputs = [program.store(program.acc() * whole - most, dtype), program.store(of_row, dtype)]
    outputs += [program.store(of_row > 3, dtype, "row")] if way == "rows" else []
    acc = torch.empty(size, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    turned = with_five_dimensions(written_like(TURNED["turned"](size), torch.bfloat16)).to(dtype)
    tensors = [turned if way == "transposed" else acc.to(dtype), torch.empty(2, 8, 8, dtype=dtype)]
    file = source(Program(*outputs), acc, tensors, into={0: turned} if way == "transposed" else {}, shared_bytes=49152)
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_tiles_whose_channels_repeat_compile(architecture):
    """The gradient of a gated sum over halves of the channels."""
    grad, size = program.full("grad"), (2, 320, 8, 8)
    tested = Program(
        program.store(grad * program.plane("gate")), program.sum(grad * program.acc(), "plane", torch.bfloat16)
    )
    acc = torch.empty(size, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    turned = written_like(TURNED_TWICE["turned, twice"](size), torch.bfloat16)
    file = source(tested, acc, [turned, tensor("plane", size)])
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


@pytest.mark.parametrize("is_turned", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("way", ["taps", "few sums, columns", *slow("many taps", "taps, columns", "few sums")])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_maps_of_axes_compile(architecture, way, is_turned):
    leaf, tensors, acc, _ = case(way, (2, 8, 8, 64), torch.bfloat16)
    tested = reading(leaf)["stored"]
    into = {0: written_like(TURNED["turned"](acc.shape), torch.bfloat16)} if is_turned else {}
    file = source(tested, acc, [tensors[name] for name in tested.names], into=into)
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


@pytest.mark.parametrize("way", ["taps", "few sums"])
def test_loads_of_sums_are_not_behind_conditions(way):
    """The compiler moves loads behind conditions of what they are used for; then each waits for the one before it. Here
    no branch forwards, but for those behind the stores, passes by a load."""
    leaf, tensors, acc, _ = case(way, (2, 8, 8, 64), torch.bfloat16)
    tested = Program(program.store(leaf))
    text = ptx_of(source(tested, acc, [tensors[name] for name in tested.names]), "sm_90a").read_text()
    lines = text.partition(".entry stitch_test(")[2].partition("\n}")[0].splitlines()
    is_load, is_store = ([kind in line for line in lines] for kind in ("ld.global", "st.global"))
    first_sums = next(i for i, line in enumerate(lines) if "fma.rn.f32" in line)
    assert sum(is_load) > 4 and any(is_store)
    for i, line in enumerate(lines):
        label = re.search(r"bra\S*\s+(\$\w+);", line)
        end = lines.index(f"{label[1]}:") if label else 0
        if end > i and not any(is_store[i:end]) and (way == "taps" or i < first_sums):
            assert not any(is_load[i:end]), lines[i:end]


@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_tiles_that_look_up_compile(architecture, request):
    """The compiler makes no such programs, since gfx908 spills registers (fusion/fuse_gather.py). Remove the mark with
    the fix."""
    if architecture == "gfx908":
        request.applymarker(pytest.mark.xfail(strict=True, reason="registers spill"))
    tested, size = looking_up()["tables"], (2, 320, 8, 8)
    acc, tensors = looked_up(tested, size, torch.bfloat16)
    into = {0: with_five_dimensions(written_like(TURNED["turned"](size), torch.bfloat16))}
    file = source(tested, acc, [*tensors.values()], into=into)
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


# Rows in part of a warp, in one, in several; and too long for registers.
@pytest.mark.parametrize("width", [24, 1024, *slow(768, 1000, 4096)])
@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_rows_compile(architecture, name, width, request):
    if name == "everything" and width == 4096 and architecture in ("gfx908", "gfx90a"):
        reason = "4 or 2 of 102 scalar registers spill into lanes of a vector register"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    compiles(architecture, programs()[name], (1, width, 64, 1), torch.channels_last)


@pytest.mark.parametrize("name", ["softmax_backward", "modulated_norm_backward"])  # nvcc warns if no rows are reduced
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_reductions_per_height_compile(architecture, name):
    compiles(architecture, OF_HEIGHTS[name], (64, 49, 12, 1), torch.channels_last)
    compiles(architecture, OF_HEIGHTS[name], (1, 768, 8, 32), torch.channels_last)


# Rows in part of a warp, in several, and too long for registers.
@pytest.mark.parametrize("width", [1024, *slow(24, 768, 50304)])
@pytest.mark.parametrize("name", looking_up())
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_look_ups_compile(architecture, name, width):
    tested = looking_up()[name]
    if width > 4096 and "sum" in {output.kind for output in tested.outputs}:
        pytest.skip("rows that are too long to be added up, too")
    acc, tensors = looked_up(tested, (1, width, 64, 1), torch.bfloat16)
    file = source(tested, acc, [*tensors.values()], shared_bytes=49152)
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


@pytest.mark.parametrize("reduces_rows", [False, True])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_concatenations_compile(architecture, reduces_rows):
    """A rotary embedding, each of whose vectors is read from one half; also with the sum of its rows."""
    rows, half = 64, (0, 0, 64, 0, 1)
    acc = torch.empty((1, 64, rows, 1), dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    x, angles = torch.empty(rows, 64, dtype=torch.bfloat16), torch.empty(16, 64, dtype=torch.bfloat16)
    turned = program.select(program.channel_index() < 32, -program.full("second"), program.full("first"))
    value = program.acc() + turned * program.full("sine")
    tested = Program(program.store(value / program.row_sum(value) if reduces_rows else value))
    given = {
        "second": x.as_strided((1, 1, rows, 2, 32), half, 32),
        "first": x.as_strided((1, 1, rows, 2, 32), half, 0),
        "sine": angles.expand(1, 1, rows // 16, 16, 64),
    }
    file = source(tested, acc, [given[name] for name in tested.inputs])
    assert "column < 32" in planner().source().decode()
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"})


# Reduced rows in part of a warp, in several, and in shared memory.
@pytest.mark.parametrize("width", [1099, *slow(77, 50257)])
@pytest.mark.parametrize("name", ["labels", *slow("labels in fp32"), *OF_LONGER_ROWS])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_rows_that_end_within_groups_compile(architecture, name, width):
    if name == "sums_beside" and width > 4096:
        pytest.skip("rows that are too long to be added up, too")
    tested = {"labels": labels(), "labels in fp32": labels(program.acc()), **OF_LONGER_ROWS}[name]
    dtype = torch.float32 if name == "labels in fp32" else torch.bfloat16
    acc, tensors, into = call(tested, (1, width, 4, 1), dtype)
    file = source(tested, acc, [*tensors.values()], into=into, shared_bytes=227 << 10)
    # ptxas may keep one number of each thread in memory, where 48 registers allow one more block a multiprocessor; it
    # is stored after the loop over lines.
    check_generated(architecture, file, {"stitch_test", "stitch_test_finish"}, 8 if name == "labels in fp32" else 0)


# Rows in shared memory, two at once or one, or read again.
@pytest.mark.parametrize("shared_bytes", [227 << 10, *slow(163 << 10, 64 << 10)])
@pytest.mark.parametrize("name", ["softmax", "classes", *slow("layer_norm")])
@pytest.mark.parametrize("architecture", compile_kernels.ARCHITECTURES)
def test_long_rows_compile(architecture, name, shared_bytes):
    compiles(architecture, programs()[name], (1, 50304, 64, 1), torch.channels_last, shared_bytes)


@pytest.mark.skipif(not HAS_NVRTC and not os.environ.get("CI"), reason="NVRTC is not installed")
@pytest.mark.parametrize("name", ["activations", "planes", "softmax", "classes"])
def test_compiles_at_run_time(name):
    """Compile with NVRTC, which lacks some of what nvcc has."""
    tested = programs()[name]
    acc = torch.empty((1, 50304, 64, 1), dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    source(tested, acc, [tensor(kind, acc.shape) for kind in tested.inputs.values()], shared_bytes=227 << 10)
    text = planner().source().decode().partition("REFORMER_STITCH_FINISH")[0]
    entry = gpu.Entry(f"pointwise/{'stitch_rows' if name in OF_ROWS else 'stitch'}", "stitch_test", "0", text)
    assert gpu.compile_entry(entry, "sm_90").code.startswith(b"\x7fELF")


def test_is_what_the_package_compiles():
    """The text of a kernel follows the packaged source's, so these tests compile what a user's GPU gets."""
    for name in ("stitch.hip", "stitch_rows.hip", "stitch_tiles.hip"):
        packaged = Path(torch_reformer.__file__).parent / "kernels/src/pointwise" / name
        assert packaged.read_text() == (Path(__file__).parent.parent.parent / "csrc/hip/pointwise" / name).read_text()
