"""Plans of training steps under bf16 autocast, with images in channels_last: kernels and calls, gigabytes and expected
milliseconds on a GPU, compared with greedy fusion and with one kernel per operation; and the cost of the groups by
fusion/ilp/planner.py, its lower bound, and the search time. For some models also the memory that forwards save, and the
same plans if they may save only half of it. Nothing is executed: no GPU is needed.

    python benchmarks/plans.py --csv benchmarks/results/plans.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import torch
from models import Step, task
from results import Row, write_csv
from torch._functorch import config as functorch_config

from torch_reformer.compiler import backend
from torch_reformer.compiler.analysis.report import Report
from torch_reformer.compiler.cli import planned
from torch_reformer.compiler.fusion.ilp import milp
from torch_reformer.compiler.fusion.ilp.planner import IlpSummary
from torch_reformer.compiler.joint_graph.memory_budget import saved_bytes
from torch_reformer.compiler.pipeline import partition

MODELS = ["resnet50:128", "resnext50_32x4d:128", "convnext_tiny:128", "mobilenet_v3_large:256", "efficientnet_b0:128"]
BUDGETED, BUDGET = ("resnet50:128", "bert_large:16x512"), 0.5
METRICS = ("count", "gigabytes", "expected_ms")
MODELS += ["densenet121:64", "vit_b_16:64", "bert_large:16x512", "xml_cnn:1024", "gcn:7", "dien:256"]


def figures(lines: list) -> dict[str, float]:
    return {
        "count": len(lines),
        "gigabytes": sum(each.read + each.written for each in lines) / 1e9,
        "expected_ms": sum(each.us for each in lines) / 1e3,
    }


def groups(planned: list[IlpSummary]) -> dict[str, float]:
    """Costs of the groups in both passes. gap: 1 - bound / cost of the plan."""
    greedy, plan, bound = (
        sum(getattr(each, name) for each in planned) / 1e3 for name in ("greedy_us", "plan_us", "bound_us")
    )
    seconds = sum(each.seconds for each in planned)
    return {"greedy_ms": greedy, "plan_ms": plan, "bound_ms": bound, "gap": 1 - bound / plan, "seconds": seconds}


def planned_within(budget: float, step: Step, batch: tuple, device: str) -> tuple[list[Report], float]:
    """Reports of a step's plans under a memory budget, and the gigabytes that its forward saves."""
    saved = []

    def counted(joint, inputs, **options):
        parts = partition(joint, inputs, **options)
        saved.append(saved_bytes(parts[0], options["num_fwd_outputs"]) / 1e9)
        return parts

    with (
        mock.patch.dict(backend._AOT_OPTIONS, partition_fn=counted),
        functorch_config.patch(activation_memory_budget=budget),
    ):
        return planned(step, batch, device), sum(saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME:BATCH")
    parser.add_argument("--device", default="sm_90", help="the GPU's architecture")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'':20}{'kernels and calls':>24}{'GB':>22}{'ms':>24}   (greedy, one kernel an operation in brackets)")
    for model in options.models:
        made = task(model, torch.device("cpu"))
        step, batch = Step(made, "cpu"), made.batch()
        reports, saved = planned_within(1, step, batch, options.device)
        sides = {"plan": [line for each in reports for line in each.lines]}
        with mock.patch.object(milp, "name", lambda: None):
            sides["greedy"] = [line for each in planned(step, batch, options.device) for line in each.lines]
        sides["operations"] = [line for each in reports for line in each.unfused]
        found = {side: figures(lines) for side, lines in sides.items()}
        cells = ["{:.4g} ({:.4g}, {:.4g})".format(*(values[metric] for values in found.values())) for metric in METRICS]
        print(f"{model:20}{cells[0]:>24}{cells[1]:>22}{cells[2]:>24}")
        if all(each.planned for each in reports):
            found["groups"] = groups([each.planned for each in reports])
            print(
                "    groups: " + ", ".join(f"{name} {value:.4g}" for name, value in found["groups"].items()),
                flush=True,
            )
        if model in BUDGETED:
            found["plan"]["saved_gigabytes"] = saved
            reports, saved = planned_within(BUDGET, step, batch, options.device)
            side = f"budget {BUDGET}"
            found[side] = figures([line for each in reports for line in each.lines]) | {"saved_gigabytes": saved}
            print(f"    {side}: " + ", ".join(f"{name} {value:.4g}" for name, value in found[side].items()), flush=True)
        for side, values in found.items():
            rows += [Row.of("plans", model, side, metric, [value], options.device) for metric, value in values.items()]
        if options.csv:
            write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
