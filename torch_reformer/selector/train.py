"""Trains a selector on databases of timings and writes its weights file.

Large teachers learn the optimality probabilities of all databases together. The selector, small enough to decide in
microseconds, then learns from their mean and from the measured probabilities, on the measured problems and on
problems near them that only the teachers have been asked about. Groups of siblings (one geometry in all batches,
directions, types and layouts) stay together: one part chooses the epoch, one is never trained on and gives the scores.
Interrupted, it goes on where it was when the same command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from .. import __version__, _native
from .dataset import FOLDS, Dataset, architecture, make_dataset, sequence
from .fit import Fit, FitOptions, logits_of
from .model import Reformer
from .scoring import confidence, figures, restricted, unmasked
from .synthetic import neighbours
from .targets import of_entries, optimality
from .timings import Record, read_timings
from .weights_file import Weights

TEST_FOLDS, VALIDATION_FOLDS = (0, 1), (2,)
SYNTHETIC_ENTRIES = 6  # of a problem that only the teachers know: their most probable candidates


@dataclass(frozen=True)
class Recipe:
    """All that training depends on besides the timings."""

    seed: int = 0
    sharpness: float = 12.0  # of the targets (targets.py)
    width: int = 32
    hidden: int = 128
    blocks: int = 2
    teachers: int = 2
    teacher_width: int = 64
    teacher_hidden: int = 128
    teacher_blocks: int = 2
    teacher_dropout: float = 0.2
    teacher_share: float = 0.7  # of the teachers' probabilities in the selector's targets; the rest are measured
    synthetic: int = 100_000  # problems that only the teachers know, but at most 5 for each measured one
    teacher_fit: FitOptions = field(default_factory=FitOptions)
    student_fit: FitOptions = field(default_factory=lambda: FitOptions(steps=6000))


def split(fold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices to train on, to choose the epoch by, and to score."""
    test, validation = (torch.isin(fold, torch.tensor(folds)) for folds in (TEST_FOLDS, VALIDATION_FOLDS))
    return tuple(which.nonzero()[:, 0] for which in (~(test | validation), validation, test))


