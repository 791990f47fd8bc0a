"""Negative log likelihood of class indices by comparisons: an element belongs to its row's class if its column's index
is that class. So the forward and the backward are element-wise operations and sums, which fuse with the softmax before
them, and no gradient is filled with zeros first."""

from __future__ import annotations

import torch
from torch import Tensor

from ...program.interpreter import computed_type

aten = torch.ops.aten

_IGNORED = -0.5  # neither a class nor a wrong target, as those are integers
_MOST_CLASSES = 2**24  # fp32 represents all integers up to this one
_MEAN = 1  # ATen's number for the reduction "mean"; 0 is "none", 2 is "sum"


_library = torch.library.Library("reformer", "FRAGMENT")
_library.define("_targets_exist(Tensor wrong, Tensor target, SymInt classes, SymInt ignore_index) -> Tensor")
_targets_exist = torch.ops.reformer._targets_exist.default


@torch.library.impl(_library, "_targets_exist", "CPU")
def _targets_exist_on_cpu(wrong: Tensor, target: Tensor, classes: int, ignore_index: int) -> Tensor:
    """True, or eager mode's error, which names the first target that is no class. (An assertion in a graph could not:
    its text is constant.) wrong: the number of such targets."""
    if wrong.item():
        first = next(index for index in target.tolist() if index != ignore_index and not 0 <= index < classes)
        raise IndexError(f"Target {first} is out of bounds.")
    return torch.ones((), dtype=torch.bool)


@torch.library.register_fake("reformer::_targets_exist", lib=_library)
def _(wrong: Tensor, target: Tensor, classes: int, ignore_index: int) -> Tensor:
    return wrong.new_empty((), dtype=torch.bool)


def _supports(scores: Tensor) -> bool:
    return scores.dim() >= 2 and scores.shape[1] < _MOST_CLASSES


def _classes(scores: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Class index of each row or pixel, as a floating-point tensor ``[N, 1, ...]``; _IGNORED for ignored ones."""
    numbers = target.to(computed_type(scores.dtype))
    # No other integer is rounded to a number that fp32 represents with all integers below it.
    compared = numbers if abs(ignore_index) < _MOST_CLASSES else target
    return torch.where(compared == ignore_index, _IGNORED, numbers).unsqueeze(1)


def _is_class(scores: Tensor, classes: Tensor) -> Tensor:
    numbers = torch.arange(scores.shape[1], dtype=classes.dtype, device=scores.device)
    return numbers.view(-1, *[1] * (scores.dim() - 2)) == classes


def _weights(weight: Tensor, classes: Tensor, target: Tensor) -> Tensor:
    """The weight of each row's or pixel's class, ``[N, 1, ...]``; 0 for ignored ones, and where there is no class."""
    is_class = (classes >= 0) & (classes < weight.shape[0])
    return torch.where(is_class, weight[torch.where(is_class, target.unsqueeze(1), 0)], 0.0)


def _nll_loss_forward(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    if not _supports(scores):
        return NotImplemented
    classes = _classes(scores, target, ignore_index)
    wrong = torch.where(classes < _IGNORED, 1.0, (classes >= scores.shape[1]).to(classes.dtype)).sum()
    exist = _targets_exist(wrong, target, scores.shape[1], ignore_index) if scores.device.type == "cpu" else wrong == 0
    aten._assert_async.msg(exist, "nll_loss: a target is out of bounds")
    losses = torch.where(_is_class(scores, classes), -scores, 0.0)
    if scores.dim() == 2 or not reduction:  # classes of pixels may be far apart in memory
        losses = losses.sum(1)
    if weight is None:
        count = (classes >= 0).to(scores.dtype).sum()
    else:
        weights = _weights(weight, classes, target)
        count = weights.sum()
        losses = losses * (weights if losses.dim() == scores.dim() else weights.squeeze(1))
    if reduction == _MEAN:
        return losses.sum() / count, count
    return (losses.sum(), count) if reduction else (losses, scores.new_zeros(()))


def _nll_loss_backward(
    grad: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    if not _supports(scores):
        return NotImplemented
    grad = grad / total_weight if reduction == _MEAN else grad if reduction else grad.unsqueeze(1)
    classes = _classes(scores, target, ignore_index)
    if weight is not None:
        grad = grad * _weights(weight, classes, target)
    return torch.where(_is_class(scores, classes), -grad, 0.0)


DECOMPOSITIONS = {
    aten.nll_loss_forward.default: _nll_loss_forward,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_forward.default: _nll_loss_forward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
}
