"""Fine-tunes a selector on other timings: training continues from its weights, takes minutes and needs no teachers.

Use it for your own GPU, which may have candidates that the weights don't know, and for a choice among fewer solvers
(``--offered``): MIOpen's databases contain times of solvers that are not candidates here, and weights trained to find
the fastest of all solvers rank the remaining ones less well.
"""

from __future__ import annotations

import argparse
import functools
import math
import time
from dataclasses import replace
from pathlib import Path

import torch

from ..runtime.files import check_writable
from .dataset import Dataset, architecture, make_dataset
from .model import Reformer
from .offered import of_offered
from .targets import masked, of_entries
from .timing_database import named_database, read_database
from .timings import Record
from .train import Checkpoint, Recipe, Trainer, check_enough, report, scored, source, split
from .training_loop import TrainingOptions, logits_of
from .training_set import joined, measured_targets
from .weights_file import Weights, load

# Records of only the four fastest solvers contain too little about slower ones for the loss term `differences`.
FIT = TrainingOptions(steps=1100, learning_rate=1e-3, patience=1.0, differences=0.0)
SHARE = 0.3  # of the weights' own probabilities in the targets; the rest is measured


def without_advantage(weights: Weights) -> torch.Tensor:
    """The head's bias without the advantage given to PyTorch's kernel (train.favour)."""
    bias = weights.tensors["head.bias"].clone()
    if (advantage := weights.metadata.get("advantage", 1.0)) != 1:
        bias[weights.candidates.index("aten")] -= math.log(advantage)
    return bias


def started(weights: Weights, candidates: list[str]) -> Reformer:
    """Initial model for these candidates, whose first ones are those of the weights. The head's rows for further
    candidates start as the average of the existing rows."""
    model = Reformer(weights.tensors["embedding"].shape[0], len(candidates), **weights.metadata["model"])
    state, further = dict(weights.tensors), len(candidates) - len(weights.candidates)
    state["head.bias"] = without_advantage(weights)
    for name in ("head.weight", "head.bias"):
        rows = state[name]
        state[name] = torch.cat([rows, rows.mean(0, keepdim=True).expand(further, *rows.shape[1:])])
    model.load_state_dict(state)
    return model


def _targets(data: Dataset, weights: Weights, sharpness: float) -> torch.Tensor:
    """Measured targets, mixed with the weights' own probabilities for records whose candidates the weights all know."""
    measured, known_count = measured_targets(data, sharpness), len(weights.candidates)
    known = (data.entries < known_count).all(1, keepdim=True)
    entries = data.entries.masked_fill(data.entries >= known_count, -1)
    probable = of_entries(logits_of(weights.model(), data), entries)
    probable = masked(probable, data.valid & known).softmax(1).nan_to_num()
    return torch.where(known, SHARE * probable + (1 - SHARE) * measured, measured)


def _all_of(parts: list[tuple[Dataset, torch.Tensor]]) -> tuple[Dataset, torch.Tensor]:
    return functools.reduce(lambda one, other: joined(*one, *other), parts)


def adapt(
    weights: Weights,
    records: list[Record],
    device: str,
    offered_only: list[Record],
    recipe: Recipe,
    trainer: Trainer,
) -> Weights:
    """Selector after training on the records and, if given, on the same records with the offered solvers only.

    ``device`` is the device that was measured. The scores are those of all records never trained on.
    """

    def dataset(some: list[Record]) -> Dataset:
        data = make_dataset([(device, some)])
        return replace(data, device=torch.zeros_like(data.device))

    mine = dataset(records).known_to(weights.candidates)
    check_enough(mine, weights.architecture)
    parts = [mine, dataset(offered_only).known_to(mine.candidates)] if offered_only else [mine]
    training, validation = [], []
    for part in parts:
        known, chooses, _ = (part.select(which) for which in split(part.fold))
        training.append((known, _targets(known, weights, recipe.sharpness)))
        validation.append((chooses, measured_targets(chooses, recipe.sharpness)))
    (data, targets), (chooses, _) = _all_of(training), _all_of(validation)
    torch.manual_seed(recipe.seed)
    start = started(weights, mine.candidates)
    model = trainer.train("selector", start, data, targets, chooses, recipe.student_fit, recipe.seed).cpu()
    _, chooses, test = (mine.select(which) for which in split(mine.fold))
    return scored(model, weights.architecture, mine, chooses, test, recipe)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE", help="the weights to start from")
    parser.add_argument(
        "--timings",
        type=named_database,
        required=True,
        metavar="[DEVICE=]DB",
        help="find-db text (.xz, .bz2) of the same architecture; DEVICE, such as cpu-avx512-2t, as for `train`",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the weights file to write")
    parser.add_argument(
        "--offered",
        action="store_true",
        help="learn each record a second time, without the solvers that are not candidates here (docs/selector.md)",
    )
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="number of epochs (default: as many as about 1,100 steps take)"
    )


def run(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    if options.epochs is not None and options.epochs < 1:
        raise ValueError("--epochs must be at least 1")
    check_writable(options.out)
    weights = load(options.weights)
    named_device, path = options.timings
    device, records = read_database(path, named_device, weights.architecture)
    if architecture(device) != weights.architecture:
        raise ValueError(f"{options.weights} is for {weights.architecture}, and {path} is of {device}")
    weights.check_records(records)
    if options.offered and weights.decides != "kernels":
        raise ValueError("--offered is for solvers: weights for epilogues only choose between fused and separate")
    offered_only = of_offered(records, device)[0] if options.offered else []
    if options.offered and not offered_only:
        raise ValueError(f"no solver of {path} is a candidate: omit --offered")
    sizes = weights.metadata["model"]
    recipe = replace(Recipe(), teachers=0, **sizes, student_fit=replace(FIT, epochs=options.epochs))
    used, before = source(path, device, records), weights.metadata["timings"]
    fingerprint = repr((before, used, recipe, options.offered))
    checkpoint = Checkpoint(options.out.with_name(options.out.name + ".partial"), fingerprint)
    adapted = adapt(weights, records, device, offered_only, recipe, Trainer(checkpoint, torch.device("cpu")))
    adapted.metadata["timings"] = before if used in before else [*before, used]
    adapted.save(options.out)
    checkpoint.path.unlink(missing_ok=True)
    report(options.out, adapted, time.monotonic() - begin)
    return 0
