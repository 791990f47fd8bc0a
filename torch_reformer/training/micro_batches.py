"""Micro-batches of a training step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def parts(batch: tuple, count: int) -> Iterator[tuple]:
    """So many equal parts of the batch's tensors along their first dimension.

    Raises:
        ValueError: the rows of a tensor are no multiple of the count.
    """
    if count == 1:
        yield batch
        return
    for tensor in batch:
        if isinstance(tensor, Tensor) and tensor.dim() and tensor.shape[0] % count:
            raise ValueError(f"training_step: {tensor.shape[0]} rows of a batch are no multiple of {count}")
    for number in range(count):
        yield tuple(
            tensor.chunk(count)[number] if isinstance(tensor, Tensor) and tensor.dim() else tensor for tensor in batch
        )


def joined(results: list) -> Any:
    """The step's result: the mean of the micro-batches' losses, and lists of what the loss gives besides."""
    if len(results) == 1:
        return results[0]
    if not isinstance(results[0], (tuple, list)):
        return torch.stack(results).mean()
    losses, *others = zip(*results, strict=True)
    return (torch.stack(losses).mean(), *map(list, others))
