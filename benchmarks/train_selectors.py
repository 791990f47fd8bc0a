"""Trains the shipped selectors for AMD GPUs on MIOpen's find-dbs, and compares recipes.

    python benchmarks/train_selectors.py --miopen FOLDER --out FOLDER [--csv FILE] [--ablation] [--device cuda --jobs 9]

FOLDER contains ``gfx908.fdb.txt.xz`` and so on. The weights of each seed are written to ``ARCH-seedN.pt``, and those of
the best seed on the validation groups also to ``ARCH.pt``. The scores are on groups never trained on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import torch
from results import Row, write_csv

from torch_reformer.selector.dataset import Dataset, make_dataset
from torch_reformer.selector.model import Reformer
from torch_reformer.selector.targets import ONE_HOT
from torch_reformer.selector.timings import read_timings
from torch_reformer.selector.train import Checkpoint, Recipe, Trainer, learn, source, teach
from torch_reformer.selector.weights_file import load

ARCHITECTURES = "gfx908", "gfx90a", "gfx942"
# Records of only the four fastest solvers contain too little about slower ones for the loss term `differences`.
THOROUGH = Recipe.thorough()
SHIPPED = replace(
    THOROUGH,
    **{fit: replace(getattr(THOROUGH, fit), differences=0.0) for fit in ("teacher_fit", "student_fit")},
)
ALONE = replace(SHIPPED, teachers=0)
# Other recipes for the selector itself, all with the teachers of the first seed or with none.
ABLATION = {
    **{f"no teachers, sharpness {s:g}": replace(ALONE, sharpness=s) for s in (1.0, 4.0, 12.0, 32.0)},
    "no teachers, one-hot": replace(ALONE, sharpness=ONE_HOT),
    "no teachers, no regret term": replace(ALONE, student_fit=replace(SHIPPED.student_fit, regret=0.0)),
    "no teachers, no membership term": replace(ALONE, student_fit=replace(SHIPPED.student_fit, membership=0.0)),
    "no invented problems": replace(SHIPPED, invented=0),
    "teachers only": replace(SHIPPED, teacher_share=1.0),
    "width 32": replace(SHIPPED, width=32, hidden=128),
    "4 teachers": replace(SHIPPED, teachers=4),
}


def _everything(folder: Path) -> tuple[Dataset, list[dict]]:
    """Dataset of all databases, and their descriptions for the metadata."""
    databases, sources = [], []
    for arch in ARCHITECTURES:
        path = folder / f"{arch}.fdb.txt.xz"
        databases.append((arch, read_timings(path)))
        sources.append(source(path, *databases[-1]))
    return make_dataset(databases), sources


def _trainer(options: argparse.Namespace, stem: str) -> Trainer:
    torch.set_num_threads(max(1, torch.get_num_threads() // options.jobs))
    checkpoint = Checkpoint(options.out / f"{stem}.partial", repr((SHIPPED, ABLATION)))
    return Trainer(checkpoint, torch.device(options.device), quiet=True)


def _teachers(options: argparse.Namespace, seed: int) -> list[Path]:
    return [options.out / f"teacher-{seed}-{number}.partial" for number in range(SHIPPED.teachers)]


def train_teacher(task: tuple[argparse.Namespace, int, int]) -> None:
    options, seed, number = task
    everything, _ = _everything(options.miopen)
    recipe = replace(SHIPPED, seed=100 * seed + number, teachers=1)
    teach(everything, recipe, _trainer(options, f"teacher-{seed}-{number}"))
    print(f"teacher {number + 1} of seed {seed}", flush=True)


def train_selector(task: tuple[argparse.Namespace, str, str, Recipe]) -> tuple[str, str, int, dict]:
    """Train one selector; returns architecture, name of the recipe, seed, and the scores."""
    options, arch, name, recipe = task
    begin = time.monotonic()
    everything, sources = _everything(options.miopen)
    trainer = _trainer(options, f"{arch}-{name}-{recipe.seed}")
    models = []
    for path in _teachers(options, recipe.seed)[: recipe.teachers]:
        finished = torch.load(path, weights_only=True)["finished"][0]
        sizes = recipe.teacher_width, recipe.teacher_hidden, recipe.teacher_blocks
        model = Reformer(*finished["embedding"].shape[:1], len(everything.candidates), *sizes, len(ARCHITECTURES))
        model.load_state_dict(finished)
        models.append(model.to(trainer.device))
    weights = learn(everything, arch, [arch], models, recipe, trainer)
    if name == "shipped":
        weights.metadata["timings"] = sources
        weights.save(options.out / f"{arch}-seed{recipe.seed}.pt")
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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ablation", action="store_true", help="other recipes too, for gfx908 with seed 0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = range(options.seeds)
    tasks = [(options, arch, "shipped", replace(SHIPPED, seed=seed)) for arch in ARCHITECTURES for seed in seeds]
    if options.ablation:
        tasks += [(options, "gfx908", name, recipe) for name, recipe in ABLATION.items()]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        pool.map(train_teacher, [(options, s, n) for s in seeds for n in range(SHIPPED.teachers)], chunksize=1)
        results = sorted(pool.imap_unordered(train_selector, tasks, chunksize=1), key=lambda result: result[:3])
    for arch in ARCHITECTURES:
        found = [load(options.out / f"{arch}-seed{seed}.pt") for seed in seeds]
        min(found, key=lambda weights: weights.metadata["validation"]).save(options.out / f"{arch}.pt")
    for path in options.out.glob("*.partial"):
        path.unlink()
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
