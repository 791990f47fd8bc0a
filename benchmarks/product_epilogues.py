"""Times matrix products with a program in their epilogue against cuBLAS followed by a stitched kernel.

The products are those of the table in docs/performance-notes.md: first layers of MLPs of ViT-B, BERT-large and
ConvNeXt-T. The programs are GELU, which also stores what it is of, and its gradient, which reads that, also with the
sum of its columns, as for a bias's gradient. A bias, and a bias with ReLU, are also timed as epilogues of cuBLASLt,
which PyTorch's operators call. Each program is timed in every large tile of gpu_tma_gemm; so is the product alone. All
sides of a problem are interleaved, in CUDA graphs. In an "input gradient" the weight's rows are the product's depth,
not its columns. Weight gradients, which have no program, are timed against cuBLAS, also by kernels whose blocks share
all steps evenly.

    python benchmarks/product_epilogues.py --csv benchmarks/results/h200/product_epilogues.csv
"""

from __future__ import annotations

import argparse
import functools
import itertools
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
    "bias": Program(program.store(BIASED)),
    "bias and relu": Program(program.store(program.relu(BIASED))),
    "residual": Program(program.store(BIASED + BEFORE)),
    "gelu": Program(program.store(program.gelu(BIASED)), program.store(BIASED)),
    "gelu's gradient": Program(program.store(program.acc() * SLOPE)),
    "gelu's gradient and its sum": Program(program.store(program.acc() * SLOPE), program.sum(program.acc() * SLOPE)),
}
GRADIENTS = ("alone", "residual", "gelu's gradient", "gelu's gradient and its sum")
SEPARATE, CUBLAS, CUBLASLT = "cuBLAS and stitched", "cuBLAS", "cuBLASLt's epilogue"
BY_CUBLASLT: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "bias": F.linear,
    "bias and relu": lambda x, weight, bias: torch._addmm_activation(bias, x, weight.t()),
}
TILES = ("128x256", "128x192", "128x128", "pingpong_128x192", "pingpong_128x128")
WEIGHT_GRADIENT, ITS_TILES = "weight gradient", ("128x256", "128x192", "128x128")
CHECKED = 256  # rows
MOST_ERROR = 1.02  # relative to the separate kernels'
MOST_ERROR_OF_SUMS = 1.25  # which are few numbers: their mean error scatters by 5%


def forced(solver: str, call: Callable[[], object]) -> Callable[[], object]:
    def run():
        with torch_reformer.config(force=solver):
            return call()

    return run


def image(matrix: Tensor) -> Tensor:
    """The matrix as an image of one pixel a row."""
    return matrix.view(1, len(matrix), 1, -1).permute(0, 3, 1, 2)


def separate(x: Tensor, weight: Tensor, tested: Program, tensors: dict[str, Tensor]):
    """The product by PyTorch, then the program as a kernel of its own, on images of one pixel a row."""
    given = {name: image(tensor) if tensor.dim() == 2 else tensor for name, tensor in tensors.items()}
    results = torch_reformer.stitch(image(F.linear(x, weight)), tested, given)
    results = (results,) if isinstance(results, Tensor) else results
    return tuple(result.permute(0, 2, 3, 1).flatten(0, 2) if result.dim() == 4 else result for result in results)


