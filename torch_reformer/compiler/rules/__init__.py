"""Which of PyTorch's operators become what in the graph (ir.py). A rule takes the graph, the operator's fake result and
its arguments, tensors among them as views. It adds operations and gives the result's views, or None where PyTorch's own
operator has to do it."""

from . import concatenations, convolutions, element_wise, padding, random, reductions, segments, views

RULES = element_wise.RULES | reductions.RULES | convolutions.RULES | random.RULES | views.RULES
RULES |= concatenations.RULES | padding.RULES | segments.RULES
