"""CPU seconds that planning a training step takes, by stage, beside those of AOTAutograd's tracing. As
plans_without_gpu.py it plans for a GPU that need not be present, each model in a process of one thread; nothing is
executed.

A stage's seconds are its own, without those of stages that it calls. Ratio: planning over tracing.

    python benchmarks/planning_time.py --csv benchmarks/results/planning_time.csv
    python benchmarks/planning_time.py --models timm/gcvit_tiny:8,gpt2:2x256
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from model_list import POPULATION
from models import Step, task
from results import Row, write_csv

from torch_reformer.compiler import backend, cli, pipeline
from torch_reformer.compiler.analysis import fake_gpu

MODELS = (
    *("timm/gcvit_tiny:8", "timm/hrnet_w18:8", "t5_small:2x128", "gpt2:2x256"),
    *("timm/swin_tiny_patch4_window7_224:8", "timm/mixnet_s:8"),
)
DYNAMO, TRACING = "Dynamo", "tracing"
_LEAST = 0.05  # seconds of a stage that are written
# Functions that are stages, beside those that pipeline.py calls by optional() and required().
_STAGES = {
    cli: ("report_of",),
    pipeline: ("partition_within_budget", "lower_fx", "emit_plan", "partition", "plan"),
    pipeline.Fusion: ("run",),
}
_NAMES = {"run": "greedy", "partition": "partition, other", "plan": "plan, other"}


class Clock:
    """CPU seconds by stage. A stage that calls another stops until that ends."""

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)
        self._stages, self._since = [DYNAMO], time.process_time()

    def _note(self) -> None:
        now = time.process_time()
        self.seconds[self._stages[-1]] += now - self._since
        self._since = now

    @contextlib.contextmanager
    def of(self, stage: str) -> Iterator[None]:
        self._note()
        self._stages.append(stage)
        try:
            yield
        finally:
            self._note()
            self._stages.pop()

    def timed(self, function: Callable, stage: str) -> Callable:
        def run(*args, **kwargs):
            with self.of(stage):
                return function(*args, **kwargs)

        return run

    def timed_by_name(self, call: Callable) -> Callable:
        """optional() or required(), whose first argument is a stage."""

        def run(stage, *args):
            with self.of(stage.__name__):
                return call(stage, *args)

        return run

    def stop(self) -> dict[str, float]:
        self._note()
        return dict(self.seconds)


def seconds_of(name: str, device: str) -> dict[str, float]:
    """CPU seconds of planning a model (models.py) in this process, by stage."""
    what = task(name, torch.device("cpu"))
    step, batch = Step(what, "cuda"), what.batch()
    clock = Clock()
    for owner, functions in _STAGES.items():
        for function in functions:
            timed = clock.timed(getattr(owner, function), _NAMES.get(function, function))
            setattr(owner, function, timed)
    for function in ("optional", "required"):
        setattr(pipeline, function, clock.timed_by_name(getattr(pipeline, function)))
    backend._AOT_OPTIONS["partition_fn"] = pipeline.partition
    aot_autograd = backend.aot_autograd
    backend.aot_autograd = lambda **options: clock.timed(aot_autograd(**options), TRACING)
    cli.recorded(step, batch, gpu=device, on_gpu=True)
    return clock.stop()


def seconds_in_a_process(name: str, device: str) -> dict[str, float]:
    """CPU seconds of planning a model, by stage, in a separate process."""
    command = [sys.executable, __file__, "--one", name, "--device", device]
    environment = fake_gpu.environment() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names of models.py, or 'all' of model_list.py")
    parser.add_argument("--device", default="sm_90")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--stages", action="store_true", help="print each stage's seconds, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
        fake_gpu.begin()
        print(json.dumps(seconds_of(options.one, options.device)))
        return 0
    rows, ratios = [], []
    print("| model | Dynamo | tracing | planning | ratio |\n|---|---|---|---|---|")
    for name in POPULATION if options.models == "all" else options.models.split(","):
        seconds = seconds_in_a_process(name, options.device)
        planning = sum(value for stage, value in seconds.items() if stage not in (DYNAMO, TRACING))
        ratios.append(planning / seconds[TRACING])
        print(f"| {name} | {seconds[DYNAMO]:.2f} | {seconds[TRACING]:.2f} | {planning:.2f} | {ratios[-1]:.2f} |")
        if options.stages:
            for stage, value in sorted(seconds.items(), key=lambda each: -each[1]):
                print(f"  {value:6.2f} {stage}")
        sys.stdout.flush()
        figures = {f"{stage}_s": value for stage, value in seconds.items() if value >= _LEAST}
        rows += [
            Row.of("planning_time", name, "torch_reformer", each, [value], options.device)
            for each, value in (figures | {"ratio": ratios[-1]}).items()
        ]
        if options.csv:
            write_csv(options.csv, rows)
    print(f"median ratio {statistics.median(ratios):.2f}, largest {max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
