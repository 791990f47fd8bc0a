"""Training set of a selector: measured problems, and similar problems for which only teachers provide targets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .dataset import Dataset, sequence
from .model import Reformer
from .synthetic import similar_problems
from .targets import of_entries, optimality
from .training_loop import logits_of

MOST_SIMILAR = 5  # at most this many unmeasured problems per measured one
ENTRIES = 6  # number of entries of an unmeasured problem: the teachers' most probable candidates


def measured_targets(data: Dataset, sharpness: float) -> Tensor:
    return optimality(data.log_ratio, data.valid, sharpness)


class Teachers:
    """Models of all architectures, evaluated on the candidates of one architecture."""

    def __init__(self, models: Sequence[Reformer], number: int, columns: Tensor, device: torch.device):
        self.models, self.number, self.columns, self.device = models, number, columns, device

    def log_probabilities(self, data: Dataset) -> Tensor:
        """Mean of the models' log-probabilities ``[n, candidates of the architecture]``."""
        asked = replace(data, device=torch.full_like(data.device, self.number)).to(self.device)
        answers = [logits_of(model, asked)[:, self.columns].log_softmax(1) for model in self.models]
        return torch.stack(answers).mean(0).cpu()


def _invented(near: Dataset, count: int, devices: Sequence[str], seed: int) -> Dataset:
    """Problems similar to measured ones, each on one of the devices, with `ENTRIES` empty entries."""
    problems = similar_problems(near.problems, count, seed)
    random.Random(seed).shuffle(problems)
    shares = [problems[i :: len(devices)] for i in range(len(devices))]
    sequences = [sequence(share, device) for share, device in zip(shares, devices, strict=True)]
    entries = min(ENTRIES, len(near.candidates))
    return replace(
        near,
        keys=[""] * len(problems),
        problems=[problem for share in shares for problem in share],
        rows=torch.cat([rows for rows, _ in sequences]),
        weights=torch.cat([weights for _, weights in sequences]),
        entries=torch.full((len(problems), entries), -1),
        log_ratio=torch.zeros(len(problems), entries),
        best_ms=torch.ones(len(problems)),
        device=torch.zeros(len(problems), dtype=torch.long),
        fold=torch.full((len(problems),), -1),
    )


def training_set(
    measured: Dataset, teachers: Teachers, devices: Sequence[str], sharpness: float, share: float, count: int, seed: int
) -> tuple[Dataset, Tensor]:
    """Problems and their targets.

    The target of a measured problem is the weighted mean of the teachers' probabilities (weight ``share``) and the
    measured ones. Another ``count`` problems (at most MOST_SIMILAR per measured one) have the teachers' probabilities
    as targets. ``devices`` are those of the architecture, such as one CPU with several numbers of threads.
    """
    targets = measured_targets(measured, sharpness)
    if not teachers.models:
        return measured, targets
    known = of_entries(teachers.log_probabilities(measured), measured.entries).softmax(1)
    targets = share * known + (1 - share) * targets
    count = min(count, MOST_SIMILAR * len(measured))
    if not count:
        return measured, targets
    invented = _invented(measured, count, devices, seed)
    likely = teachers.log_probabilities(invented).topk(invented.entries.shape[1], 1)
    invented.entries.copy_(likely.indices)
    return joined(measured, targets, invented, likely.values.softmax(1))


_WHOLE = ("rows", "weights", "best_ms", "device", "fold")


def joined(a: Dataset, a_targets: Tensor, b: Dataset, b_targets: Tensor) -> tuple[Dataset, Tensor]:
    """Concatenation of two datasets with the same candidates, and of their targets."""
    width = max(a.entries.shape[1], b.entries.shape[1])

    def rows(x: Tensor, y: Tensor, fill: float) -> Tensor:
        return torch.cat([F.pad(part, (0, width - part.shape[1]), value=fill) for part in (x, y)])

    whole: dict[str, Any] = {name: torch.cat([getattr(a, name), getattr(b, name)]) for name in _WHOLE}
    data = replace(
        a,
        keys=a.keys + b.keys,
        problems=a.problems + b.problems,
        entries=rows(a.entries, b.entries, -1),
        log_ratio=rows(a.log_ratio, b.log_ratio, 0),
        **whole,
    )
    return data, rows(a_targets, b_targets, 0)
