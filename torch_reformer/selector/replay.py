"""Replays databases of timings: what a selector would have chosen, and what that would have cost.

Figures "restricted" to the record let it choose among the record's kernels; "unmasked" ones among all that it knows
(a choice that a record of the four fastest lacks is charged the slowest of them).
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from .._files import read_text
from .dataset import device_of, fold_of, make_dataset
from .fit import logits_of
from .scoring import figures, restricted, unmasked
from .timings import Record, read_timings
from .weights_file import Weights, find, load

TRIM = 0.05  # of the speed-ups at each end, for the trimmed mean


class Replay:
    """A selector's choices on the records of one device. Raises ``ValueError`` if they leave nothing to choose."""

    def __init__(self, weights: Weights, records: Sequence[Record], device: str):
        data = make_dataset([(device, records)]).known_to(weights.candidates)
        known = logits_of(weights.model(), replace(data, device=torch.zeros_like(data.device)))
        unknown = torch.full((len(data), len(data.candidates) - len(weights.candidates)), float("-inf"))
        given = torch.cat([known, unknown], 1), data.entries, data.log_ratio
        self.data = data
        self.slow, self.slow_unmasked = restricted(*given), unmasked(*given)

    def figures(self, which: Sequence[int] | slice = slice(None)) -> dict[str, float]:
        """Slow-downs against the record's best, of the problems with these indices."""
        return figures(self.slow[which], self.slow_unmasked[which])

    def by(self, property: Callable) -> dict[str, dict[str, float]]:
        """The figures of the problems of each value of a property."""
        rows: dict[str, list[int]] = {}
        for row, problem in enumerate(self.data.problems):
            rows.setdefault(property(problem), []).append(row)
        return {value: self.figures(rows[value]) for value in sorted(rows)}

    def against(self, peer: dict[str, float]) -> dict[str, float]:
        """How much faster our choices are than a peer's, given its milliseconds for each key, where both have one."""
        both = [row for row, key in enumerate(self.data.keys) if key in peer]
        if not both:
            return {"problems": 0}
        ours = self.data.best_ms[both].double() * self.slow[both].double().exp()
        theirs = torch.tensor([peer[self.data.keys[row]] for row in both], dtype=torch.double)
        ratio = (theirs / ours).sort().values
        cut = int(TRIM * len(ratio))
        return {
            "problems": len(ratio),
            "speedup_geomean": ratio.log().mean().exp().item(),
            "speedup_mean": ratio.mean().item(),
            "speedup_trimmed_mean": ratio[cut : len(ratio) - cut].mean().item(),
            "speedup_total": (theirs.sum() / ours.sum()).item(),
        }


def read_peer(path: Path) -> dict[str, float]:
    """A peer's milliseconds for each key, of a CSV with columns key, solver and ms. Times of 0 are left out."""
    rows = csv.DictReader(io.StringIO(read_text(path)))
    if missing := {"key", "ms"} - set(rows.fieldnames or ()):
        raise ValueError(f"{path} has no column {' and '.join(sorted(missing))}: a peer's are key, solver and ms")
    try:
        return {row["key"]: float(row["ms"]) for row in rows if float(row["ms"]) > 0}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: a time is no number: {error}") from None


def _peer(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=CSV")
    return name, Path(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timings", type=Path, required=True, metavar="DB", help="find-db text (.xz, .bz2)")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--arch", metavar="NAME", help="replay the weights that decide for it here: cpu, gfx908, ...")
    which.add_argument("--weights", type=Path, metavar="FILE")
    parser.add_argument("--device", help="that was measured (default: what `collect` noted beside DB, else --arch)")
    parser.add_argument("--held-out", action="store_true", help="only problems of geometries never trained on")
    parser.add_argument("--peer", type=_peer, action="append", default=[], metavar="NAME=CSV", help="key, solver, ms")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    path = options.weights or find(options.arch)
    if path is None:
        raise ValueError(f"there are no weights for {options.arch}: make some with `python -m torch_reformer train`")
    weights = load(path)
    records = read_timings(options.timings)
    if options.held_out:
        test = weights.metadata["folds"]["test"]
        records = [record for record in records if _fold(record) in test]
    device = options.device or device_of(options.timings) or weights.architecture
    replay = Replay(weights, records, device)
    result = replay.figures()
    result["peers"] = {name: replay.against(read_peer(csv_path)) for name, csv_path in options.peer}
    result["by"] = {
        "direction": replay.by(lambda problem: problem.direction),
        "type": replay.by(lambda problem: problem.dtype),
        "layout": replay.by(lambda problem: problem.layout),
        "kind": replay.by(lambda problem: problem.kind),
    }
    print(json.dumps(result, indent=1) if options.json else _table(result))
    return 0


def _fold(record: Record) -> int | None:
    try:
        return fold_of(record.problem)
    except ValueError:  # an impossible problem
        return None


def _table(result: dict) -> str:
    columns = ("problems", "top1", "slowdown_geomean", "slowdown_mean", "slowdown_p95", "unmasked_slowdown_geomean")
    heads = ("problems", "top-1", "slow-down: geomean", "mean", "p95", "unmasked geomean")
    widths = [max(8, len(head)) for head in heads]

    def line(title: str, cells) -> str:
        return f"{title:12}" + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))

    def numbers(title: str, found: dict) -> str:
        return line(title, [str(found["problems"]), *(f"{found[column]:.4f}" for column in columns[1:])])

    lines = [line("", heads), numbers("all", result)]
    for groups in result["by"].values():
        lines += [numbers(value, found) for value, found in groups.items()]
    for name, found in result["peers"].items():
        lines.append("")
        if not found["problems"]:
            lines.append(f"{name} has none of these problems")
            continue
        lines.append(
            f"over {name} on {found['problems']} problems: {found['speedup_geomean']:.3f}x (geomean), "
            f"{found['speedup_mean']:.3f}x (mean), {found['speedup_trimmed_mean']:.3f}x (mean without "
            f"{TRIM:.0%} at each end), {found['speedup_total']:.3f}x (total time)"
        )
    return "\n".join(lines)
