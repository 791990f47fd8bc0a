"""Replays the shipped selectors for AMD GPUs on MIOpen's find-dbs, beside MIOpen's own choices.

    python benchmarks/replay_miopen.py --miopen FOLDER [--csv FILE]

FOLDER contains ``gfx908.fdb.txt.xz``, ``gfx908.tunanet.csv.xz`` and so on. All tables are about problems of geometries
that the weights were never trained on: the choice among all of MIOpen's solvers, the choice among those offered as
candidates (docs/selector.md), and how often a record's best solver is offered.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import Row, write_csv

from torch_reformer.selector.dataset import fold_of, useless
from torch_reformer.selector.offered import offered
from torch_reformer.selector.replay import Replay, read_peer
from torch_reformer.selector.timings import Record, read_timings
from torch_reformer.selector.weights_file import load, shipped

PEERS = ("heuristic", "tunanet")


def held_out(records: list[Record], test: list[int]) -> list[Record]:
    found = []
    for record in records:
        try:
            if fold_of(record.problem) in test:
                found.append(record)
        except ValueError:  # an impossible problem
            continue
    return found


def figures(folder: Path, arch: str, records: list[Record], offered_only: bool) -> dict[str, float]:
    """Figures of one architecture on held-out records; figures against a peer begin with its name."""
    weights = load(shipped(arch))
    replay = Replay(weights, held_out(records, weights.metadata["folds"]["test"]), arch, offered_only)
    found = replay.figures()
    for peer in PEERS:
        path = folder / f"{arch}.{peer}.csv.xz"
        if path.exists():
            found |= {f"over {peer} {name}": value for name, value in replay.against(read_peer(path)).items()}
    return found


def coverage(arch: str, records: list[Record]) -> dict[str, float]:
    """Fraction of records whose best solver, and whose best or second-best solver, is offered."""
    best = either = count = 0
    for record in records:
        if useless(record):
            continue
        names = offered(record.problem, arch)
        fastest = sorted(record.times, key=record.times.get)[:2]
        best += fastest[0] in names
        either += not names.isdisjoint(fastest)
        count += 1
    return {"records": count, "best": best / count, "best or second": either / count}


def table(results: dict[str, dict[str, float]]) -> str:
    lines = [
        "| GPU | problems | top-1 | slow-down: geomean | mean | unmasked | over the heuristic | over TunaNet |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arch, found in results.items():
        names = ("top1", "slowdown_geomean", "slowdown_mean", "unmasked_slowdown_geomean")
        cells = [f"{found[name]:.3f}" for name in names]
        for peer in PEERS:
            speedup, mean = (found.get(f"over {peer} speedup_{name}") for name in ("geomean", "trimmed_mean"))
            cells.append(f"{speedup:.2f}x (trimmed mean {mean:.2f}x)" if speedup else "no data")
        lines.append(f"| {arch} | {found['problems']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--miopen", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    variants: dict[str, dict[str, dict[str, float]]] = {"replay_miopen": {}, "replay_miopen_offered": {}, "offered": {}}
    for database in sorted(options.miopen.glob("*.fdb.txt.xz")):
        arch, records = database.name.partition(".")[0], read_timings(database)
        variants["replay_miopen"][arch] = figures(options.miopen, arch, records, offered_only=False)
        variants["replay_miopen_offered"][arch] = figures(options.miopen, arch, records, offered_only=True)
        variants["offered"][arch] = coverage(arch, held_out(records, load(shipped(arch)).metadata["folds"]["test"]))
    print(f"among all\n\n{table(variants['replay_miopen'])}\n")
    print(f"among the offered\n\n{table(variants['replay_miopen_offered'])}\n")
    print("| GPU | records | best offered | best or second offered |\n|---|---|---|---|")
    for arch, found in variants["offered"].items():
        print(f"| {arch} | {found['records']:,} | {found['best']:.1%} | {found['best or second']:.1%} |")
    if options.csv:
        rows = [
            Row(benchmark, arch, "torch_reformer", name, value, value, value, arch)
            for benchmark, results in variants.items()
            for arch, found in results.items()
            for name, value in found.items()
        ]
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
