"""Times training steps of models (models.py) by several sides, interleaved, and compares their losses.

The sides are PyTorch, PyTorch under ``torch_reformer.enable``, after ``torch_reformer.convert`` and after
``torch_reformer.fuse``, ``torch.compile`` with either backend, also in CUDA graphs and with a compiled update, and
``torch_reformer.training_step``. On a GPU it also measures the CPU time of a step whose kernels are not waited for,
and the kernels' time.

All sides have the same weights, batches and random numbers, and channels_last tensors. The time of the first step
includes all compilation; sides that compiled the same kernels before are faster there.

    python benchmarks/train_models.py --csv benchmarks/results/h200/train_models-compiler.csv
    python benchmarks/train_models.py --models bert_base:8x128,timm/vit_base_patch16_224:64 --sides torch,reformer
    python benchmarks/train_models.py --device cpu --models resnet18:8 --dtype float32 --steps 40
    torchrun --nproc-per-node 2 benchmarks/train_models.py --models resnet50:64  # DistributedDataParallel
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from clocks import host_milliseconds, kernel_count, kernel_milliseconds, milliseconds
from models import Task, task
from results import Row, write_csv
from torch.distributed.fsdp import fully_shard

import torch_reformer
from torch_reformer.tuning.workload import device_name, usable_device

MODELS = "resnet50:128,convnext_tiny:128,mobilenet_v3_large:256,efficientnet_b0:128"
DIFFERENT = 20  # distinct batches, or as many as fit in the given bytes, but at least two
BATCHES_BYTES = 16 << 30
STEPS_A_ROUND = 10
PROFILED = 3  # profiled steps of each side


Optimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
SGD = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
Times = dict[str, dict[str, list[float]]]  # milliseconds by side and metric


class Training:
    """Training by one side: a model and its optimizer. around: the context of every step."""

    def __init__(
        self,
        model: torch.nn.Module,
        task: Task,
        batches: Sequence[tuple[torch.Tensor, ...]],
        device: torch.device,
        dtype: torch.dtype,
        around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
        optimizer: Optimizer = SGD,
    ):
        self.model, self.loss, self.batches, self.device = model, task.loss, batches, device
        self.dtype, self.around = dtype, around
        self.optimizer = optimizer(model.parameters())
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        with self.around():
            self._step()

    def _step(self) -> None:
        number = len(self.losses)
        torch.manual_seed(number)  # dropout, stochastic depth
        loss = self.update(self.batches[number % len(self.batches)])
        self.losses.append(loss.detach().clone())  # copied because a CUDA graph's next replay writes to the same memory

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def update(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Train with a batch, and give its loss."""
        with self.autocast():
            loss = self.loss(self.model, *batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


class CompiledUpdate(Training):
    """Training whose optimizer's update is compiled, too, by torch.compile's default backend."""

    def __init__(self, *args):
        super().__init__(*args)
        for group in self.optimizer.param_groups:  # as PyTorch advises: the compiler fuses, and counters are on the GPU
            group.update({name: value for name, value in (("fused", False), ("capturable", True)) if name in group})
        self.optimizer.step = torch.compile(self.optimizer.step)


class WholeStep(Training):
    """Training whose steps are one plan each."""

    def __init__(self, *args, mode: str | None = None):
        super().__init__(*args)

        def loss(model: torch.nn.Module, *batch: torch.Tensor) -> torch.Tensor:
            with self.autocast():
                return self.loss(model, *batch)

        self.whole = torch_reformer.training_step(self.model, loss, self.optimizer, mode=mode)

    def update(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.whole(*batch)


def converted(model: torch.nn.Module) -> torch.nn.Module:
    print(str(torch_reformer.convert(model, channels_last=True)).splitlines()[0])
    return model


def fused(model: torch.nn.Module) -> torch.nn.Module:
    torch_reformer.fuse(model, channels_last=True)
    return model


class Graphed(torch.nn.Module):
    """Model as two CUDA graphs, forward and backward, by torch.cuda.make_graphed_callables: no CPU time per kernel."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model, self.captured = model, None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.captured is None:  # captured here, under autocast
            with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda"), False):
                self.captured = torch.cuda.make_graphed_callables(self.model, (torch.empty_like(images).normal_(),))
        return self.captured(images)


SIDES = {
    "torch": lambda model: model,
    "enabled": lambda model: model,
    "converted": converted,
    "fused": fused,
    "compiled": torch.compile,
    "reformer": functools.partial(torch.compile, backend="reformer"),
    "reformer_less_memory": functools.partial(torch.compile, backend="reformer", options={"memory_budget": 0.7}),
    "reformer_half_memory": functools.partial(torch.compile, backend="reformer", options={"memory_budget": 0.5}),
    "torch_graphed": Graphed,
    "compiled_graphed": functools.partial(torch.compile, mode="reduce-overhead"),  # CUDA graphs of its own
    "reformer_graphed": functools.partial(torch.compile, backend="reformer", mode="reduce-overhead"),
    "compiled_update": torch.compile,
    "compiled_graphed_update": functools.partial(torch.compile, mode="reduce-overhead"),
    "reformer_step": lambda model: model,
    "reformer_step_graphed": lambda model: model,
}
# Kinds of training, if others than Training.
KINDS: dict[str, Callable[..., Training]] = {
    "compiled_update": CompiledUpdate,
    "compiled_graphed_update": CompiledUpdate,
    "reformer_step": WholeStep,
    "reformer_step_graphed": functools.partial(WholeStep, mode="reduce-overhead"),
}


def peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def distributed(model: torch.nn.Module, device: torch.device, sharded: bool) -> torch.nn.Module:
    """Model for several processes: in DistributedDataParallel, or sharded by FSDP2's fully_shard, which needs
    parameters in their own memory layout: the layers of its module lists (as in transformers), then the rest. With a
    single process the model itself."""
    if not torch.distributed.is_initialized():
        return model
    if sharded:
        for layers in [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)]:
            for layer in layers:
                fully_shard(layer)
        return fully_shard(model)
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])


def prepare(
    name: str,
    names: Iterable[str],
    device: torch.device,
    dtype: torch.dtype,
    sharded: bool = False,
    optimizer: Optimizer = SGD,
    keep_going: bool = False,
) -> tuple[dict[str, Training], Times, dict[str, float]]:
    """A model's training by each side, after some steps; the times of the first steps, and the peak memory in MiB.
    keep_going: leave out sides that raise an error."""
    torch.manual_seed(0)
    what = task(name, device)
    what.model.train()
    batches = [what.batch()]
    size = sum(each.nbytes for each in batches[0])
    batches += [what.batch() for _ in range(min(DIFFERENT, max(2, BATCHES_BYTES // size)) - 1)]
    sides = {
        side: KINDS.get(side, Training)(
            SIDES[side](distributed(copy.deepcopy(what.model), device, sharded)),
            what,
            batches,
            device,
            dtype,
            torch_reformer.enable if side == "enabled" else contextlib.nullcontext,
            optimizer,
        )
        for side in names
    }
    times: Times = {}
    peaks = {}
    for side, training in list(sides.items()):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        try:
            times[side] = {"first_ms": [milliseconds(training.step, device, steps=1)]}
            milliseconds(training.step, device, steps=STEPS_A_ROUND)  # warm-up: memory, CUDA graphs
        except Exception as error:
            if not keep_going:
                raise
            print(f"{name}, {side}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
            del sides[side]
            times.pop(side, None)
            continue
        peaks[side] = (peak_bytes(device) - before) / 2**20
        if device.type == "cuda":
            torch.cuda.empty_cache()  # other processes may need it
    return sides, times, peaks


def add_times(times: Times, sides: dict[str, Training], steps: int, device: torch.device) -> None:
    """Add times of so many steps, by the sides in turns."""

    def round_of(metric: str, time_of: Callable[[Callable[[], None], torch.device], float]) -> None:
        for side, training in sides.items():
            times[side].setdefault(metric, []).append(time_of(training.step, device))

    for _ in range(max(1, round(steps / STEPS_A_ROUND))):
        round_of("step_ms", functools.partial(milliseconds, steps=STEPS_A_ROUND))
        if device.type == "cuda":
            round_of("host_ms", host_milliseconds)
    if device.type == "cuda":
        for _ in range(PROFILED):  # last, because a process that has profiled once launches kernels more slowly
            round_of("kernels_ms", kernel_milliseconds)
            round_of("kernels", kernel_count)


def measure(name: str, steps: int, names: list[str], device: torch.device, dtype: torch.dtype, sharded: bool = False):
    """For each side: milliseconds by metric, losses, and the peak memory of the first steps."""
    sides, times, peaks = prepare(name, names, device, dtype, sharded)
    add_times(times, sides, steps - STEPS_A_ROUND - 1, device)
    return times, {side: torch.stack(training.losses).tolist() for side, training in sides.items()}, peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS, help="with their batches: resnet50:64,bert_base:8x128")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--sides", default="torch,converted,fused", help=f"of {', '.join(SIDES)}; the first is the peer"
    )
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 (autocast) or float32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sharded", action="store_true", help="by torchrun: fully_shard, not DistributedDataParallel")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device, names = usable_device(options.device), options.sides.split(",")
    if "LOCAL_RANK" in os.environ:  # started by torchrun
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl", device_id=device)
        if device.index:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as long as the process lives
            options.csv = None
    rows = []
    print(
        "| model, side | ms a step | speed-up | CPU ms | kernels ms | peak MiB | first s | last losses | difference |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        times, losses, peaks = measure(
            name, options.steps, names, device, getattr(torch, options.dtype), options.sharded
        )

        def row(side: str, metric: str, values: list[float], name: str = name) -> None:
            rows.append(Row.of("train_models", name, side, metric, values, device_name(device)))

        means = {
            side: [statistics.mean(values[i : i + STEPS_A_ROUND]) for i in range(0, len(values), STEPS_A_ROUND)]
            for side, values in losses.items()
        }
        for side in names:
            apart = max(abs(a - b) for a, b in zip(means[names[0]], means[side], strict=True))
            for metric, values in times[side].items():
                row(side, metric, values)
            row(side, "last_losses", losses[side][-STEPS_A_ROUND:])
            row(side, "mean_loss_difference", [apart])
            if device.type == "cuda":
                row(side, "peak_mib", [peaks[side]])
            median = {metric: statistics.median(values) for metric, values in times[side].items()}
            cells = [f"{median[metric]:.2f}" if metric in median else "-" for metric in ("host_ms", "kernels_ms")]
            cells += [f"{peaks[side]:.0f}", f"{median['first_ms'] / 1e3:.1f}"]
            cells += [f"{means[side][-1]:.4f}", f"{apart:.4f}"]
            faster = statistics.median(times[names[0]]["step_ms"]) / median["step_ms"]
            cells = [f"{name}, {side}", f"{median['step_ms']:.2f}", f"{faster:.3f}", *cells]
            print(f"| {' | '.join(cells)} |", flush=True)
        if options.csv:
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
