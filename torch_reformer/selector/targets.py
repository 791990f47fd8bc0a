"""What a selector learns: probabilities of being the fastest, made of run times.

``p`` of a kernel is proportional to ``(best time / its time) ** sharpness`` among the kernels that were timed for the
problem; one that was not timed is unknown, not slow, and takes no part.
"""

from __future__ import annotations

from torch import Tensor

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
    logits: Tensor, entries: Tensor, targets: Tensor, log_ratio: Tensor, regret: float, membership: float
) -> Tensor:
    """The mean over problems of three terms:

    * the cross-entropy between the targets and the model's probabilities among the entries;
    * ``regret`` times the model's expected log slow-down among the entries;
    * ``membership`` times minus the log of all probability that the entries have among all candidates. A record of the
      four fastest does not say that the others are slow, but a model that knows nothing of them could choose anything.
    """
    valid = entries >= 0
    known = of_entries(logits, entries)
    total = known.logsumexp(1)
    log_p = (known - total[:, None]).masked_fill(~valid, 0.0)
    result = -(targets * log_p).sum(1)
    result = result + regret * (log_p.exp() * valid * log_ratio).sum(1)
    return (result + membership * (logits.logsumexp(1) - total)).mean()
