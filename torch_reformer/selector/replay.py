"""Replays databases of timings: which kernels a selector would have chosen, and their times.

In "restricted" figures the selector chooses among the record's kernels. In "unmasked" ones it chooses among all that it
knows; a choice missing from a record of the four fastest is charged the slowest of these.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..runtime.files import read_text
from .dataset import IMPOSSIBLE, architecture, decided, fold_of, make_dataset
from .offered import mask, of_offered
from .scoring import figures, restricted, unmasked
from .timing_database import named_database, read_database
from .timings import Record
from .training_loop import logits_of
from .weights_file import Weights, find, load, name_of

TRIM = 0.05  # fraction of the speed-ups cut at each end for the trimmed mean
SLOWER = (0.05, 0.2)  # report how often a choice is slower than a peer's by more than this


class Replay:
    """Choices of a selector on the records of one device.

    Args:
        offered_only: choose among the solvers that are offered on that device; slow-downs are relative to the best of
            these.

    Raises:
        ValueError: if the records leave nothing to choose, or contain nothing that the selector knows.
    """

    def __init__(self, weights: Weights, records: Sequence[Record], device: str, offered_only: bool = False):
        weights.check_records(records)
        left_out: Counter[str] = Counter()
        if offered_only:
            records, left_out = of_offered(records, device)
        data = make_dataset([(device, records)], least=1 if offered_only else 2)
        data.left_out.update(left_out)
        if set(data.candidates).isdisjoint(weights.candidates):
            raise ValueError(
                f"the weights for {weights.architecture} know none of this database's kernels "
                f"({', '.join(data.candidates[:3])}, ...): give weights that were trained on such timings"
            )
        data = data.known_to(weights.candidates)
        known = logits_of(weights.model(), replace(data, device=torch.zeros_like(data.device)))
        if offered_only:
            known = known.masked_fill(~mask(data.problems, weights.candidates, device), float("-inf"))
        unknown = torch.full((len(data), len(data.candidates) - len(weights.candidates)), float("-inf"))
        arguments = torch.cat([known, unknown], 1), data.entries, data.log_ratio
        self.data = data
        self.slow, self.slow_unmasked = restricted(*arguments), unmasked(*arguments)

    def figures(self, which: Sequence[int] | slice = slice(None)) -> dict[str, float]:
        """Slow-downs of the problems with these indices, relative to each record's best."""
        return figures(self.slow[which], self.slow_unmasked[which])

    def by(self, property: Callable) -> dict[str, dict[str, float]]:
        """Figures of the problems grouped by a property."""
        rows: dict[str, list[int]] = {}
        for row, problem in enumerate(self.data.problems):
            rows.setdefault(property(problem), []).append(row)
        return {value: self.figures(rows[value]) for value in sorted(rows)}

    def against(self, peer: Peer) -> dict[str, float]:
        """Speed-up of this selector's choices over a peer's, on the problems that both have."""
        both = [row for row, key in enumerate(self.data.keys) if key in peer.times]
        if not both:
            return {"problems": 0, "ignored": peer.ignored}
        ours = self.data.best_ms[both].double() * self.slow[both].double().exp()
        theirs = torch.tensor([peer.times[self.data.keys[row]] for row in both], dtype=torch.double)
        ratio = (theirs / ours).sort().values
        cut = int(TRIM * len(ratio))
        return {
            "problems": len(ratio),
            "ignored": peer.ignored,
            "speedup_geomean": ratio.log().mean().exp().item(),
            "speedup_mean": ratio.mean().item(),
            "speedup_trimmed_mean": ratio[cut : len(ratio) - cut].mean().item(),
            "speedup_total": (theirs.sum() / ours.sum()).item(),
            **{f"slower_by_{share:.0%}": (ratio < 1 / (1 + share)).double().mean().item() for share in SLOWER},
            "worst": 1 / ratio[0].item(),
        }


@dataclass(frozen=True)
class Peer:
    """Times of someone else's choices."""

    times: dict[str, float]  # milliseconds by key
    ignored: int  # rows with impossible times: 0, negative, infinite or not a number


def read_peer(path: Path) -> Peer:
    """Read a peer's times from a CSV file with the columns key and ms; other columns are ignored."""
    times: dict[str, float] = {}
    lines = csv.DictReader(io.StringIO(read_text(path)))
    try:
        if missing := {"key", "ms"} - set(lines.fieldnames or ()):
            raise ValueError(f"{path} has no column {' and '.join(sorted(missing))}: a peer's are key and ms")
        for row in lines:
            where = f"{path}, line {lines.line_num}"
            key, ms = row["key"], row["ms"]
            if key in times:
                raise ValueError(f"{where}: {key} occurs twice")
            try:
                times[key] = float(ms)
            except (TypeError, ValueError):
                raise ValueError(f"{where}: a row has a key and its milliseconds, got {ms!r} as milliseconds") from None
    except csv.Error as error:
        raise ValueError(f"{path}, line {lines.line_num}: it is not CSV: {error}") from None
    possible = {key: ms for key, ms in times.items() if 0 < ms < math.inf}
    return Peer(possible, len(times) - len(possible))


def peer_of(solver: str, records: Sequence[Record]) -> Peer:
    """Peer that always takes this solver of the records. Raises ``ValueError`` if no record has it."""
    times = {record.key: record.times[solver] for record in records if solver in record.times}
    if not times:
        raise ValueError(f"no record has a time of {solver}: a peer is NAME=CSV, or a solver of the database")
    return Peer(times, 0)


