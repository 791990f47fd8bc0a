"""Element-wise operators as Maps, by expressions of programs. A new one is a line of the table."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ...runtime.dtypes import FLOATS, NARROW
from ..ir.custom_ops import scaled
from ..ir.fake_tensors import is_plain, layout_of, real_tensors, typed
from ..ir.fx_utils import CONSTANTS
from ..ir.graph import Call, Graph, Map, Typed, View
from ..ir.iteration_space import find_space, index_map_of
from ..ir.layout import Layout
from .contiguous import copied, in_order

aten = torch.ops.aten


class NotElementWise(Exception):
    """With these arguments no program computes it."""


def _scaled(x, alpha):
    return x if alpha == 1 else x * alpha


def _three_halves(x):
    return p.select(p.equal(x, -math.inf), math.inf, x * p.sqrt(x))  # as IEEE 754's pow


def _power(x, exponent):
    whole = {1: lambda: x, 2: lambda: x * x, 3: lambda: x * x * x, 4: lambda: (x * x) * (x * x), -1: lambda: 1 / x}
    roots = {0.5: lambda: p.sqrt(x), -0.5: lambda: p.rsqrt(x), -2: lambda: 1 / (x * x), 1.5: lambda: _three_halves(x)}
    found = (whole | roots).get(exponent)
    if found is None:
        raise NotElementWise
    return found()


def _clamp(x, least=None, most=None):
    x = x if least is None else p.maximum(x, least)
    return x if most is None else p.minimum(x, most)


def _not(x):
    return p.equal(x, 0.0)


def _both(x, y):
    return p.select(x, Expression("ne", y, 0.0), 0.0)


def _either(x, y):
    return p.select(x, 1.0, Expression("ne", y, 0.0))


def _different(x, y):
    return Expression("ne", x, y)


def _cast(x, **_):
    return x


def _gelu(x, approximate="none"):
    return p.gelu_tanh(x) if approximate == "tanh" else p.gelu(x)


def _gelu_backward(grad, x, approximate="none"):
    if approximate == "none":
        return grad * (p.normal_cdf(x) + x * p.normal_pdf(x))
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    inner = p.tanh(root * (x + cubic * x * x * x))
    return grad * (0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * (root * (1 + 3 * cubic * x * x)))


def _where(condition, x, y):
    return p.select(condition, x, y)


# Each takes what the operator does, with expressions or numbers in the place of tensors.
EXPRESSIONS: dict[Callable, Callable[..., Expression]] = {
    aten.add.Tensor: lambda x, y, alpha=1: x + _scaled(y, alpha),
    aten.add.Scalar: lambda x, y, alpha=1: x + y * alpha,
    aten.sub.Tensor: lambda x, y, alpha=1: x - _scaled(y, alpha),
    aten.sub.Scalar: lambda x, y, alpha=1: x - y * alpha,
    aten.rsub.Scalar: lambda x, y, alpha=1: y - _scaled(x, alpha),
    aten.mul.Tensor: lambda x, y: x * y,
    aten.mul.Scalar: lambda x, y: x * y,
    scaled: lambda x, y: x * y,
    aten.div.Tensor: lambda x, y: x / y,
    aten.div.Scalar: lambda x, y: x / y,
    aten.neg.default: lambda x: -x,
    aten.abs.default: abs,
    aten.exp.default: p.exp,
    aten.log.default: p.log,
    aten.log1p.default: p.log1p,
    aten.sqrt.default: p.sqrt,
    aten.rsqrt.default: p.rsqrt,
    aten.reciprocal.default: lambda x: 1 / x,
    aten.tanh.default: p.tanh,
    aten.sigmoid.default: p.sigmoid,
    aten.erf.default: p.erf,
    aten.relu.default: p.relu,
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.silu.default: p.silu,
    aten.pow.Tensor_Scalar: _power,
    aten.maximum.default: p.maximum,
    aten.minimum.default: p.minimum,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: lambda x, most: p.minimum(x, most),
    aten.where.self: _where,
    aten.gt.Tensor: lambda x, y: x > y,
    aten.gt.Scalar: lambda x, y: x > y,
    aten.ge.Tensor: lambda x, y: x >= y,
    aten.ge.Scalar: lambda x, y: x >= y,
    aten.lt.Tensor: lambda x, y: x < y,
    aten.lt.Scalar: lambda x, y: x < y,
    aten.le.Tensor: lambda x, y: x <= y,
    aten.le.Scalar: lambda x, y: x <= y,
    aten.eq.Tensor: p.equal,
    aten.eq.Scalar: p.equal,
    aten.ne.Tensor: _different,
    aten.ne.Scalar: _different,
    aten.logical_not.default: _not,
    aten.logical_and.default: _both,
    aten.logical_or.default: _either,
    aten._to_copy.default: _cast,
    aten.clone.default: _cast,
    aten.alias.default: _cast,
}
# The same of truth values only: of whole numbers they are something else.
OF_TRUTHS: dict[Callable, Callable[..., Expression]] = {
    aten.bitwise_not.default: _not,
    aten.bitwise_and.Tensor: _both,
    aten.bitwise_or.Tensor: _either,
}


_ROUND = {torch.bfloat16: p.round_bf16, torch.float16: p.round_fp16}
EQUALITIES = {getattr(getattr(aten, name), kind) for name in ("eq", "ne") for kind in ("Tensor", "Scalar")}
COMPARISONS = {
    each
    for name in ("gt", "ge", "lt", "le", "eq", "ne")
    for each in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
# Those that give 0 and 1; of the others' truth values anything but 0 is true.
GIVE_TRUTHS = {
    *(*COMPARISONS, *OF_TRUTHS),
    *(aten.logical_not.default, aten.logical_and.default, aten.logical_or.default),
}


def add_map(graph: Graph, name: str, expression: Callable[..., Expression], inputs: list[View], like: Tensor) -> View:
    """A new tensor with the sizes, strides and data type of `like`; the inputs have its sizes."""
    return add_typed_map(graph, name, expression, inputs, typed(like))


def add_typed_map(graph: Graph, name: str, expression, inputs: list[View], type: Typed) -> View:
    (result,) = graph.add(Map(inputs, name, expression), [type])
    return View(result, type.layout)


def _constant(number: Callable, graph: Graph, value, *args, **kwargs) -> View | None:
    if not isinstance(value, Tensor) or value.dtype not in (*FLOATS, torch.bool):
        return None
    found = number(*args)
    if found is None or not layout_of(value).is_dense or not value.numel():
        return None
    found = float(bool(found) if value.dtype == torch.bool else found)
    return add_map(graph, f"full[{found}]", lambda: Expression("constant", attribute=found), [], value)


def _map(target, rule: Callable[..., Expression], graph: Graph, value, *args, **kwargs) -> View | None:
    if not isinstance(value, Tensor) or not is_plain(value) or value.dtype not in (*FLOATS, torch.bool):
        return None
    truths, layout = value.dtype == torch.bool, layout_of(value)
    if target in OF_TRUTHS and not truths:
        return None
    if not layout.is_dense or layout.numel == 0:
        return None
    if target in EQUALITIES and any(isinstance(each, View) and each.value.dtype in NARROW for each in args):
        return None  # unrounded in a program, the greatest of some numbers would equal none of them
    inputs, places = [], []
    for place, each in enumerate(args):
        if isinstance(each, View):
            each = _expanded(each, layout.sizes)
            if each is None or each.value.device != value.device:
                return None
            places.append(place)
            inputs.append(each)
        elif not (each is None or isinstance(each, (int, float, bool, str))):
            return None
    if any(isinstance(each, View) for each in kwargs.values()) or not computes(inputs, value):
        return None
    if not _has_space(inputs, layout):
        if _is_copy(target, inputs[0], value) and inputs[0].elements == layout.numel:
            return copied(graph, inputs[0], layout)
        inputs = [in_order(graph, each, layout) for each in inputs]
        if not _has_space(inputs, layout):
            return None
    numbers, dtype = list(args), inputs[0].value.dtype
    if target in COMPARISONS and dtype in FLOATS and not isinstance(numbers[-1], View):
        with real_tensors():  # rounded to the tensor's type
            numbers[-1] = torch.tensor(numbers[-1], dtype=dtype).item()

    def expression(*operands: Expression) -> Expression:
        given = list(numbers)
        for place, operand in zip(places, operands, strict=True):
            given[place] = operand
        found = rule(*given, **kwargs)
        return Expression("ne", found, 0.0) if truths and target not in GIVE_TRUTHS else found

    try:
        expression(*(Expression("full", attribute=f"t{i}") for i in range(len(inputs))))
    except NotElementWise:
        return None
    told = [str(each) for i, each in enumerate(args) if i not in places and each is not None]
    told += [str(each) for name, each in kwargs.items() if name == "alpha" and each != 1]
    name = target._schema.name.split("::")[1] + "".join(f"[{each}]" for each in told)
    return add_map(graph, name, expression, inputs, value)


def _is_copy(target, input: View, value: Tensor) -> bool:
    return target in (aten.clone.default, aten.copy.default) and input.value.dtype == value.dtype


def _has_space(inputs: list[View], layout: Layout) -> bool:
    """Whether a program computes results of this layout of the inputs where they are."""
    return find_space(layout.numel, {index_map_of(layout, each.layout) for each in inputs}, set()) is not None


def computes(inputs: list[View], value: Tensor) -> bool:
    """Whether programs compute with these types: in fp64, of nothing else and on CPUs only, or in fp32."""
    types = {each.value.dtype for each in inputs}
    if not inputs or not types <= {*FLOATS, torch.bool}:
        return False
    both = {*types, value.dtype} - {torch.bool}
    return torch.float64 not in both or (value.device.type == "cpu" and len(both) == 1)


def _expanded(view: View, sizes: tuple[int, ...]) -> View | None:
    """The view with these sizes: dimensions of one element, and those that it has not, repeat."""
    own, missing = view.layout, len(sizes) - len(view.layout.sizes)
    if missing < 0 or any(a != b and a != 1 for a, b in zip(own.sizes, sizes[missing:], strict=True)):
        return None
    strides = [0 if a == 1 else stride for a, stride in zip(own.sizes, own.strides, strict=True)]
    return View(view.value, Layout(sizes, (*[0] * missing, *strides), own.offset))


def rounding_cast(graph: Graph, value, source: View, **options) -> View | None:
    """A cast that the user wrote: what goes on with the result, without memory between, has it as it would be stored.
    The source is rounded to its own type, too, unless it is read from memory."""
    in_memory = isinstance(source.value.maker, (Call, type(None)))
    rule = _rounded(value.dtype) if in_memory else _rounded(source.value.dtype, value.dtype)
    found = _map(aten._to_copy.default, rule, graph, value, source, **options)
    if found is not None and isinstance(found.value.maker, Map):
        found.value.maker.rounds = source.value.dtype != value.dtype
    return found


def _rounded(*types: torch.dtype) -> Callable[..., Expression]:
    """A cast to these data types, one after the other."""

    def rule(x, **_):
        for dtype in types:
            x = _ROUND[dtype](x) if dtype in _ROUND else x
        return x

    return rule


def _copy(graph: Graph, value, to: View, source: View, non_blocking: bool = False) -> View | None:
    """What was in its place before is not read."""
    rule = _cast if source.value.dtype == value.dtype else _rounded(value.dtype)
    return _map(aten.copy.default, rule, graph, value, source)


RULES = {target: functools.partial(_constant, number) for target, number in CONSTANTS.items()}
RULES |= {target: functools.partial(_map, target, rule) for target, rule in (EXPRESSIONS | OF_TRUTHS).items()}
RULES[aten.copy.default] = _copy
