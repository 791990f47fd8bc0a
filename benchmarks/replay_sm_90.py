"""Replays the shipped selector for Hopper GPUs against cuDNN, on convolutions of geometries that it was not trained on:
those of models on an H100 (`collect`), and those that conv2d.py timed on an H200. Also replays its selector of
epilogues: the time of programs after convolutions by the chosen way, over that of the better way.

    python benchmarks/replay_sm_90.py --csv benchmarks/results/selector/replay_sm_90.csv
    python benchmarks/replay_sm_90.py --weights OTHER.pt
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
from pathlib import Path

from results import Row, geomean, write_csv

from torch_reformer.problem import ConvProblem
from torch_reformer.runtime.native import WAYS
from torch_reformer.selector.dataset import geometry_group
from torch_reformer.selector.replay import Replay, peer_of
from torch_reformer.selector.timings import Record, Timing, read_timings
from torch_reformer.selector.weights_file import load, shipped

RESULTS = Path(__file__).parent / "results"
TRAINED_ON = [RESULTS / f"{name}.fdb.txt.xz" for name in ("h100/timings", "h200/timings", "h200/drawn")]
COLUMNS = {
    "problems": "n",
    "speedup_geomean": "over cuDNN",
    "best": "fastest over cuDNN",
    "of_best": "chosen over fastest",
    "slower_by_5%": "slower by over 5%",
    "slower_by_20%": "by over 20%",
    "worst": "worst",
}


def of_conv2d(path: Path) -> list[Record]:
    """Records of the times in a CSV of conv2d.py, without those of PyTorch's own operator and of the chosen
    candidate."""
    found: dict[str, list[Timing]] = {}
    for row in csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode())):
        if not row["provider"].startswith("torch"):
            found.setdefault(row["case"], []).append(Timing(row["provider"], float(row["p50"]) / 1e3, 0, ""))
    return [Record(key, tuple(timings)) for key, timings in found.items()]


def groups_of(problem: ConvProblem) -> list[str]:
    form = f"{problem.dtype} {problem.layout}"
    if form != "BF16 NHWC":
        return [form]
    return [form, *(f"{form}, {each}" for each in (f"N={problem.n}", problem.direction, problem.kind))]


def figures(weights, records: list[Record]) -> dict[str, float]:
    replay, peer = Replay(weights, records, "sm_90"), peer_of("aten", records)
    found = replay.against(peer)
    of_best = 1 / replay.figures()["slowdown_geomean"]
    return found | {"best": found["speedup_geomean"] / of_best, "of_best": of_best}


def over_the_better(records: list[Record], ms: list[float]) -> dict[str, float]:
    ratios = [mine / min(record.times.values()) for record, mine in zip(records, ms, strict=True)]
    return {"problems": len(ratios), "geomean": geomean(ratios), "worst": max(ratios)}


def of_epilogues(weights, records: list[Record]) -> list[Row]:
    """Print the time of the chosen way, and of always taking the same way, over the better way's."""
    replay, of_key = Replay(weights, records, "sm_90"), {record.key: record for record in records}
    records = [of_key[key] for key in replay.data.keys]
    chosen = [
        min(record.times.values()) * slow for record, slow in zip(records, replay.slow.exp().tolist(), strict=True)
    ]
    rows = []
    print("\n| program | n | chosen over better | worst | always fused | worst | always separate | worst |")
    print(f"|---{'|---' * 7}|")
    for text in ["all", *sorted({record.epilogue for record in records})]:
        which = [i for i, record in enumerate(records) if text in ("all", record.epilogue)]
        some = [records[i] for i in which]
        sides = {"chosen": [chosen[i] for i in which]} | {w: [each.times[w] for each in some] for w in WAYS}
        found = {side: over_the_better(some, ms) for side, ms in sides.items()}
        for side, values in found.items():
            rows += [
                Row.of("replay_sm_90", f"H100, {text}", side, what, [each], "sm_90") for what, each in values.items()
            ]
        shown = " | ".join(f"{values['geomean']:.3f} | {values['worst']:.2f}" for values in found.values())
        print(f"| {text} | {len(some)} | {shown} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, default=shipped("sm_90"))
    parser.add_argument("--epilogues", type=Path, default=shipped("sm_90-epilogues"))
    parser.add_argument("--csv", type=Path, help="write the figures here")
    options = parser.parse_args()
    weights = load(options.weights)
    trained_on = {geometry_group(record.problem) for path in TRAINED_ON for record in read_timings(path)}
    judged = {
        "H100": read_timings(RESULTS / "h100/held_out.fdb.txt.xz"),
        "H200": of_conv2d(RESULTS / "h200/conv2d-bf16-nhwc-advantage.csv.xz"),
    }
    rows: list[Row] = []
    print(f"| | {' | '.join(COLUMNS.values())} |\n|---{'|---' * len(COLUMNS)}|")
    for gpu, records in judged.items():
        groups: dict[str, list[Record]] = {}
        for record in records:
            if len(record.times) > 1 and geometry_group(record.problem) not in trained_on:
                for group in groups_of(record.problem):
                    groups.setdefault(group, []).append(record)
        for group, some in groups.items():
            found = figures(weights, some)
            rows += [Row.of("replay_sm_90", f"{gpu}, {group}", "chosen", c, [found[c]], "sm_90") for c in COLUMNS]
            shown = [f"{found[column]:{'.0f' if column == 'problems' else '.3g'}}" for column in COLUMNS]
            print(f"| {gpu}, {group} | {' | '.join(shown)} |")
    rows += of_epilogues(load(options.epilogues), read_timings(RESULTS / "h100/epilogues-held_out.fdb.txt.xz"))
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
