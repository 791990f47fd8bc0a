"""Rules that lower PyTorch's operators to operations of the graph (ir/graph.py).

A rule takes the graph, the operator's fake result and its arguments, tensors as views. It adds operations and returns
the result's view or views, or None if the operator stays a call of PyTorch's own.
"""

from . import (
    apart,
    cat,
    constant_indices,
    convolution,
    flips,
    indexed,
    places,
    random,
    reductions,
    resampled,
    scans,
    segment_reduce,
    slices,
    views,
    windows,
)

RULES = apart.RULES | reductions.RULES | convolution.RULES | random.RULES | views.RULES
RULES |= cat.RULES | indexed.RULES | resampled.RULES | segment_reduce.RULES | slices.RULES | windows.RULES
RULES |= constant_indices.RULES | places.RULES | scans.RULES | flips.RULES
