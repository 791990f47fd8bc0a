"""Selectors for tests, and records to learn from. Set them for the CPU within the fixture `static_rule`, which removes
them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_reformer import ConvProblem
from torch_reformer.runtime import native
from torch_reformer.selector.model import Reformer
from torch_reformer.selector.timings import Record, Timing


def reformer(
    candidates: int, width: int = 16, hidden: int = 32, blocks: int = 1, scale: float = 0.1, decides: str = "kernels"
) -> Reformer:
    """An untrained model without parameters that are zero."""
    model = Reformer(native.feature_shape(decides).rows, candidates, width, hidden, blocks).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * scale
    return model


def constant(logits: list[float]) -> Reformer:
    """A model with equal logits for every problem."""
    model = reformer(len(logits))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor(logits))
    return model


def description(model: Reformer, names: list[str], decides: str = "kernels") -> dict:
    """The argument of native.set_selector()."""
    block = model.blocks[0]
    return {
        "feature_version": native.feature_shape().version,
        "width": block.up.in_features,
        "hidden": block.up.out_features,
        "blocks": len(model.blocks),
        "candidates": names,
        "tensors": model.state_dict(),
        "decides": decides,
    }


def install(model: Reformer, names: list[str], arch: str = "cpu") -> None:
    native.set_selector(arch, **description(model, names))


def record(problem: ConvProblem, **times: float) -> Record:
    return Record(str(problem), tuple(Timing(name, ms, 0, "x") for name, ms in times.items()))


def learnable(count: int = 900) -> list[Record]:
    """Records whose best kernel follows from the problem.

    "small" is the fastest below 64 channels, otherwise "wide", for 1x1 filters always "point", and "slow" never.
    """
    records = []
    for i in range(count):
        c, h, filter = 8 + 3 * (i * 7 % 40), 4 + i % 29, (1, 3, 5)[i % 3]
        p = ConvProblem(1 + i % 5, c, h, h, 16 + i % 11, filter, filter, direction="FBW"[i // 3 % 3])
        if filter <= h:
            best = "point" if filter == 1 else "small" if c < 64 else "wide"
            times = dict.fromkeys(("wide", "small", *(["point"] if filter == 1 else [])), 2.0) | {best: 1.0}
            records.append(record(p, **times, slow=5.0))
    return list({r.key: r for r in records}.values())


@contextmanager
def no_selector(arch: str, decides: str = "kernels") -> Iterator[None]:
    """Context without the selector that decides this for an architecture. One that is set in it is removed after it."""
    before = native.selector(arch, decides)
    native.remove_selector(arch, decides)
    try:
        yield
    finally:
        native.remove_selector(arch, decides)
        if before is not None:
            native.set_selector(arch, **before)
