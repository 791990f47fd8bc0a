"""Comparisons of whole numbers that fp32 may not have, digit by digit."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from ...program import Value as Expression
from ...runtime.sizes import about_cost
from ..ir.graph import Graph, View
from . import pointwise, whole_digits
from .whole_numbers import WHOLE
from .whole_operands import Whole, fits, is_integer, whole

aten = torch.ops.aten
Rule = Callable[..., View | None]
# On others to read three digits of two tensors takes longer than PyTorch's kernel, unless elements are repeated.
DEVICES = ("cuda",)
_UNORDERED = {
    aten.eq.Tensor: whole_digits.equal,
    aten.eq.Scalar: whole_digits.equal,
    aten.ne.Tensor: whole_digits.different,
    aten.ne.Scalar: whole_digits.different,
}


def _type_of(x: View, y) -> torch.dtype | None:
    """The type of whole numbers in which PyTorch compares; None for other types. A tensor of one number has no type of
    its own beside others."""
    views = [view for view in (x, y) if isinstance(view, View)]
    dtypes = {view.value.dtype for view in views}
    if not dtypes & set(WHOLE) or dtypes - {*WHOLE, torch.bool} or not (isinstance(y, View) or is_integer(y)):
        return None
    several = {view.value.dtype for view in views if view.layout.sizes} & set(WHOLE)
    return max(several or dtypes & set(WHOLE), key=lambda dtype: dtype.itemsize)


def _compared(target, rule: Rule, graph: Graph, value: Tensor, x: View, y) -> View | None:
    """Rule of a comparison, which is `rule` where programs have all numbers."""
    dtype = _type_of(x, y)
    if dtype is not None and not (fits(graph, x, dtype) and fits(graph, y, dtype)):
        return None  # a cast wraps
    if (result := rule(graph, value, x, y)) is not None or dtype is None:
        return result
    if value.device.type not in DEVICES and not (_repeats(x, value) or _repeats(y, value)):
        return None
    one, other = whole(graph, x), whole(graph, y)
    compare = _UNORDERED.get(target) or functools.partial(whole_digits.ordered, pointwise.EXPRESSIONS[target])
    expression = functools.partial(_of_digits, compare, one, other)
    return pointwise.rule_of(target, expression)(graph, value, *one.inputs, *other.inputs)


@about_cost()
def _repeats(operand: View | int, value: Tensor) -> bool:
    """True if the operand has fewer elements than the result."""
    return not isinstance(operand, View) or operand.layout.elements < value.numel()


def _of_digits(compare: Callable[..., Expression], x: Whole, y: Whole, *inputs: Expression) -> Expression:
    count = len(x.inputs)
    return compare(x.digits(*inputs[:count]), y.digits(*inputs[count:]))


RULES = {target: functools.partial(_compared, target, pointwise.RULES[target]) for target in pointwise.COMPARISONS}
