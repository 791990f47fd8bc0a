"""The loss of classes by their numbers, as comparisons: an element belongs to its row's class if its column is that
class. So forward and backward are element-wise operations and sums, which join the softmax before them, and no tensor
of gradients is filled with zeros first."""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten

_IGNORED = -0.5  # no class, and no number that a caller may give by mistake
_MOST_CLASSES = 2**24  # whole numbers that fp32 holds
_MEAN = 1  # ATen's number for it; 0 is none, 2 the sum


_library = torch.library.Library("reformer", "FRAGMENT")
_library.define("_targets_exist(Tensor wrong, Tensor target, SymInt classes, SymInt ignore_index) -> Tensor")
_targets_exist = torch.ops.reformer._targets_exist.default


@torch.library.impl(_library, "_targets_exist", "CPU")
def _targets_exist_on_cpu(wrong: Tensor, target: Tensor, classes: int, ignore_index: int) -> Tensor:
    """True, or eager's error if so many targets are no classes, which names the first: a graph's assertion has a
    constant text."""
    if wrong.item():
        first = next(each for each in target.tolist() if each != ignore_index and not 0 <= each < classes)
        raise IndexError(f"Target {first} is out of bounds.")
    return torch.ones((), dtype=torch.bool)


@torch.library.register_fake("reformer::_targets_exist", lib=_library)
def _(wrong: Tensor, target: Tensor, classes: int, ignore_index: int) -> Tensor:
    return wrong.new_empty((), dtype=torch.bool)


def _supports(scores: Tensor, weight: Tensor | None) -> bool:
    return weight is None and scores.dim() == 2 and scores.shape[1] < _MOST_CLASSES


def _classes(scores: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """The number of each row's class, as a float."""
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.where(target == ignore_index, _IGNORED, target.to(wide)).unsqueeze(1)


def _is_class(scores: Tensor, classes: Tensor) -> Tensor:
    return torch.arange(scores.shape[1], dtype=classes.dtype, device=scores.device) == classes


def _nll_loss_forward(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    if not _supports(scores, weight):
        return NotImplemented
    classes = _classes(scores, target, ignore_index)
    wrong = torch.where(classes < _IGNORED, 1.0, (classes >= scores.shape[1]).to(classes.dtype)).sum()
    exist = _targets_exist(wrong, target, scores.shape[1], ignore_index) if scores.device.type == "cpu" else wrong == 0
    aten._assert_async.msg(exist, "nll_loss: a target is out of bounds")
    losses = torch.where(_is_class(scores, classes), -scores, 0.0).sum(1)
    count = (classes >= 0).to(scores.dtype).sum()
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
    if not _supports(scores, weight):
        return NotImplemented
    grad = grad / total_weight if reduction == _MEAN else grad if reduction else grad.unsqueeze(1)
    return torch.where(_is_class(scores, _classes(scores, target, ignore_index)), -grad, 0.0)


DECOMPOSITIONS = {aten.nll_loss_forward.default: _nll_loss_forward, aten.nll_loss_backward.default: _nll_loss_backward}
