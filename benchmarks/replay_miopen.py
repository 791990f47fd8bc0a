"""The shipped selectors of AMD's GPUs on MIOpen's find-dbs, beside MIOpen's own choices.

    python benchmarks/replay_miopen.py --miopen FOLDER [--csv FILE]

FOLDER has ``gfx908.fdb.txt.xz``, ``gfx908.tunanet.csv.xz`` and so on. Only problems of geometries that the weights were
never trained on count.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from results import Row, write_csv

from torch_reformer.selector.dataset import fold_of
from torch_reformer.selector.replay import Replay, read_peer
from torch_reformer.selector.timings import read_timings
from torch_reformer.selector.weights_file import load, shipped

PEERS = ("heuristic", "tunanet")


def held_out(records: list, test: list[int]) -> list:
    found = []
    for record in records:
        try:
            if fold_of(record.problem) in test:
                found.append(record)
        except ValueError:  # an impossible problem
            continue
    return found


def figures(folder: Path, database: Path) -> dict[str, float]:
    """One architecture's figures; a peer's have its name in front."""
    arch = database.name.partition(".")[0]
    weights = load(shipped(arch))
    replay = Replay(weights, held_out(read_timings(database), weights.metadata["folds"]["test"]), arch)
    found = replay.figures()
    for peer in PEERS:
        path = folder / f"{arch}.{peer}.csv.xz"
        if path.exists():
            found |= {f"over {peer} {name}": value for name, value in replay.against(read_peer(path)).items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--miopen", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    results = {}
    for database in sorted(options.miopen.glob("*.fdb.txt.xz")):
        results[database.name.partition(".")[0]] = figures(options.miopen, database)
    print("| GPU | problems | top-1 | slow-down: geomean | mean | unmasked | over the heuristic | over TunaNet |")
    print("|---|---|---|---|---|---|---|---|")
    for arch, found in results.items():
        names = ("top1", "slowdown_geomean", "slowdown_mean", "unmasked_slowdown_geomean")
        cells = [f"{found[name]:.3f}" for name in names]
        for peer in PEERS:
            speedup, mean = (found.get(f"over {peer} speedup_{name}") for name in ("geomean", "trimmed_mean"))
            cells.append(f"{speedup:.2f}x (trimmed mean {mean:.2f}x)" if speedup else "no data")
        print(f"| {arch} | {found['problems']:,} | {' | '.join(cells)} |")
    if options.csv:
        rows = [
            Row("replay_miopen", arch, "torch_reformer", name, value, value, value, arch)
            for arch, found in results.items()
            for name, value in found.items()
        ]
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
