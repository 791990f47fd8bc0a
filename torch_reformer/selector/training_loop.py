"""Training loop of one model on given targets. It keeps the weights of the best epoch on held-out groups, and can be
interrupted and resumed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .dataset import Dataset
from .model import Reformer
from .scoring import restricted
from .targets import loss

BATCH, WARM_UP_STEPS, EMA = 1024, 200, 0.998
EVALUATION_BATCH = 8192


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training of one model."""

    steps: int = 6000  # approximate number of steps, rounded to whole epochs; ignored if `epochs` is given
    epochs: int | None = None
    patience: float = 0.3  # stop after this fraction of all epochs without a better validation score
    learning_rate: float = 4e-3
    weight_decay: float = 0.1
    regret: float = 10.0  # weights of the loss's second, third and fourth terms (targets.py)
    membership: float = 0.2
    differences: float = 0.3


@torch.no_grad()
def logits_of(model: Reformer, data: Dataset) -> Tensor:
    """Logits ``[n, candidates]``, computed without dropout."""
    model.eval()
    parts = [
        model(rows, weights, device)
        for rows, weights, device in zip(
            data.rows.split(EVALUATION_BATCH),
            data.weights.split(EVALUATION_BATCH),
            data.device.split(EVALUATION_BATCH),
            strict=True,
        )
    ]
    model.train()
    return torch.cat(parts)


class TrainingLoop:
    """Training of one model, with all state that belongs in a checkpoint."""

    def __init__(self, model: Reformer, options: TrainingOptions, problems: int, seed: int):
        self.options = options
        self.model = model
        self.averaged = copy.deepcopy(model)  # exponential moving average of the weights: the result
        self.best = copy.deepcopy(model.state_dict())
        self.best_score = math.inf
        self.best_epoch = self.epoch = self.step = 0
        self.batch = min(BATCH, max(32, problems // 16))
        self.steps_an_epoch = max(1, problems // self.batch)
        self.epochs = options.epochs or max(1, round(options.steps / self.steps_an_epoch))
        self.generator = torch.Generator().manual_seed(seed)
        decayed = [p for n, p in model.named_parameters() if p.dim() > 1 and "taps" not in n and n != "device"]
        others = [p for n, p in model.named_parameters() if not (p.dim() > 1 and "taps" not in n and n != "device")]
        groups = [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.99))

    @property
    def done(self) -> bool:
        return self.epoch >= self.epochs or self.epoch - self.best_epoch > self.options.patience * self.epochs

    def run_epoch(self, data: Dataset, targets: Tensor, validation: Dataset, after_step: Callable[[], object]) -> None:
        order = torch.randperm(len(data), generator=self.generator).to(data.rows.device)
        for start in range(self.steps_an_epoch):
            self._step(data, targets, order[start * self.batch : (start + 1) * self.batch])
            after_step()
        self.epoch += 1
        logits = logits_of(self.averaged, validation)
        score = restricted(logits, validation.entries, validation.log_ratio).mean().item()
        if score < self.best_score:
            self.best_score, self.best_epoch = score, self.epoch
            self.best = copy.deepcopy(self.averaged.state_dict())

    def _step(self, data: Dataset, targets: Tensor, which: Tensor) -> None:
        total = self.epochs * self.steps_an_epoch
        scale = min(1.0, (self.step + 1) / WARM_UP_STEPS) * 0.5 * (1 + math.cos(math.pi * self.step / total))
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * scale
        logits = self.model(data.rows[which], data.weights[which], data.device[which])
        weights = self.options.regret, self.options.membership, self.options.differences
        value = loss(logits, data.entries[which], targets[which], data.log_ratio[which], *weights)
        self.optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        decay = min(EMA, self.step / (self.step + 10))
        with torch.no_grad():
            for mean, parameter in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                mean.lerp_(parameter, 1 - decay)

    def best_model(self) -> Reformer:
        self.averaged.load_state_dict(self.best)
        return self.averaged.eval()

    def state(self) -> dict:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        random = {"cpu": torch.get_rng_state(), "order": self.generator.get_state()}
        if torch.cuda.is_available():
            random["cuda"] = torch.cuda.get_rng_state()
        models = {name: getattr(self, name).state_dict() for name in ("model", "averaged", "optimizer")}
        return {**numbers, **models, "best": self.best, "random": random}

    def load_state(self, state: dict) -> None:
        for name in _NUMBERS:
            setattr(self, name, state[name])
        for name in ("model", "averaged", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.best = state["best"]
        torch.set_rng_state(state["random"]["cpu"].cpu())
        self.generator.set_state(state["random"]["order"].cpu())
        if "cuda" in state["random"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["random"]["cuda"].cpu())


_NUMBERS = ("best_score", "best_epoch", "epoch", "step")