class Checkpoint:
    """Finished models and the one being trained, in a file beside the result."""

    def __init__(self, path: Path, fingerprint: str):
        self.path = path
        self.content: dict = {"fingerprint": fingerprint, "finished": [], "current": None}
        if path.exists():
            found = torch.load(path, weights_only=True, map_location="cpu")
            if found["fingerprint"] != fingerprint:
                raise ValueError(
                    f"{path} is of a training with other databases or options: finish that one, or delete the file"
                )
            self.content = found

    def save(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        torch.save(self.content, temporary)
        temporary.replace(self.path)


class Trainer:
    """Runs the fits of one training in their order, each once."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, quiet: bool):
        self.checkpoint, self.device, self.quiet = checkpoint, device, quiet
        self.number = 0  # of the next fit

    def fit(
        self, name: str, model: Reformer, data: Dataset, targets: Tensor, validation: Dataset, options: FitOptions, seed
    ) -> Reformer:
        content, number = self.checkpoint.content, self.number
        self.number += 1
        model = model.to(self.device)
        if number < len(content["finished"]):
            model.load_state_dict(content["finished"][number])
            return model.eval()
        data, validation, targets = data.to(self.device), validation.to(self.device), targets.to(self.device)
        fit = Fit(model, options, len(data), seed)
        if content["current"]:
            fit.load_state(content["current"])
        with tqdm(
            total=fit.epochs * fit.steps_an_epoch, initial=fit.step, desc=name, unit="step", disable=self.quiet
        ) as bar:
            while not fit.done:
                fit.run_epoch(data, targets, validation, bar.update)
                bar.set_postfix(validation=f"{1 + fit.best_score:.4f}", epoch=f"{fit.best_epoch}/{fit.epoch}")
                content["current"] = fit.state()
                self.checkpoint.save()
        content["current"] = None
        result = fit.best_model()
        content["finished"].append({name: tensor.cpu() for name, tensor in result.state_dict().items()})
        self.checkpoint.save()
        return result


def train(
    databases: Sequence[tuple[str, Sequence[Record]]],
    arch: str,
    recipe: Recipe,
    checkpoint: Checkpoint,
    device: str = "cpu",
    quiet: bool = False,
) -> Weights:
    """Trains a selector for the architecture ``arch``.

    Args:
        databases: each with the name of the device that it was measured on; those of other architectures than
            ``arch`` only help to teach.

    Raises:
        ValueError: if no database is of this architecture, or one has too few problems to hold some back.
    """
    if arch not in map(architecture, dict(databases)):
        raise ValueError(f"no database is of {arch}: they are of {', '.join(dict(databases)) or 'nothing'}")
    own = [(name, records) for name, records in databases if architecture(name) == arch]
    candidates = sorted({solver for _, records in own for record in records for solver in record.times})
    everything = make_dataset([*own, *(pair for pair in databases if pair not in own)], candidates)
    mine = replace(everything.select((everything.device == 0).nonzero()[:, 0]), candidates=candidates)
    for part, which in zip(("train on", "choose the epoch by", "score"), split(mine.fold), strict=True):
        if not len(which):
            raise ValueError(f"the {len(mine)} usable problems of {arch} leave none to {part}: measure more geometries")
    torch.manual_seed(recipe.seed)
    trainer = Trainer(checkpoint, torch.device(device), quiet)
    rows = _native.feature_shape().rows

    def teacher(number: int) -> Reformer:
        sizes = recipe.teacher_width, recipe.teacher_hidden, recipe.teacher_blocks
        model = Reformer(
            rows, len(everything.candidates), *sizes, len(everything.architectures), recipe.teacher_dropout
        )
        known = everything.select(split(everything.fold)[0])
        targets = optimality(known.log_ratio, known.valid, recipe.sharpness)
        title = f"teacher {number + 1} of {recipe.teachers}"
        seed = 1000 * recipe.seed + number + 1
        return trainer.fit(title, model, known, targets, mine.select(split(mine.fold)[1]), recipe.teacher_fit, seed)

    teachers = [teacher(number) for number in range(recipe.teachers)]
    lesson, targets = _lesson(mine, own, teachers, recipe, trainer.device)
    model = Reformer(rows, len(candidates), recipe.width, recipe.hidden, recipe.blocks)
    validation = mine.select(split(mine.fold)[1])
    model = trainer.fit("selector", model, lesson, targets, validation, recipe.student_fit, 1000 * recipe.seed).cpu()

    def slow(data: Dataset) -> tuple[Tensor, Tensor]:
        given = logits_of(model, data), data.entries, data.log_ratio
        return restricted(*given), unmasked(*given)

    test = mine.select(split(mine.fold)[2])
    return Weights(
        {
            "architecture": arch,
            "feature_version": _native.feature_shape().version,
            "candidates": candidates,
            "model": {"width": recipe.width, "hidden": recipe.hidden, "blocks": recipe.blocks},
            "recipe": asdict(recipe),
            "folds": {"of": FOLDS, "test": list(TEST_FOLDS), "validation": list(VALIDATION_FOLDS)},
            "validation": figures(*slow(validation))["slowdown_geomean"],
            "scores": figures(*slow(test)),
            "confidence": confidence(logits_of(model, test), test.entries, test.log_ratio),
            "versions": {"torch_reformer": __version__, "torch": str(torch.__version__)},
        },
        model.state_dict(),
    )


def _lesson(
    mine: Dataset, own: Sequence[tuple[str, Sequence[Record]]], teachers: list[Reformer], recipe: Recipe, device
) -> tuple[Dataset, Tensor]:
    """What the selector learns from: measured problems, and those only the teachers know, with their targets."""
    measured = mine.select(split(mine.fold)[0])
    measured_targets = optimality(measured.log_ratio, measured.valid, recipe.sharpness)
    if not teachers:
        return measured, measured_targets

    def taught(data: Dataset) -> Tensor:
        """The mean of the teachers' log-probabilities of this architecture's candidates."""
        on_device = data.to(device)
        found = [logits_of(t, on_device)[:, : len(mine.candidates)].log_softmax(1) for t in teachers]
        return torch.stack(found).mean(0).cpu()

    known = of_entries(taught(measured), measured.entries).softmax(1)
    targets = recipe.teacher_share * known + (1 - recipe.teacher_share) * measured_targets
    count = min(recipe.synthetic, 5 * len(measured))
    if not count:
        return measured, targets
    problems = neighbours(measured.problems, count, recipe.seed)
    # Each is asked about one of the devices of this architecture (numbers of threads of a CPU), in turns.
    names = list(dict.fromkeys(name for name, _ in own))
    parts = [sequence(problems[i :: len(names)], name) for i, name in enumerate(names)]
    problems = [problem for i in range(len(names)) for problem in problems[i :: len(names)]]
    width = max(measured.entries.shape[1], min(SYNTHETIC_ENTRIES, len(mine.candidates)))
    asked = replace(
        measured,
        problems=problems,
        rows=torch.cat([rows for rows, _ in parts]),
        weights=torch.cat([weights for _, weights in parts]),
        entries=torch.full((len(problems), width), -1),
        log_ratio=torch.zeros(len(problems), width),
        device=torch.zeros(len(problems), dtype=torch.long),
        fold=torch.full((len(problems),), -1),
    )
    best = taught(asked).topk(min(SYNTHETIC_ENTRIES, len(mine.candidates)), 1)
    asked.entries[:, : best.indices.shape[1]] = best.indices
    answers = torch.full(asked.entries.shape, float("-inf"))
    answers[:, : best.values.shape[1]] = best.values

    def padded(tensor: Tensor, fill: float) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill)

    both = Dataset(
        problems=measured.problems + problems,
        rows=torch.cat([measured.rows, asked.rows]),
        weights=torch.cat([measured.weights, asked.weights]),
        entries=torch.cat([padded(measured.entries, -1), asked.entries]),
        log_ratio=torch.cat([padded(measured.log_ratio, 0), asked.log_ratio]),
        device=torch.cat([measured.device, asked.device]),
        fold=torch.cat([measured.fold, asked.fold]),
        candidates=mine.candidates,
        architectures=mine.architectures,
    )
    return both, torch.cat([padded(targets, 0), answers.softmax(1)])


def _database(text: str) -> tuple[str | None, Path]:
    device, equals, path = text.partition("=")
    return (device, Path(path)) if equals else (None, Path(text))


def device_of(path: Path) -> str | None:
    """What the sidecar of a database that `collect` wrote says."""
    sidecar = path.with_name(path.name + ".meta.json")
    return json.loads(sidecar.read_text())["device"] if sidecar.exists() else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timings",
        type=_database,
        nargs="+",
        required=True,
        metavar="[DEVICE=]DB",
        help="find-db text (.xz, .bz2); DEVICE (gfx90a, cpu-avx512-2t, ...) if it is another than --arch and DB is "
        "not of `collect`, which notes it",
    )
    parser.add_argument("--arch", required=True, metavar="NAME", help="what the weights are for: cpu, gfx908, ...")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--epochs", type=int, metavar="N", help="of the selector at most (default: 6,000 steps' worth)")
    parser.add_argument("--teachers", type=int, default=Recipe.teachers, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="what to train on: cpu (default) or cuda")


def run(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    if options.teachers < 0 or (options.epochs is not None and options.epochs < 1):
        raise ValueError("--teachers must be at least 0 and --epochs at least 1")
    databases, sources = [], []
    for device, path in options.timings:
        records = read_timings(path)
        name = device or device_of(path) or options.arch
        databases.append((name, records))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sources.append({"file": path.name, "device": name, "sha256": digest, "records": len(records)})
    recipe = Recipe(seed=options.seed, teachers=options.teachers)
    recipe = replace(recipe, student_fit=replace(recipe.student_fit, epochs=options.epochs))
    fingerprint = json.dumps([sources, asdict(recipe), options.arch, _native.feature_shape()])
    checkpoint = Checkpoint(options.out.with_name(options.out.name + ".partial"), fingerprint)
    weights = train(databases, options.arch, recipe, checkpoint, options.device)
    weights.metadata["timings"] = sources
    weights.save(options.out)
    checkpoint.path.unlink(missing_ok=True)
    scores = weights.metadata["scores"]
    count = sum(tensor.numel() for tensor in weights.tensors.values())
    print(f"{options.out}: {count:,} parameters, {time.monotonic() - begin:.0f} s")
    print(
        f"on {scores['problems']:,} problems of geometries never trained on: the best kernel in {scores['top1']:.1%}, "
        f"slow-down {scores['slowdown_geomean']:.4f} (geometric mean)"
    )
    return 0
