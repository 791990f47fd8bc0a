"""Training targets of a selector: probabilities of being the fastest, derived from run times.

``p`` of a kernel is proportional to ``(best time / its time) ** sharpness`` among the kernels that were timed for the
problem. A kernel that was not timed is unknown, not slow, and is left out.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

# repeated timings of a kernel differ by 2 to 3%, so kernels that differ by no more are almost equally probable
SHARPNESS = 32.0
# log slow-down at which targets saturate: beyond it, how much slower a kernel is does not matter
MUCH_SLOWER = math.log(3)
ONE_HOT = float("inf")  # sharpness of targets that have only the best kernel


def optimality(log_ratio: Tensor, valid: Tensor, sharpness: float) -> Tensor:
    """Targets ``[n, e]`` of entries whose times are ``exp(log_ratio)`` times the best; each row sums to 1."""
    if sharpness == ONE_HOT:
        sharpness = 1e6  # in this limit, equal best times share the probability
    return masked(-sharpness * log_ratio, valid).softmax(-1)


def masked(logits: Tensor, valid: Tensor) -> Tensor:
    return logits.masked_fill(~valid, float("-inf"))


def of_entries(logits: Tensor, entries: Tensor) -> Tensor:
    """Logits ``[n, e]`` of each row's entries; minus infinity where there is none."""
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
    """Mean over problems of four terms; targets are :func:`optimality` with SHARPNESS:

    * the cross-entropy between the targets and the model's probabilities among the entries;
    * ``regret`` times the model's expected log slow-down among the entries;
    * ``membership`` times minus the log of the total probability of the entries among all candidates. A record of the
      four fastest does not say that others are slow, but without this term the model might choose any of them;
    * ``differences`` times the Huber error of the entries' logits against minus SHARPNESS times the logarithms of their
      times, each without their mean; the mean is over the measured problems. The cross-entropy teaches almost nothing
      about kernels far from the best, and so about the gain of one choice over another.
    """
    valid = entries >= 0
    known = of_entries(logits, entries)
    total = known.logsumexp(1)
    log_p = (known - total[:, None]).masked_fill(~valid, 0.0)
    result = -(targets * log_p).sum(1)
    result = result + regret * (log_p.exp() * valid * log_ratio).sum(1)
    measured = valid & (log_ratio > 0).any(1, keepdim=True)
    expected = -SHARPNESS * log_ratio.clamp_max(MUCH_SLOWER)
    error = F.huber_loss(_centred(known, measured), _centred(expected.to(known.dtype), measured), reduction="none")
    error = error.sum(1) / measured.sum(1).clamp_min(1)
    result = result + membership * (logits.logsumexp(1) - total)
    return result.mean() + differences * error.sum() / measured.any(1).sum().clamp_min(1)


def _centred(values: Tensor, valid: Tensor) -> Tensor:
    """Valid values minus their mean; 0 elsewhere."""
    values = values.masked_fill(~valid, 0.0)
    mean = values.sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp_min(1)
    return (values - mean).masked_fill(~valid, 0.0)
