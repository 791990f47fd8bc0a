"""Trains a selector on databases of timings and writes its weights file.

Large teachers learn the optimality probabilities of all databases at once. The selector, small enough to decide in
microseconds, then learns from the mean of the teachers and from the measured probabilities, both on the measured
problems and on similar problems that only the teachers have labelled. Groups of siblings (one geometry in all batches,
directions, types and layouts) are never split: some choose the epoch, others are never trained on and give the scores.
An interrupted training resumes when the same command is given again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from ..runtime import native
from ..runtime.files import check_writable
from ..version import VERSION
from . import weights_file
from .dataset import FOLDS, Dataset, architecture, decided, geometry_group, make_dataset, useless
from .model import Reformer
from .scoring import confidence, figures, restricted, unmasked
from .targets import SHARPNESS
from .timing_database import named_database, read_database
from .timings import Record
from .training_loop import TrainingLoop, TrainingOptions, logits_of
from .training_set import Teachers, measured_targets, training_set
from .versions import of_this_version
from .weights_file import Weights

TEST_FOLDS, VALIDATION_FOLDS = (0,), (1,)  # of FOLDS
FEW_GEOMETRIES = 5 * FOLDS  # with this many, each fold is likely to have some


@dataclass(frozen=True)
class Recipe:
    """Everything that training depends on besides the timings."""

    seed: int = 0
    sharpness: float = SHARPNESS  # see targets.py
    width: int = 32
    hidden: int = 128
    blocks: int = 2
    teachers: int = 2
    teacher_width: int = 48
    teacher_hidden: int = 96
    teacher_blocks: int = 2
    teacher_dropout: float = 0.1
    # weight of the teachers' probabilities in the selector's targets; the rest is for measured ones
    teacher_share: float = 0.8
    invented: int = 100_000  # number of problems that only the teachers label
    teacher_fit: TrainingOptions = field(default_factory=lambda: TrainingOptions(steps=5000))
    student_fit: TrainingOptions = field(default_factory=lambda: TrainingOptions(steps=6000))

    @classmethod
    def without_teachers(cls) -> Recipe:
        """Recipe for epilogues and matrix products: few ways to choose from, or few records, for a smaller
        model. Scores of few validation problems are noisy, so they do not end the training."""
        return cls(width=48, hidden=96, blocks=1, teachers=0, student_fit=TrainingOptions(steps=4000, patience=1.0))

    @classmethod
    def thorough(cls, **changes) -> Recipe:
        """Recipe with more and larger teachers that label more problems; needs a GPU."""
        more = cls(
            width=48,
            hidden=96,
            teachers=8,
            teacher_width=64,
            teacher_hidden=256,
            teacher_blocks=3,
            teacher_dropout=0.25,
            invented=400_000,
            teacher_fit=TrainingOptions(steps=8000),
            student_fit=TrainingOptions(steps=10_000),
        )
        return replace(more, **changes)


def split(fold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the problems to train on, to choose the epoch by, and to score."""
    test, validation = (torch.isin(fold, torch.tensor(folds)) for folds in (TEST_FOLDS, VALIDATION_FOLDS))
    train, validation, test = (which.nonzero()[:, 0] for which in (~(test | validation), validation, test))
    return train, validation, test


def check_enough(mine: Dataset, arch: str) -> None:
    """Raise ``ValueError`` if one of the three parts of an architecture's problems is empty."""
    for part, purpose in zip(split(mine.fold), ("train on", "choose the epoch by", "score"), strict=True):
        if not len(part):
            geometries = len(set(map(geometry_group, mine.problems)))
            raise ValueError(
                f"the {len(mine)} usable problems of {arch} are of {geometries} geometries and leave none to {purpose} "
                f"(one geometry in {FOLDS} is to choose the epoch by, and one to score): measure at least "
                f"{FEW_GEOMETRIES}"
            )


