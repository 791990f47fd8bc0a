"""Trains the selectors of AMD's GPUs that the package ships, from MIOpen's find-dbs, and compares recipes.

    python benchmarks/train_selectors.py --miopen FOLDER --out FOLDER [--csv FILE] [--ablation] [--device cuda --jobs 9]

FOLDER has ``gfx908.fdb.txt.xz`` and so on. Each seed's weights are written to ``ARCH-seedN.pt``, and those of the seed
that is best on the validation groups to ``ARCH.pt`` also. The scores are on groups never trained on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import torch
from results import Row, write_csv

from torch_reformer.selector.fit import FitOptions
from torch_reformer.selector.targets import ONE_HOT
from torch_reformer.selector.timings import read_timings
from torch_reformer.selector.train import Checkpoint, Recipe, train
from torch_reformer.selector.weights_file import load

SHIPPED = replace(Recipe(), teachers=4)
ALONE = replace(Recipe(), teachers=0)
# gfx942 has few timings of its own: teachers that know the other GPUs too are better.
DATABASES = {"gfx908": ["gfx908"], "gfx90a": ["gfx90a"], "gfx942": ["gfx942", "gfx90a", "gfx908"]}
ABLATION = {
    **{f"no teachers, sharpness {s:g}": replace(ALONE, sharpness=s) for s in (1.0, 4.0, 8.0, 12.0, 16.0)},
    "no teachers, one-hot": replace(ALONE, sharpness=ONE_HOT),
    "no teachers, no regret": replace(ALONE, student_fit=FitOptions(steps=6000, regret=0.0)),
    "no teachers, no membership": replace(ALONE, student_fit=FitOptions(steps=6000, membership=0.0)),
    "2 teachers": Recipe(),
    "4 teachers, no synthetic problems": replace(SHIPPED, synthetic=0),
    "4 teachers, one-hot": replace(SHIPPED, sharpness=ONE_HOT),
    "4 teachers, sharpness 4": replace(SHIPPED, sharpness=4.0),
    "4 teachers, width 48": replace(SHIPPED, width=48, hidden=96),
    "4 teachers, 3 blocks": replace(SHIPPED, blocks=3, hidden=64),
    "4 larger teachers": replace(SHIPPED, teacher_hidden=256, teacher_blocks=3),
}
FIELDS = "arch,recipe,seed,problems,top1,slowdown_geomean,slowdown_mean,slowdown_p95,unmasked_slowdown_geomean".split(
    ","
)
FIELDS += ["parameters", "seconds"]


def run(task: tuple[str, str, Recipe, argparse.Namespace]) -> dict:
    arch, name, recipe, options = task
    torch.set_num_threads(max(1, torch.get_num_threads() // options.jobs))
    begin = time.monotonic()
    databases = [(a, read_timings(options.miopen / f"{a}.fdb.txt.xz")) for a in DATABASES[arch]]
    stem = f"{arch}-seed{recipe.seed}" if name == "shipped" else f"{arch}-{name.replace(' ', '_').replace(',', '')}"
    checkpoint = Checkpoint(options.out / f"{stem}.pt.partial", repr(recipe))
    weights = train(databases, arch, recipe, checkpoint, options.device, quiet=True)
    checkpoint.path.unlink()
    if name == "shipped":
        weights.metadata["timings"] = [
            {"file": f"{a}.fdb.txt.xz", "device": a, "records": len(r)} for a, r in databases
        ]
        weights.save(options.out / f"{stem}.pt")
    scores = dict(weights.metadata["scores"])
    scores["parameters"] = sum(tensor.numel() for tensor in weights.tensors.values())
    scores["seconds"] = round(time.monotonic() - begin)
    shown = ", ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in scores.items())
    print(f"{arch}, {name}, seed {recipe.seed}: {shown}", flush=True)
    return arch, name, recipe.seed, scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--miopen", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--arch", nargs="*", choices=list(DATABASES), default=list(DATABASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ablation", action="store_true", help="other recipes too, for gfx908 with seed 0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = [(a, "shipped", replace(SHIPPED, seed=s), options) for a in options.arch for s in range(options.seeds)]
    if options.ablation:
        tasks += [("gfx908", name, recipe, options) for name, recipe in ABLATION.items()]
    tasks.sort(key=lambda task: -len(DATABASES[task[0]]))  # the longest first
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        results = sorted(pool.imap_unordered(run, tasks, chunksize=1), key=lambda result: result[:3])
    for arch in options.arch:
        stems = [options.out / f"{arch}-seed{seed}.pt" for seed in range(options.seeds)]
        best = min((load(stem) for stem in stems), key=lambda weights: weights.metadata["validation"])
        best.save(options.out / f"{arch}.pt")
    if options.csv:
        write_csv(
            options.csv,
            (
                Row("train_selectors", arch, f"{name}, seed {seed}", metric, value, value, value, options.device)
                for arch, name, seed, scores in results
                for metric, value in scores.items()
            ),
        )


if __name__ == "__main__":
    main()
