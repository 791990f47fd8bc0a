"""Which of PyTorch's operators become what in the graph (ir/graph.py). A rule takes the graph, the operator's fake result and
its arguments, tensors among them as views. It adds operations and gives the result's views, or None where PyTorch's own
operator has to do it."""

from . import cat, constant_pad, convolution, pointwise, random, reductions, segment_reduce, views

RULES = pointwise.RULES | reductions.RULES | convolution.RULES | random.RULES | views.RULES
RULES |= cat.RULES | constant_pad.RULES | segment_reduce.RULES
