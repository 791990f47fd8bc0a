"""Run the package's GPU solvers in the emulator: the host side unchanged, the kernels on the CPU."""

import torch

import emulator
from emulator import host_side
from torch_reformer import ConvProblem
from torch_reformer.problem import TORCH_DTYPES

ARCHITECTURES = {32: "sm_80", 64: "gfx90a"}  # by warp size; sm_90 has clusters, whose blocks read each other's memory


def _dense(tensor: torch.Tensor, problem: ConvProblem) -> torch.Tensor:
    """The tensor in the problem's type and layout."""
    tensor = tensor.to(TORCH_DTYPES[problem.dtype])
    return tensor.permute(0, 2, 3, 1).contiguous() if problem.layout == "NHWC" else tensor.contiguous()


def result_of(solver: str, problem: ConvProblem, x, weight, y, bias=None, *, warp=32, seed=0) -> torch.Tensor:
    """Result of a solver for two of these NCHW tensors; of the third one only the size is used."""
    memory = {"F": y, "B": x, "W": weight}[problem.direction]
    tensors = [
        torch.full_like(_dense(tensor, problem), torch.nan) if tensor is memory else _dense(tensor, problem)
        for tensor in (x, weight, y)
    ]
    bias = None if bias is None else bias.to(TORCH_DTYPES[problem.dtype])

    def launch(entry, blocks, threads, shared_bytes, arguments):
        emulator.launch(
            f"csrc/hip/{entry.file}.hip",
            entry.name,
            grid=blocks,
            threads=threads,
            arguments=arguments,
            shared_bytes=shared_bytes,
            seed=seed,
            warp=warp,
            defines=(f"REFORMER_ENTRY={entry.arguments}",),
        )

    host_side.run(solver, problem.native(), ARCHITECTURES[warp], *tensors, bias, launch)
    result = tensors["BWF".index(problem.direction)]
    return result.permute(0, 3, 1, 2) if problem.layout == "NHWC" else result


def check(solver: str, problem: ConvProblem, *, warp=32, seed=0) -> None:
    """Compare with PyTorch in fp64 on small integers: sums are exact in fp32, so the result is the exact one, rounded
    once."""
    generator = torch.Generator().manual_seed(seed)

    def integers(*shape):
        return torch.randint(-4, 5, shape, generator=generator).double()

    p = problem
    x, weight = integers(*p.input_size), integers(*p.weight_size)
    bias = integers(p.k) if p.bias else None
    stride, padding, dilation, groups = p.geometry
    y = torch.conv2d(x, weight, bias, *p.geometry)
    if p.direction == "F":
        expected = y
    else:
        y = integers(*y.shape)
        masks = [p.direction == "B", p.direction == "W", False]
        grads = torch.ops.aten.convolution_backward(
            y, x, weight, None, stride, padding, dilation, False, (0, 0), groups, masks
        )
        expected = grads[0 if p.direction == "B" else 1]
    got = result_of(solver, problem, x, weight, y, bias, warp=warp, seed=seed)
    torch.testing.assert_close(got, expected.to(TORCH_DTYPES[p.dtype]), rtol=0, atol=0)


MOST_SHARED = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}  # bytes per block


def shared_bytes(solver: str, problem: ConvProblem, arch: str) -> list[int]:
    """Bytes of shared memory per block of each kernel that the solver launches; none runs."""
    asked, nothing = [], torch.empty(0)
    host_side.run(
        solver, problem.native(), arch, nothing, nothing, nothing, None,
        lambda entry, blocks, threads, shared_bytes, arguments: asked.append(shared_bytes),
    )  # fmt: skip
    return asked