def exact(name: str, x: Tensor, weight: Tensor, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Results of these rows in fp64."""
    acc, bias = x.double() @ weight.double().T, tensors["bias"].double()
    before = tensors["before"].double()
    if name == "gelu":
        return F.gelu(acc + bias), acc + bias
    if name.startswith("gelu's gradient"):
        cdf = torch.erfc(-before / 2**0.5) / 2
        return (acc * (cdf + before * torch.exp(-before * before / 2) / (2 * torch.pi) ** 0.5),)
    biased = acc + bias
    return ({"alone": acc, "bias": biased, "bias and relu": F.relu(biased), "residual": biased + before}[name],)


def expected_of(name: str, x: Tensor, weight: Tensor, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Results of the first rows, and the sum of the columns of all, in fp64."""

    def of(first: int, rows: int) -> tuple[Tensor, ...]:
        some = slice(first, first + rows)
        return exact(name, x[some], weight, tensors | {"before": tensors["before"][some]})

    results = of(0, CHECKED)
    if name.endswith("its sum"):
        at_once = 1 << 14
        return *results, sum(of(first, at_once)[0].sum(0) for first in range(0, len(x), at_once))
    return results


def errors(results: object, expected: tuple[Tensor, ...]) -> list[float]:
    results = (results,) if isinstance(results, Tensor) else results
    some = [result[:CHECKED] if result.dim() == 2 else result for result in results]
    return [float((a.double() - b).square().mean().sqrt()) for a, b in zip(some, expected, strict=True)]


def check(solver: str, name: str, found: list[float], of_separate: list[float]) -> None:
    for i, (error, base) in enumerate(zip(found, of_separate, strict=True)):
        most = MOST_ERROR_OF_SUMS if i == 1 and name.endswith("its sum") else MOST_ERROR
        assert error < most * base, (solver, name, error, base)


def weight_gradients(x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    """The product of grad's transpose and x by cuBLAS and by this package's kernels, which are checked."""
    size, geometry = [grad.shape[1], x.shape[1], 1, 1], ([1, 1], [0, 0], [1, 1], 1)
    own = functools.partial(torch.ops.reformer.conv2d_weight_grad, size, image(x), image(grad), *geometry)
    calls: dict[str, Callable[[], object]] = {CUBLAS: lambda: grad.t() @ x}
    calls |= {solver: forced(solver, own) for solver in (f"gpu_tma_gemm_{tile}" for tile in ITS_TILES)}
    expected = (grad[:, :CHECKED].double().T @ x.double(),)
    base = errors(calls[CUBLAS](), expected)
    for solver, call in calls.items():
        check(solver, WEIGHT_GRADIENT, errors(call().view(grad.shape[1], -1), expected), base)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--csv", type=Path, help="write every measurement here, after each product")
    everything_timed = ",".join([*PROGRAMS, WEIGHT_GRADIENT])
    parser.add_argument("--programs", default=everything_timed, help="names, separated by commas without spaces")
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
        x, by_columns = torch.randn(m, k, **options_of), torch.randn(n, k, **options_of) / k**0.5
        weights = {"": by_columns, ", input gradient": by_columns.t().contiguous().t()}
        everything = {"bias": torch.randn(n, **options_of), "before": torch.randn(m, n, **options_of)}
        for (kind, weight), name in itertools.product(weights.items(), chosen):
            if name == WEIGHT_GRADIENT or (kind and name not in GRADIENTS):
                continue
            tested = PROGRAMS[name]
            tensors = {of: everything[of] for of in tested.names}
            fused = functools.partial(torch_reformer.linear_epilogue, x, weight, tested, tensors)
            calls = {CUBLAS: functools.partial(F.linear, x, weight)}
            if name != "alone":
                calls[SEPARATE] = functools.partial(separate, x, weight, tested, tensors)
            if name in BY_CUBLASLT:
                calls[CUBLASLT] = functools.partial(BY_CUBLASLT[name], x, weight, tensors["bias"])
            calls |= {solver: forced(solver, fused) for solver in solvers}
            with torch.inference_mode():
                expected = expected_of(name, x, weight, everything)
                of_separate = errors(calls.get(SEPARATE, calls[CUBLAS])(), expected)
                for solver in solvers:
                    check(solver, name, errors(calls[solver](), expected), of_separate)
                times = interleaved(calls, seconds=options.seconds, device=device)
            case = f"{m}x{k}x{n} {name}{kind}"
            rows += [Row.of("product_epilogues", case, call, "time_us", us, where) for call, us in times.items()]
            us = {call: percentiles(of)[1] for call, of in times.items()}
            best = min(us[solver] for solver in solvers)
            base = us.get(SEPARATE, us[CUBLAS])
            ratios.setdefault(name + kind, []).append(base / best)
            if name in BY_CUBLASLT:
                ratios.setdefault(f"{name}, {CUBLASLT}", []).append(us[CUBLASLT] / best)
            line = " ".join(f"{us[solver]:8.1f}" for solver in solvers)
            print(f"{case:62} {us[CUBLAS]:8.1f} {base:8.1f} {line}   {base / best:5.2f}", flush=True)
        if WEIGHT_GRADIENT in chosen:
            calls = weight_gradients(x, everything["before"])
            times = interleaved(calls, seconds=options.seconds, device=device)
            case = f"{n}x{m}x{k} {WEIGHT_GRADIENT}"
            rows += [Row.of("product_epilogues", case, call, "time_us", us, where) for call, us in times.items()]
            us = {call: percentiles(of)[1] for call, of in times.items()}
            best = min(us[call] for call in calls if call != CUBLAS)
            ratios.setdefault(WEIGHT_GRADIENT, []).append(us[CUBLAS] / best)
            print(f"{case:62}", *(f"{time:8.1f}" for time in us.values()), f"  {us[CUBLAS] / best:5.2f}", flush=True)
        if options.csv:
            write_csv(options.csv, rows)
    print("columns: cuBLAS alone, with a stitched kernel,", *solvers, "and the ratio of the second to the best")
    for name, of in ratios.items():
        print(f"{name}: {geomean(of):.3f}")


if __name__ == "__main__":
    main()