class Checkpoint:
    """Finished models and the one in training, in a file beside the result."""

    def __init__(self, path: Path, fingerprint: str):
        self.path = path
        self.content: dict = {"fingerprint": fingerprint, "finished": [], "current": None}
        if path.exists():
            with self.trusted():
                saved = weights_file.read(path)
                theirs, _, _ = (saved[name] for name in self.content)
                saved["finished"] = list(saved["finished"])
            if theirs != fingerprint:
                raise ValueError(
                    f"{path} is of a training with other databases or options: finish that one, or delete the file"
                )
            self.content = saved

    def save(self) -> None:
        weights_file.save(self.path, self.content)

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Context for code that reads the file's content, which fails in many ways if the file is damaged."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{self.path} is damaged: delete it to start the training again") from error


class Trainer:
    """Trains the models of one training in order, each once."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, quiet: bool = False):
        self.checkpoint, self.device, self.quiet = checkpoint, device, quiet
        self.number = 0  # number of the next model

    def train(
        self,
        name: str,
        model: Reformer,
        data: Dataset,
        targets: Tensor,
        validation: Dataset,
        options: TrainingOptions,
        seed,
    ) -> Reformer:
        content, number = self.checkpoint.content, self.number
        self.number += 1
        model = model.to(self.device)
        if number < len(content["finished"]):
            with self.checkpoint.trusted():
                model.load_state_dict(content["finished"][number])
            return model.eval()
        data, validation, targets = data.to(self.device), validation.to(self.device), targets.to(self.device)
        loop = TrainingLoop(model, options, len(data), seed)
        if content["current"]:
            with self.checkpoint.trusted():
                loop.load_state(content["current"])
        with tqdm(
            total=loop.epochs * loop.steps_an_epoch, initial=loop.step, desc=name, unit="step", disable=self.quiet
        ) as bar:
            while not loop.done:
                loop.run_epoch(data, targets, validation, bar.update)
                bar.set_postfix(validation=f"{1 + loop.best_score:.4f}", epoch=f"{loop.best_epoch}/{loop.epoch}")
                content["current"] = loop.state()
                self.checkpoint.save()
        content["current"] = None
        result = loop.best_model()
        content["finished"].append({name: tensor.cpu() for name, tensor in result.state_dict().items()})
        self.checkpoint.save()
        return result


def teach(everything: Dataset, recipe: Recipe, trainer: Trainer) -> list[Reformer]:
    """Train teachers on all architectures at once."""
    known, validation, _ = (everything.select(which) for which in split(everything.fold))
    targets = measured_targets(known, recipe.sharpness)
    sizes = recipe.teacher_width, recipe.teacher_hidden, recipe.teacher_blocks
    counts = native.feature_shape().rows, len(everything.candidates)
    result = []
    for number in range(recipe.teachers):
        seed = 1000 * recipe.seed + number + 1
        torch.manual_seed(seed)
        model = Reformer(*counts, *sizes, devices=len(everything.architectures), token_dropout=recipe.teacher_dropout)
        name = f"teacher {number + 1} of {recipe.teachers}"
        result.append(trainer.train(name, model, known, targets, validation, recipe.teacher_fit, seed))
    return result


# Advantages of PyTorch's own kernel to try, as factors of its probability. A choice is slow if it takes longer than
# that kernel by the factor LONGER; OFTEN is the allowed fraction of slow choices. It is half of what users should see,
# because the same problems chose the epoch.
ADVANTAGES, LONGER, OFTEN = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0), 0.05, 0.0125


def favour(model: Reformer, candidates: list[str], validation: Dataset) -> float:
    """Give PyTorch's own kernel the smallest advantage with which choices are rarely slower than that kernel on the
    validation problems; returns the advantage. If no advantage makes this rare enough, take the smallest that is within
    one standard error of the best, since these problems are few (the one-standard-error rule of Breiman et al.,
    Classification and Regression Trees, 1984). Logits differ by the log ratio of the times multiplied by the sharpness,
    so an advantage requires a minimum gain, below which a wrong guess could cost more than the gain."""
    if "aten" not in candidates:
        return 1.0
    place, logits = candidates.index("aten"), logits_of(model, validation)
    is_theirs = validation.entries == place
    theirs = validation.log_ratio.masked_fill(~is_theirs, 0.0).sum(1)

    problems = max(int(is_theirs.any(1).sum()), 1)

    def slower(advantage: float) -> float:
        favoured = logits.clone()
        favoured[:, place] += math.log(advantage)
        ours = restricted(favoured, validation.entries, validation.log_ratio)
        return (ours - theirs > math.log1p(LONGER))[is_theirs.any(1)].sum().item() / problems

    shares = {advantage: slower(advantage) for advantage in ADVANTAGES}
    best = min(shares.values())
    enough = OFTEN if best <= OFTEN else best + math.sqrt(best * (1 - best) / problems)
    advantage = next(candidate for candidate, share in shares.items() if share <= enough)
    with torch.no_grad():
        model.head.bias[place] += math.log(advantage)
    return advantage


def learn(
    everything: Dataset, arch: str, devices: Sequence[str], models: list[Reformer], recipe: Recipe, trainer: Trainer
) -> Weights:
    """Train the selector of one architecture on its measured problems and the teachers ``models``.

    ``devices`` are the devices of this architecture that were measured.
    """
    mine, columns = everything.of(arch)
    check_enough(mine, arch)
    measured, validation, test = (mine.select(which) for which in split(mine.fold))
    teachers = Teachers(models, everything.architectures.index(arch), columns, trainer.device)
    data, targets = training_set(
        measured, teachers, devices, recipe.sharpness, recipe.teacher_share, recipe.invented, recipe.seed
    )
    data, validation, test = (replace(part, device=torch.zeros_like(part.device)) for part in (data, validation, test))
    seed = 1000 * recipe.seed
    torch.manual_seed(seed)
    rows = native.feature_shape(everything.decides).rows
    model = Reformer(rows, len(mine.candidates), recipe.width, recipe.hidden, recipe.blocks)
    model = trainer.train("selector", model, data, targets, validation, recipe.student_fit, seed).cpu()
    return scored(model, arch, mine, validation, test, recipe)


def scored(model: Reformer, arch: str, mine: Dataset, validation: Dataset, test: Dataset, recipe: Recipe) -> Weights:
    """Trained selector as weights, with its scores and other metadata."""
    advantage = favour(model, mine.candidates, validation)

    def slow(part: Dataset) -> tuple[Tensor, Tensor]:
        arguments = logits_of(model, part), part.entries, part.log_ratio
        return restricted(*arguments), unmasked(*arguments)

    metadata = {
        "architecture": arch,
        "decides": mine.decides,
        "feature_version": native.feature_shape().version,
        "candidates": mine.candidates,
        "model": {"width": recipe.width, "hidden": recipe.hidden, "blocks": recipe.blocks},
        "problems": len(mine),
        "recipe": asdict(recipe),
        "folds": {"of": FOLDS, "test": list(TEST_FOLDS), "validation": list(VALIDATION_FOLDS)},
        "advantage": advantage,
        "validation": figures(*slow(validation))["slowdown_geomean"],
        "scores": figures(*slow(test)),
        "confidence": confidence(logits_of(model, test), test.entries, test.log_ratio),
        "versions": {"torch_reformer": VERSION, "torch": str(torch.__version__)},
    }
    return Weights(metadata, model.state_dict())


def source(path: Path, device: str, records: Sequence[Record]) -> dict:
    """Description of a database for the metadata of a weights file."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    dtypes = {record.problem.dtype for record in records if not useless(record)}
    return {
        "file": path.name,
        "device": device,
        "sha256": digest,
        "records": len(records),
        "dtypes": sorted(dtypes),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timings",
        type=named_database,
        nargs="+",
        required=True,
        metavar="[DEVICE=]DB",
        help="find-db text (.xz, .bz2); DEVICE (gfx90a, cpu-avx512-2t, ...) if it is another than --arch and DB is "
        "not of `collect`, which notes it",
    )
    parser.add_argument(
        "--arch", required=True, metavar="NAME", help="architecture that the weights are for: cpu, gfx908, ..."
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the weights file to write")
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="maximum number of epochs of each model (default: as many as a fixed number of steps takes)",
    )
    parser.add_argument("--thorough", action="store_true", help="more and larger teachers; needs a GPU")
    parser.add_argument(
        "--teachers",
        type=int,
        metavar="N",
        help=f"how many, or 0 (default: {Recipe().teachers}; thorough: {Recipe.thorough().teachers})",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="random seed (default: 0); equal seeds give equal weights",
    )
    parser.add_argument("--device", default="cpu", metavar="D", help="device to train on: cpu (default) or cuda")