def _peer(text: str) -> tuple[str, Path | None]:
    name, equals, path = text.partition("=")
    if equals and not path:
        raise argparse.ArgumentTypeError(f"{text!r} names no CSV")
    return name, Path(path) if equals else None


PEER_HELP = (
    "another's choices, to compare with: a CSV with the columns key and ms (others are ignored), or a solver of the "
    "database, such as aten"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timings",
        type=named_database,
        required=True,
        metavar="[DEVICE=]DB",
        help="find-db text (.xz, .bz2); DEVICE, such as cpu-avx512-2t, is what was measured (default: what `collect` "
        "noted beside DB, else the architecture of the weights)",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--arch", metavar="NAME", help="replay the weights that decide for it here: cpu, gfx908, ...")
    which.add_argument("--weights", type=Path, metavar="FILE", help="replay these weights, written by `train`")
    parser.add_argument("--held-out", action="store_true", help="only problems of geometries never trained on")
    parser.add_argument("--peer", type=_peer, action="append", default=[], metavar="NAME[=CSV]", help=PEER_HELP)
    parser.add_argument(
        "--offered",
        action="store_true",
        help="choose only among solvers that are candidates here, as not all of MIOpen's are (docs/selector.md)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, not as a table")


def run(options: argparse.Namespace) -> int:
    weights = load(options.weights) if options.weights else None
    named_device, timings = options.timings
    device, records = read_database(
        timings, named_device, weights.architecture if weights else architecture(options.arch)
    )
    name = "" if options.weights else name_of(architecture(options.arch), decided(records))
    path = options.weights or find(name)
    if path is None:
        raise ValueError(f"there are no weights for {name}: make some with `python -m torch_reformer train`")
    if options.offered and decided(records) == "epilogues":
        raise ValueError("--offered is for solvers: weights for epilogues only choose between fused and separate")
    weights = weights or load(path)
    peers = {name: read_peer(csv_path) if csv_path else peer_of(name, records) for name, csv_path in options.peer}
    left_out: Counter[str] = Counter()
    if options.held_out:
        records, left_out = _held_out(records, weights, timings, path)
    replay = Replay(weights, records, device, options.offered)
    left_out.update(replay.data.left_out)
    if weights.architecture != architecture(device):
        print(
            f"warning: {path} is for {weights.architecture}, and {timings} is of {device}: the weights choose "
            "among the kernels that they know",
            file=sys.stderr,
        )
    which = {"held_out": options.held_out, "offered": options.offered}
    header = {"weights": str(path), "device": device, **which, "left_out": dict(left_out)}
    result = {**header, **replay.figures()}
    result["peers"] = {name: replay.against(peer) for name, peer in peers.items()}
    result["by"] = {
        "direction": replay.by(lambda problem: problem.direction),
        "type": replay.by(lambda problem: problem.dtype),
        "layout": replay.by(lambda problem: problem.layout),
        "kind": replay.by(lambda problem: problem.kind),
    }
    print(json.dumps(result, indent=1) if options.json else f"{_head(result)}\n\n{_table(result)}")
    return 0


def _held_out(records: list[Record], weights: Weights, timings: Path, path: Path) -> tuple[list[Record], Counter[str]]:
    """Records of geometries that the weights were not trained on, and the number of other records, by reason."""
    test = weights.metadata["folds"]["test"]
    used, left_out = [], Counter()
    for record in records:
        fold = _fold(record)
        if fold in test:
            used.append(record)
        else:
            left_out[IMPOSSIBLE if fold is None else "of geometries trained on"] += 1
    if not used:
        raise ValueError(
            f"none of the {len(records)} records of {timings} is of a geometry that {path} was never trained on (one "
            f"geometry in {weights.metadata['folds']['of']} is held out): omit --held-out or measure more"
        )
    return used, left_out


def _head(result: dict) -> str:
    kind = "problems of geometries never trained on" if result["held_out"] else "problems, those trained on included"
    left_out = ", ".join(f"{count:,} record{'s' * (count != 1)} {why}" for why, count in result["left_out"].items())
    line = f"{result['weights']} on {result['problems']:,} {kind}, device {result['device']}; left out: "
    return line + (left_out or "no record")


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

    def numbers(title: str, values_of: dict) -> str:
        return line(title, [str(values_of["problems"]), *(f"{values_of[column]:.4f}" for column in columns[1:])])

    lines = [line("", heads), numbers("all", result)]
    for groups in result["by"].values():
        lines += [numbers(value, group_figures) for value, group_figures in groups.items()]
    for name, peer_figures in result["peers"].items():
        lines.append("")
        ignored = (
            f"; {peer_figures['ignored']} of its times ignored: no kernel takes them" if peer_figures["ignored"] else ""
        )
        if not peer_figures["problems"]:
            lines.append(f"{name} has none of these problems{ignored}")
            continue
        lines.append(
            f"over {name} on {peer_figures['problems']} problems: {peer_figures['speedup_geomean']:.3f}x (geomean), "
            f"{peer_figures['speedup_mean']:.3f}x (mean), {peer_figures['speedup_trimmed_mean']:.3f}x (mean without "
            f"{TRIM:.0%} at each end), {peer_figures['speedup_total']:.3f}x (total time); slower "
            + ", ".join(f"by over {share:.0%} in {peer_figures[f'slower_by_{share:.0%}']:.1%}" for share in SLOWER)
            + f", {peer_figures['worst']:.2f} times as long at worst{ignored}"
        )
    return "\n".join(lines)
