"""Times matrix products with a program in their epilogue against cuBLAS followed by a stitched kernel.

The products are those of the table in docs/performance-notes.md: first layers of MLPs of ViT-B, BERT-large and
ConvNeXt-T. The programs are GELU, which also stores what it is of, and its gradient, which reads that. Each is timed in
every large tile of gpu_tma_gemm; so is the product alone. All sides of a problem are interleaved, in CUDA graphs.

    python benchmarks/product_epilogues.py --csv benchmarks/results/h200/product_epilogues.csv
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from results import Row, geomean, write_csv
from torch import Tensor

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.runtime import native
from torch_reformer.tuning.timing import interleaved, percentiles
from torch_reformer.tuning.workload import device_name, usable_device

# rows, depth, columns
PRODUCTS = [
    *((12608, 768, 3072), (8192, 1024, 4096), (401408, 96, 384)),
    *((100352, 192, 768), (25088, 384, 1536), (6272, 768, 3072)),
]
BIASED, BEFORE = program.acc() + program.channel("bias"), program.full("before")
SLOPE = program.normal_cdf(BEFORE) + BEFORE * program.normal_pdf(BEFORE)
PROGRAMS = {
    "alone": Program(program.store(program.acc())),
    "bias and relu": Program(program.store(program.relu(BIASED))),
    "residual": Program(program.store(BIASED + BEFORE)),
    "gelu": Program(program.store(program.gelu(BIASED)), program.store(BIASED)),
    "gelu's gradient": Program(program.store(program.acc() * SLOPE)),
}
SEPARATE, CUBLAS = "cuBLAS and stitched", "cuBLAS"
TILES = ("128x256", "128x192", "128x128", "pingpong_128x192", "pingpong_128x128")
CHECKED = 256  # rows


def forced(solver: str, call: Callable[[], object]) -> Callable[[], object]:
    def run():
        with torch_reformer.config(force=solver):
            return call()

    return run


def separate(x: Tensor, weight: Tensor, tested: Program, tensors: dict[str, Tensor]):
    """The product by PyTorch, then the program as a kernel of its own, on images of one pixel a row."""

    def image(matrix: Tensor) -> Tensor:
        return matrix.view(1, len(matrix), 1, -1).permute(0, 3, 1, 2)

    given = {name: image(tensor) if tensor.dim() == 2 else tensor for name, tensor in tensors.items()}
    results = torch_reformer.stitch(image(F.linear(x, weight)), tested, given)
    results = (results,) if isinstance(results, Tensor) else results
    return tuple(result.permute(0, 2, 3, 1).flatten(0, 2) for result in results)


def exact(name: str, x: Tensor, weight: Tensor, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Results of the first rows in fp64."""
    acc, bias = x[:CHECKED].double() @ weight.double().T, tensors["bias"].double()
    before = tensors["before"][:CHECKED].double()
    if name == "gelu":
        return F.gelu(acc + bias), acc + bias
    if name == "gelu's gradient":
        cdf = torch.erfc(-before / 2**0.5) / 2
        return (acc * (cdf + before * torch.exp(-before * before / 2) / (2 * torch.pi) ** 0.5),)
    return ({"alone": acc, "bias and relu": F.relu(acc + bias), "residual": acc + bias + before}[name],)


def errors(results: object, expected: tuple[Tensor, ...]) -> list[float]:
    results = (results,) if isinstance(results, Tensor) else results
    return [float((a[:CHECKED].double() - b).square().mean().sqrt()) for a, b in zip(results, expected, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas without spaces")
    parser.add_argument("--tiles", default=",".join(TILES), help="of gpu_tma_gemm, likewise")
    parser.add_argument("--seconds", type=float, default=0.2, help="for all sides of a problem")
    options = parser.parse_args()
    device = usable_device(options.device)
    chosen = options.programs.split(",")
    where, solvers = device_name(device), [f"gpu_tma_gemm_{tile}" for tile in options.tiles.split(",")]
    assert all(solver in native.solver_names() for solver in solvers), solvers
    rows: list[Row] = []
    ratios: dict[str, list[float]] = {}
    for m, k, n in PRODUCTS:
        options_of = {"device": device, "dtype": torch.bfloat16}
        x, weight = torch.randn(m, k, **options_of), torch.randn(n, k, **options_of) / k**0.5
        everything = {"bias": torch.randn(n, **options_of), "before": torch.randn(m, n, **options_of)}
        for name in chosen:
            tested = PROGRAMS[name]
            tensors = {of: everything[of] for of in tested.names}
            fused = functools.partial(torch_reformer.linear_epilogue, x, weight, tested, tensors)
            calls = {CUBLAS: functools.partial(F.linear, x, weight)}
            if name != "alone":
                calls[SEPARATE] = functools.partial(separate, x, weight, tested, tensors)
            calls |= {solver: forced(solver, fused) for solver in solvers}
            with torch.inference_mode():
                expected = exact(name, x, weight, everything)
                of_separate = errors(calls.get(SEPARATE, calls[CUBLAS])(), expected)
                for solver in solvers:
                    worse = [a / b for a, b in zip(errors(calls[solver](), expected), of_separate, strict=True)]
                    assert max(worse) < 1.02, (solver, name, worse)
                times = interleaved(calls, seconds=options.seconds, device=device)
            case = f"{m}x{k}x{n} {name}"
            rows += [Row.of("product_epilogues", case, call, "time_us", us, where) for call, us in times.items()]
            us = {call: percentiles(of)[1] for call, of in times.items()}
            best = min(us[solver] for solver in solvers)
            base = us.get(SEPARATE, us[CUBLAS])
            ratios.setdefault(name, []).append(base / best)
            line = " ".join(f"{us[solver]:8.1f}" for solver in solvers)
            print(f"{case:34} {us[CUBLAS]:8.1f} {base:8.1f} {line}   {base / best:5.2f}", flush=True)
    print("columns: cuBLAS alone, with a stitched kernel,", *solvers, "and the ratio of the second to the best")
    for name, of in ratios.items():
        print(f"{name}: {geomean(of):.3f}")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
