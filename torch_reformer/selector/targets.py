"""What a selector learns: probabilities of being the fastest, made of run times.

``p`` of a kernel is proportional to ``(best time / its time) ** sharpness`` among the kernels that were timed for the
problem; one that was not timed is unknown, not slow, and takes no part.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

SHARPNESS = 32.0  # the same kernel timed twice differs by 2 to 3%: two that differ by no more are nearly as probable
MUCH_SLOWER = math.log(3)  # how much slower what takes longer than that is does not matter
ONE_HOT = float("inf")  # sharpness of targets that know only the best


def optimality(log_ratio: Tensor, valid: Tensor, sharpness: float) -> Tensor:
    """The targets ``[n, e]`` of entries whose times are ``exp(log_ratio)`` times the best; each row's sum is 1."""
    if sharpness == ONE_HOT:
        sharpness = 1e6  # shares the 1 between equal times, as a limit
    return masked(-sharpness * log_ratio, valid).softmax(-1)


def masked(logits: Tensor, valid: Tensor) -> Tensor:
    return logits.masked_fill(~valid, float("-inf"))


def of_entries(logits: Tensor, entries: Tensor) -> Tensor:
    """The logits ``[n, e]`` of each row's entries, minus infinity where there is none."""
    return masked(logits.gather(1, entries.clamp_min(0)), entries >= 0)


def loss(
    logits: Tensor,
    entries: Tensor,
    targets: Tensor,
    log_ratio: Tensor,
    regret: float,
    membership: float,
    differences: float,
) -> Tensor:
    """The mean over problems of four terms, where targets are :func:`optimality` with SHARPNESS:

    * the cross-entropy between the targets and the model's probabilities among the entries;
    * ``regret`` times the model's expected log slow-down among the entries;
    * ``membership`` times minus the log of all probability that the entries have among all candidates. A record of the
      four fastest does not say that the others are slow, but a model that knows nothing of them could choose anything;
    * ``differences`` times the Huber error of the entries' logits against minus SHARPNESS times the logarithms of their
      times, each without their mean; this one is the mean over the measured problems. The cross-entropy learns next to
      nothing of kernels far from the best, and so of how much a choice gains over another.
    """
    valid = entries >= 0
    known = of_entries(logits, entries)
    total = known.logsumexp(1)
    log_p = (known - total[:, None]).masked_fill(~valid, 0.0)
    result = -(targets * log_p).sum(1)
    result = result + regret * (log_p.exp() * valid * log_ratio).sum(1)
    measured = valid & (log_ratio > 0).any(1, keepdim=True)
    wanted = -SHARPNESS * log_ratio.clamp_max(MUCH_SLOWER)
    error = F.huber_loss(_centred(known, measured), _centred(wanted.to(known.dtype), measured), reduction="none")
    error = error.sum(1) / measured.sum(1).clamp_min(1)
    result = result + membership * (logits.logsumexp(1) - total)
    return result.mean() + differences * error.sum() / measured.any(1).sum().clamp_min(1)


def _centred(values: Tensor, valid: Tensor) -> Tensor:
    """Without the mean of those that are valid; others are 0."""
    values = values.masked_fill(~valid, 0.0)
    mean = values.sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp_min(1)
    return (values - mean).masked_fill(~valid, 0.0)
