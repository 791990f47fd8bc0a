"""Dropout by numbers that are computed where they are needed, forward and backward, from a key of 64 bits: only the key
is saved. PyTorch's generators give the keys, so a seed repeats a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..program.interpreter import uniform
from .mutated_inputs import must_save

aten = torch.ops.aten


@torch.library.custom_op("reformer::_random", mutates_args=())
def _random(key: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Uniform in [0, 1), fp32, by the key and each element's place in the memory, which is dense."""
    numbers = uniform(key, (1, math.prod(size), 1, 1))
    return numbers.as_strided(size, stride).clone()


@_random.register_fake
def _(key: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return torch.empty_strided(size, stride, dtype=torch.float32, device=key.device)


random = torch.ops.reformer._random.default
draw_key = aten.randint.low


def _numbers(like: Tensor) -> Tensor:
    """Random ones, of images in the order of memory that an element-wise result of this tensor has. Others have the
    dimensions' own: what comes next, as a sum with what the dropout's block was given, does as well, and what is in
    another order is read where it is."""
    key = draw_key(-(2**63), 2**63 - 1, [1], dtype=torch.int64, device=like.device)
    memory_format = torch.preserve_format if like.dim() == 4 else torch.contiguous_format
    return random(key, like.shape, torch.empty_like(like, memory_format=memory_format).stride())


def _native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    survives = _numbers(input) >= p
    return input * survives.to(input.dtype) * (0.0 if p == 1 else 1 / (1 - p)), survives


def _bernoulli(input: Tensor, p: float, *, generator: torch.Generator | None = None) -> Tensor:
    if generator is not None:
        return NotImplemented
    return (_numbers(input) < p).to(input.dtype)


DECOMPOSITIONS = {aten.native_dropout.default: _native_dropout, aten.bernoulli.p: _bernoulli}


def save_random(joint: GraphModule) -> None:
    """Tells AOTAutograd's partition to save what generators draw, whatever else it has computed again: keys, too, from
    which dropout's numbers are computed again."""
    for node in joint.graph.nodes:
        if node.target is random:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif node.target is draw_key:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        elif is_random(node):
            must_save(node)


def is_random(node: Node) -> bool:
    """True for an operator that draws from a generator. Attention does only for its dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    arguments = node.target._schema.arguments
    given = {each.name: each.default_value for each in arguments}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    return given.get("dropout_p") != 0