def _training_device(text: str) -> torch.device:
    try:
        device = torch.device(text)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--device {text}: PyTorch has no such device here ({reason}): give cpu, or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {text} does not support training: give cpu, or cuda")
    return device


MOST_SEED = 2**31 - 1
FEW = 100  # with fewer held-out problems, warn that the scores mean little


def run(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    if options.epochs is not None and options.epochs < 1 or options.teachers is not None and options.teachers < 0:
        raise ValueError("--epochs must be at least 1 and --teachers at least 0")
    if not 0 <= options.seed <= MOST_SEED:
        raise ValueError(f"--seed must be from 0 to {MOST_SEED}, got {options.seed}")
    device, arch = _training_device(options.device), architecture(options.arch)
    check_writable(options.out)
    read = [(path, *read_database(path, named_device, arch)) for named_device, path in options.timings]
    decides = decided(record for _, _, records in read for record in records)
    if decides != "kernels" and (options.thorough or options.teachers):
        raise ValueError(
            "records of matrix products and of programs are learned without teachers: leave these options out"
        )
    databases, sources = [], []
    for path, name, records in read:
        records, warnings = of_this_version(records, name)
        for warning in warnings:
            print(f"warning: {path}: {warning}", file=sys.stderr)
        databases.append((name, records))
        sources.append(source(path, name, records))
    small = Recipe() if decides == "kernels" else Recipe.without_teachers()
    recipe = replace(Recipe.thorough() if options.thorough else small, seed=options.seed)
    fits = {name: replace(getattr(recipe, name), epochs=options.epochs) for name in ("teacher_fit", "student_fit")}
    recipe = replace(recipe, **fits)
    if options.teachers is not None:
        recipe = replace(recipe, teachers=options.teachers)
    fingerprint = json.dumps([sources, asdict(recipe), arch, native.feature_shape()])
    checkpoint = Checkpoint(options.out.with_name(options.out.name + ".partial"), fingerprint)
    devices = list(dict.fromkeys(name for name, _ in databases if architecture(name) == arch))
    if not devices:
        raise ValueError(f"no database is of {arch}: they are of {', '.join(dict(databases))}")
    everything = make_dataset(databases)
    check_enough(everything.of(arch)[0], arch)  # checked before the teachers are trained, which takes longest
    trainer = Trainer(checkpoint, device)
    weights = learn(everything, arch, devices, teach(everything, recipe, trainer), recipe, trainer)
    weights.metadata["timings"] = sources
    weights.save(options.out)
    checkpoint.path.unlink(missing_ok=True)
    report(options.out, weights, time.monotonic() - begin)
    return 0


def report(out: Path, weights: Weights, seconds: float) -> None:
    scores = weights.metadata["scores"]
    count = sum(tensor.numel() for tensor in weights.tensors.values())
    print(f"{out}: {count:,} parameters, {seconds:.0f} s")
    print(
        f"on {scores['problems']:,} problems of geometries never trained on: the best kernel in {scores['top1']:.1%}, "
        f"slow-down {scores['slowdown_geomean']:.4f} (geometric mean)"
    )
    if scores["problems"] < FEW:
        print(
            f"warning: scores on so few problems mean little; one geometry in {FOLDS} is left for them: measure more",
            file=sys.stderr,
        )
