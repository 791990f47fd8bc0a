"""Instructions of a kernel that reads through maps of axes (ir/access.py), and the time that they take."""

from __future__ import annotations

import math

from .access import Access
from .iteration_space import IterationSpace

MOST_ADJACENT = 8  # elements of a thread
# Instructions of a thread: for its elements, for each tap, and for each tap of each element.
_OF_THREAD, _OF_TAP, _OF_TAP_AND_ELEMENT = 30, 8, 2
# On an H100, fitted to the sub-graphs of benchmarks/sub_graphs.py, whose times are bytes' and this one after the other
# (h100/ and h200/sub_graphs.csv; half of the instructions that the GPU could start). With it, the median error for
# those whose maps sum falls from 53% to 13% (H100) and from 59% to 9% (H200), for others from 17% to 13% and from 13%
# to 7%. Upsampling by passes in rows of odd channels, and results of a few MB, take up to five times as long.
_A_MICROSECOND = 14.3e6


def instructions_of_element(taps: int, adjacent: int) -> float:
    """Estimated instructions for an element of a sum of so many taps, of which a thread has `adjacent` ones."""
    return (_OF_THREAD + taps * (_OF_TAP + _OF_TAP_AND_ELEMENT * adjacent)) / adjacent


def map_us(access: Access, space: IterationSpace, numel: int) -> float:
    """Expected microseconds that a stitched kernel takes for an access, besides those of its bytes.

    Args:
        space: that of the kernel's group.
        numel: elements of its results.
    """
    terms = space.by_columns(access).terms
    parts = [space.split(term.digits) for term in terms]
    is_of_columns = any(part is None or any(stride for _, stride in part[0]) for part in parts)
    one_by_one = is_of_columns and not access.only_chooses
    taps = 1 if access.mostly_chooses else math.prod(max(1, term.map.taps) for term in terms)
    return numel * instructions_of_element(taps, 1 if one_by_one else MOST_ADJACENT) / _A_MICROSECOND
