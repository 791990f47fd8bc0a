"""Quality of choices on timing records.

The *slow-down* of a choice is its time over the record's best. In *restricted* figures the selector chooses among the
record's solvers only. In *unmasked* ones it chooses among all that it knows. If that choice is missing from a record of
four or more, it was slower than the recorded ones (MIOpen keeps the four fastest) and is charged the slowest of them. A
shorter record has all solvers that apply, so there the selector falls back to its most probable recorded one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .targets import of_entries

FULL_RECORD = 4


def restricted(logits: Tensor, entries: Tensor, log_ratio: Tensor) -> Tensor:
    """Log slow-down ``[n]`` of each record's most probable entry. If the selector knows none of a record's solvers
    (logits of minus infinity), the slowest is charged."""
    known = of_entries(logits, entries)
    best, place = known.max(1)
    slow = log_ratio.gather(1, place[:, None])[:, 0]
    return torch.where(best.isfinite(), slow, log_ratio.amax(1))


def unmasked(logits: Tensor, entries: Tensor, log_ratio: Tensor) -> Tensor:
    """Log slow-down ``[n]`` of the most probable of all candidates."""
    choice = logits.argmax(1, keepdim=True)
    hit = entries == choice
    recorded = torch.where(hit, log_ratio, 0.0).sum(1)
    missing = torch.where(
        (entries >= 0).sum(1) < FULL_RECORD, restricted(logits, entries, log_ratio), log_ratio.amax(1)
    )
    return torch.where(hit.any(1), recorded, missing)


def figures(slow: Tensor, slow_unmasked: Tensor) -> dict[str, float]:
    """Fraction of best choices, and the distribution of the slow-downs, given their logarithms."""
    return {
        "problems": len(slow),
        "top1": (slow == 0).double().mean().item(),
        "slowdown_geomean": slow.double().mean().exp().item(),
        "slowdown_mean": slow.double().exp().mean().item(),
        "slowdown_p95": slow.double().exp().quantile(0.95).item(),
        "unmasked_slowdown_geomean": slow_unmasked.double().mean().exp().item(),
    }


BINS = (0.0, 0.5, 0.7, 0.9, 1.0)


def confidence(logits: Tensor, entries: Tensor, log_ratio: Tensor) -> list[dict[str, float]]:
    """Calibration: for each bin of the chosen entry's probability, how often the choice was the best, and the geometric
    mean slow-down of the other choices."""
    probability = of_entries(logits, entries).softmax(1).amax(1)
    slow = restricted(logits, entries, log_ratio)
    result = []
    for low, high in zip(BINS, BINS[1:], strict=False):
        inside = slow[(probability >= low) & ((probability < high) | (high == 1.0))]
        wrong = inside[inside > 0]
        result.append(
            {
                "from": low,
                "problems": len(inside),
                "right": (inside == 0).double().mean().item() if len(inside) else 0.0,
                "slowdown_if_wrong": wrong.double().mean().exp().item() if len(wrong) else 1.0,
            }
        )
    return result
