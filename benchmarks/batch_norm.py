"""Times the memory passes of batch norm and relu by epilogue programs, one by one, and PyTorch's operators. Tensors are
channels_last; on a CPU in float32.

    python benchmarks/batch_norm.py --csv benchmarks/results/cpu/batch_norm.csv
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from results import Row, write_csv

from torch_reformer import program
from torch_reformer.operators import fused_programs
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative
from torch_reformer.tuning.workload import device_name

SIZES = [(8, 64, 112, 112), (8, 64, 56, 56), (8, 256, 14, 14), (8, 512, 7, 7)]
ROUNDS = 15


def passes(size: tuple[int, int, int, int]) -> dict[str, Callable[[], object]]:
    """Calls for one size: this package's two passes forward and two backward, PyTorch's forward and backward, and a
    copy."""
    channels = size[1]
    x, grad = (torch.randn(size).contiguous(memory_format=torch.channels_last) for _ in range(2))
    tensors = {"scale": torch.rand(channels) + 0.5, "shift": torch.randn(channels)}
    mean, squares = torch.ops.reformer.stitch(x, [], Program(program.moments(program.acc())).code)[0].unbind()
    tensors |= {"mean": mean, "squares": squares}

    def run(stitched: Program, inputs: list[torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.ops.reformer.stitch(x, inputs, stitched.code)

    normalise = fused_programs.normalise(frozenset(tensors), "relu", 1e-5)
    inputs = [tensors[name] for name in normalise.inputs]
    (result,) = run(normalise, inputs)()
    first = derivative(normalise, ("acc", *normalise.inputs), None, True)
    known = {("acc", 0): x, ("grad", 0): grad, ("output", 0): result}
    known |= {("input", name): tensor for name, tensor in tensors.items()}
    second = derivative(fused_programs.moments(frozenset()), ("acc",))
    of_moments = {("grad", 0): grad, ("grad", (1, 0)): mean, ("grad", (1, 1)): mean, ("output", 0): x}
    of_moments[("output", (1, 0))] = mean

    leaf = x.clone().requires_grad_()
    scale, shift = (tensors[name].clone().requires_grad_() for name in ("scale", "shift"))

    def theirs() -> torch.Tensor:
        return F.relu(F.batch_norm(leaf, None, None, scale, shift, True), inplace=True)

    whole = theirs()
    return {
        "moments": run(Program(program.moments(program.acc())), []),
        "normalise": run(normalise, inputs),
        "backward, first": run(first.backward, [known[source] for source in first.sources]),
        "backward, second": run(second.backward, [of_moments[source] for source in second.sources]),
        "torch forward": theirs,
        "torch backward": lambda: torch.autograd.grad(whole, (leaf, scale, shift), grad, retain_graph=True),
        "copy": x.clone,
    }


def milliseconds(call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    where, rows = device_name(torch.device("cpu")), []
    for size in SIZES:
        shown = "x".join(map(str, size))
        for name, call in passes(size).items():
            provider = "torch" if name.startswith("torch") or name == "copy" else "torch_reformer"
            rows.append(Row.of("batch_norm", f"{shown}, {name}", provider, "time_ms", milliseconds(call), where))
            print(f"{rows[-1].case:40}{rows[-1].p50:8.3f} ms")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
