"""CPU time of a step of a plan: 60 small steps, in one plan, and one by one from Python.

Steps that are PyTorch operators are also called one by one from C++, which shows the time of the kernels and PyTorch's
dispatcher without a plan. On a GPU the kernels are not waited for.

    python benchmarks/plan_overhead.py --csv benchmarks/results/cpu/plan_overhead.csv
    python benchmarks/plan_overhead.py --device cuda --csv benchmarks/results/h200/plan_overhead.csv
"""

from __future__ import annotations

import argparse
import functools
import os
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
from results import Row, write_csv
from torch import Tensor
from torch.utils import cpp_extension

import torch_reformer  # noqa: F401  registers the operators
from torch_reformer import program as ep
from torch_reformer.operators.dispatch import below_autograd
from torch_reformer.runtime import plan
from torch_reformer.tuning.workload import device_name, usable_device

STEPS, CALLS, ROUNDS, SIZE = 60, 200, 25, 8
PROGRAM = ep.Program(ep.store(ep.maximum(ep.acc(), 0.0)))
IMAGE, SQUARE = ((1, 2, 4, 8), (64, 32, 8, 1)), ((SIZE, SIZE), (SIZE, 1))
DIRECT = """
#include <ATen/Functions.h>
#include <torch/library.h>

static at::Tensor direct(at::Tensor y, const at::Tensor& x, int64_t steps) {
  for (int64_t i = 0; i < steps; i += 6) y = at::t(at::maximum(at::relu(at::mm(at::sigmoid(at::mul(y, x)), x)), x));
  return y;
}

static at::Tensor launches(at::Tensor y, const at::Tensor&, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) y = at::relu(y);
  return y;
}

TORCH_LIBRARY(plan_overhead, m) {
  m.def("direct(Tensor y, Tensor x, int steps) -> Tensor", direct);
  m.def("launches(Tensor y, Tensor x, int steps) -> Tensor", launches);
}
"""


def from_cpp():
    """C++ module that calls the steps of aten_plan() and program_plan(); compiled at the first use."""
    os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")  # ninja may be in the virtual environment
    folder = Path(__file__).parents[1] / "build" / "plan_overhead"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "direct.cpp"
    if not source.exists() or source.read_text() != DIRECT:
        source.write_text(DIRECT)
    cpp_extension.load("plan_overhead", [str(source)], ["-O3"], build_directory=str(folder), is_python_module=False)
    return torch.ops.plan_overhead


aten = torch.ops.aten
ATEN = [(aten.mul.Tensor, 2), (aten.sigmoid.default, 1), (aten.mm.default, 2), (aten.relu.default, 1)]
ATEN += [(aten.maximum.default, 2), (aten.t.default, 1)]


def aten_plan() -> plan.Plan:
    """Plan of PyTorch operators, each applied to the result of the one before it; half of them take a second tensor."""
    steps, at = plan.Plan(2), 0
    for i in range(STEPS):
        operator, operands = ATEN[i % len(ATEN)]
        (at,) = steps.aten(operator, (at, 1)[:operands])
    return steps.give(at)


def mixed_plan() -> plan.Plan:
    """Plan of PyTorch operators, views, and programs."""
    steps, at = plan.Plan(2), 0
    for _ in range(STEPS // 6):
        (at,) = steps.aten(aten.mul.Tensor, (at, 1))
        (at,) = steps.aten(aten.mm.default, (at, 1))
        (at,) = steps.view(at, *IMAGE)
        (at,) = steps.stitch(PROGRAM.code, at, [])
        (at,) = steps.view(at, *SQUARE)
        (at,) = steps.aten(aten.sigmoid.default, (at,))
    return steps.give(at)


def program_plan() -> plan.Plan:
    steps, at = plan.Plan(2), 0
    (at,) = steps.view(at, *IMAGE)
    for _ in range(STEPS):
        (at,) = steps.stitch(PROGRAM.code, at, [])
    return steps.give(at)


def view_plan() -> plan.Plan:
    steps, at = plan.Plan(2), 0
    for i in range(STEPS):
        (at,) = steps.view(at, *(IMAGE, SQUARE)[i % 2])
    return steps.give(at)


def aten_python(y: Tensor, x: Tensor) -> Tensor:
    mul, sigmoid, mm, relu, maximum, t = (
        *(aten.mul.Tensor, aten.sigmoid.default, aten.mm.default),
        *(aten.relu.default, aten.maximum.default, aten.t.default),
    )
    for _ in range(STEPS // 6):
        y = t(maximum(relu(mm(sigmoid(mul(y, x)), x)), x))
    return y


def mixed_python(y: Tensor, x: Tensor) -> Tensor:
    stitch, code = torch.ops.reformer.stitch.default, PROGRAM.code
    mul, mm, as_strided, sigmoid = aten.mul.Tensor, aten.mm.default, aten.as_strided.default, aten.sigmoid.default
    for _ in range(STEPS // 6):
        y = sigmoid(as_strided(stitch(as_strided(mm(mul(y, x), x), *IMAGE), [], code)[0], *SQUARE))
    return y


def program_python(y: Tensor, x: Tensor) -> Tensor:
    stitch, code = torch.ops.reformer.stitch.default, PROGRAM.code
    y = torch.ops.aten.as_strided.default(y, *IMAGE)
    for _ in range(STEPS):
        (y,) = stitch(y, [], code)
    return y


def view_python(y: Tensor, x: Tensor) -> Tensor:
    as_strided = torch.ops.aten.as_strided.default
    for _ in range(STEPS // 2):
        y = as_strided(as_strided(y, *IMAGE), *SQUARE)
    return y


def per_step(calls: dict[str, Callable[[], Tensor]], device: torch.device) -> dict[str, list[float]]:
    """Microseconds per step of each call, over CALLS, interleaved. A GPU is waited for between the calls, since its
    queue is finite."""
    wait = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            taken = 0.0
            for _ in range(CALLS):
                wait()
                start = time.perf_counter()
                call()
                taken += time.perf_counter() - start
            times[name].append(taken / CALLS / STEPS * 1e6)
    return times


def cases(y: Tensor, x: Tensor):
    """Calls by plan's name and by the side that runs it."""
    cpp = from_cpp()

    def both(steps: plan.Plan, python: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Callable[[], Tensor]]:
        torch.testing.assert_close(plan.run(steps, [y, x])[0], python(y, x))
        return {"python": lambda: python(y, x), "plan": lambda: plan.run(steps, [y, x])[0]}

    yield "ATen", {**both(aten_plan(), aten_python), "cpp": lambda: cpp.direct(y, x, STEPS)}
    yield "ATen, views, programs", both(mixed_plan(), mixed_python)
    yield "programs", {**both(program_plan(), program_python), "cpp": lambda: cpp.launches(y, x, STEPS)}
    yield "views", both(view_plan(), view_python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device = usable_device(options.device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    print(f"{f'microseconds a step of {STEPS} (p50)':32}{'python':>8}{'plan':>8}{'C++':>8}{'plan - C++':>12}")
    with torch.no_grad(), below_autograd():
        for name, calls in cases(*torch.rand(2, SIZE, SIZE, device=device)):
            found = {
                provider: Row.of("plan_overhead", name, provider, "step_us", times, device_name(device))
                for provider, times in per_step(calls, device).items()
            }
            rows += found.values()
            python, in_plan = found["python"].p50, found["plan"].p50
            cpp = found["cpp"].p50 if "cpp" in found else None
            told = "" if cpp is None else f"{cpp:8.2f}{in_plan - cpp:12.2f}"
            print(f"{name:32}{python:8.2f}{in_plan:8.2f}{told}")
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
