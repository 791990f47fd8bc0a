"""Selectors for tests: set them for the CPU within the fixture `static_rule`, which removes them."""

from __future__ import annotations

import torch

from torch_reformer import _native
from torch_reformer.selector.model import Reformer


def reformer(candidates: int, width: int = 16, hidden: int = 32, blocks: int = 1, scale: float = 0.1) -> Reformer:
    """An untrained model without any parameter that is zero."""
    model = Reformer(_native.feature_shape().rows, candidates, width, hidden, blocks).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * scale
    return model


def constant(logits: list[float]) -> Reformer:
    """A model that has the same logits for every problem."""
    model = reformer(len(logits))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor(logits))
    return model


def description(model: Reformer, names: list[str]) -> dict:
    """What _native.set_selector() takes."""
    block = model.blocks[0]
    return {
        "feature_version": _native.feature_shape().version,
        "width": block.up.in_features,
        "hidden": block.up.out_features,
        "blocks": len(model.blocks),
        "candidates": names,
        "tensors": model.state_dict(),
    }


def install(model: Reformer, names: list[str], arch: str = "cpu") -> None:
    _native.set_selector(arch, **description(model, names))
