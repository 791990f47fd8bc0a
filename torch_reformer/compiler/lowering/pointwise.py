"""Element-wise operators as Maps, by expressions of programs. A new operator is a line of the table EXPRESSIONS."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ... import program as p
from ...program import Value as Expression
from ...runtime.dtypes import FLOATS
from ...runtime.sizes import Real, as_float
from ..ir.contiguous import copied, in_order
from ..ir.custom_ops import scaled
from ..ir.fake_tensors import is_plain, layout_of, real_tensors, typed
from ..ir.fx_utils import CONSTANTS
from ..ir.graph import Call, Graph, Map, Typed, View
from ..ir.iteration_space import has_space
from ..ir.layout import Layout
from . import functions as f
from .whole_numbers import MOST, WHOLE, exact_range, from_float, range_of, without_sign_of_zero

aten = torch.ops.aten


def _scaled(x, alpha):
    return x if alpha == 1 else x * alpha


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


def _where(condition, x, y):
    return p.select(condition, x, y)


# Each function has the operator's arguments, with expressions or numbers in place of tensors.
EXPRESSIONS: dict[Callable, Callable[..., Expression]] = {
    aten.add.Tensor: lambda x, y, alpha=1: x + _scaled(y, alpha),
    aten.add.Scalar: lambda x, y, alpha=1: x + y * alpha,
    aten.sub.Tensor: lambda x, y, alpha=1: x - _scaled(y, alpha),
    aten.sub.Scalar: lambda x, y, alpha=1: x - y * alpha,
    aten.rsub.Tensor: lambda x, y, alpha=1: y - _scaled(x, alpha),
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
    aten.gelu.default: f.gelu,
    aten.gelu_backward.default: f.gelu_backward,
    aten.silu.default: p.silu,
    aten.pow.Tensor_Scalar: f.power,
    aten.pow.Tensor_Tensor: p.pow,
    aten.pow.Scalar: p.pow,
    aten.exp2.default: lambda x: p.pow(2.0, x),
    aten.expm1.default: p.expm1,
    aten.log2.default: p.log2,
    aten.log10.default: p.log10,
    aten.sin.default: p.sin,
    aten.cos.default: p.cos,
    aten.tan.default: lambda x: p.sin(x) / p.cos(x),
    aten.asin.default: lambda x: p.atan2(x, f.other_side(x)),
    aten.acos.default: lambda x: p.atan2(f.other_side(x), x),
    aten.atan.default: lambda x: p.atan2(x, 1.0),
    aten.atan2.default: p.atan2,
    aten.sinh.default: f.sinh,
    aten.cosh.default: f.cosh,
    aten.asinh.default: f.asinh,
    aten.acosh.default: f.acosh,
    aten.atanh.default: f.atanh,
    aten.hypot.default: f.hypot,
    aten.angle.default: lambda x: p.select(x < 0, math.pi, p.select(f.is_nan(x), x, 0.0)),
    aten.sign.default: f.sign,
    aten.sgn.default: f.sign,
    aten.copysign.Tensor: p.copysign,
    aten.copysign.Scalar: p.copysign,
    aten.signbit.default: lambda x: p.copysign(1.0, x) < 0,
    aten.floor.default: p.floor,
    aten.ceil.default: f.ceil,
    aten.trunc.default: f.trunc,
    aten.frac.default: lambda x: x - f.trunc(x),
    aten.round.default: p.round,
    aten.fmod.Tensor: p.fmod,
    aten.fmod.Scalar: p.fmod,
    aten.remainder.Tensor: f.remainder,
    aten.remainder.Scalar: f.remainder,
    aten.remainder.Scalar_Tensor: f.remainder,
    aten.div.Tensor_mode: f.divided,
    aten.div.Scalar_mode: f.divided,
    aten.floor_divide.default: lambda x, y: f.divided(x, y, "floor"),
    aten.fmax.default: f.fmax,
    aten.fmin.default: lambda x, y: -f.fmax(-x, -y),
    aten.isnan.default: f.is_nan,
    aten.isinf.default: lambda x: p.equal(abs(x), math.inf),
    aten.square.default: lambda x: x * x,
    aten.maximum.default: p.maximum,
    aten.minimum.default: p.minimum,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp,
    aten.clamp_max.default: lambda x, most: p.minimum(x, most),
    aten.clamp.Tensor: _clamp,
    aten.clamp_min.Tensor: p.maximum,
    aten.clamp_max.Tensor: p.minimum,
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
    aten.logical_xor.default: lambda x, y: _different(_different(x, 0.0), _different(y, 0.0)),
    aten._to_copy.default: _cast,
    aten.clone.default: _cast,
    aten.alias.default: _cast,
}
# Operators for operands of bool only: for integers they compute something else.
OF_TRUTHS: dict[Callable, Callable[..., Expression]] = {
    aten.bitwise_not.default: _not,
    aten.bitwise_and.Tensor: _both,
    aten.bitwise_or.Tensor: _either,
    aten.bitwise_xor.Tensor: _different,
}


TYPES = *FLOATS, torch.bool, *WHOLE
ROUND = {torch.bfloat16: p.round_bf16, torch.float16: p.round_fp16}
EQUALITIES = {getattr(getattr(aten, name), kind) for name in ("eq", "ne") for kind in ("Tensor", "Scalar")}
COMPARISONS = {
    overload
    for name in ("gt", "ge", "lt", "le", "eq", "ne")
    for overload in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
# Operators whose expressions give 0 and 1. For a result of bool, other expressions may give any number: not 0 is true.
GIVE_TRUTHS = {
    *(*COMPARISONS, *OF_TRUTHS),
    *(aten.logical_not.default, aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default),
    *(aten.isnan.default, aten.isinf.default, aten.signbit.default),
}
# Operators whose results jump. In a program operands are not rounded to 16 bits, as eager's are: 1.9999999 for 2, or a
# maximum that equals none of the numbers. So these round their operands first.
JUMPS = EQUALITIES | {
    *(aten.isinf.default, aten.floor.default, aten.ceil.default, aten.trunc.default, aten.frac.default),
    *(aten.round.default, aten.fmod.Tensor, aten.fmod.Scalar, aten.remainder.Tensor, aten.remainder.Scalar),
    *(aten.remainder.Scalar_Tensor, aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default),
}


def add_map(graph: Graph, name: str, expression: Callable[..., Expression], inputs: list[View], like: Tensor) -> View:
    """Add a Map whose result has the sizes, strides and data type of `like`; the inputs have its sizes."""
    return add_typed_map(graph, name, expression, inputs, typed(like))


def add_typed_map(graph: Graph, name: str, expression, inputs: list[View], type: Typed) -> View:
    """Add a Map whose result has this layout, data type and device; the inputs have its sizes."""
    (result,) = graph.add(Map(inputs, name, expression), [type])
    return View(result, type.layout)


def _constant(number: Callable, graph: Graph, value, *args, **kwargs) -> View | None:
    """Rule of an operator whose result has `number(*args)` in all elements."""
    if not isinstance(value, Tensor) or value.dtype not in TYPES:
        return None
    constant = number(*args)
    if constant is None or not layout_of(value).is_dense or not value.numel():
        return None
    if value.dtype in WHOLE and not _is_exact(constant):
        return None
    return full(graph, as_float(bool(constant) if value.dtype == torch.bool else constant), value)


def full(graph: Graph, number: float, like: Tensor) -> View:
    """Add a Map whose result has the number in all elements."""
    return add_map(graph, f"full[{number}]", lambda: Expression("constant", attribute=number), [], like)


def _is_exact(number) -> bool:
    """True if fp32 has this whole number, and all below it."""
    return isinstance(number, (int, float)) and abs(number) < MOST and number == int(number)


def _map(target, rule: Callable[..., Expression], graph: Graph, value, *args, **kwargs) -> View | None:
    """Rule of an operator whose expression is `rule`; value: its fake result."""
    if not isinstance(value, Tensor) or not is_plain(value) or value.dtype not in TYPES:
        return None
    is_bool, layout = value.dtype == torch.bool, layout_of(value)
    if target in OF_TRUTHS and not is_bool:
        return None
    if not layout.is_dense or layout.numel == 0:
        return None
    inputs, places = [], []
    for place, arg in enumerate(args):
        if isinstance(arg, View):
            view = expanded(arg, layout.sizes)
            if view is None or view.value.device != value.device:
                return None
            places.append(place)
            inputs.append(view)
        elif not (arg is None or isinstance(arg, (int, float, bool, str, Real))):
            return None
    if any(isinstance(arg, View) for arg in kwargs.values()) or not has_types(inputs, value):
        return None
    if kwargs.get("rounding_mode") == "trunc" and value.device.type != "cpu":
        return None  # a GPU's quotient (csrc/hip/device/functions.h) may be just below eager's integer
    if not has_space(inputs, layout):
        if _is_copy(target, inputs[0], value) and inputs[0].elements == layout.numel:
            return copied(graph, inputs[0], layout)
        inputs = [in_order(graph, view, layout) for view in inputs]
        if not has_space(inputs, layout):
            return None
    numbers, dtype = list(args), inputs[0].value.dtype
    if target in COMPARISONS and dtype in FLOATS and not isinstance(numbers[-1], View):
        with real_tensors():  # PyTorch rounds the number to the tensor's type
            numbers[-1] = torch.tensor(numbers[-1], dtype=dtype).item()

    dtypes = {view.value.dtype for view in inputs}
    narrow = dtypes if not dtypes & {torch.float32, torch.float64} else set()  # whole numbers are rounded beside these
    jumps = target in JUMPS or value.dtype in WHOLE

    def expression(*operands: Expression) -> Expression:
        arguments = list(numbers)
        for place, operand, view in zip(places, operands, inputs, strict=True):
            rounds = narrow if view.value.dtype in WHOLE else {view.value.dtype} if jumps else set()
            for dtype in rounds & set(ROUND):
                operand = ROUND[dtype](operand)
            arguments[place] = operand
        result = rule(*arguments, **kwargs)
        if value.dtype in WHOLE:
            if dtypes & set(FLOATS):
                result = from_float(result, value.dtype, value.device)
            return without_sign_of_zero(result)
        return Expression("ne", result, 0.0) if is_bool and target not in GIVE_TRUTHS else result

    found = None
    if _is_of_whole_numbers(dtypes, value.dtype):
        found = exact_range(graph, expression, inputs)
        if found is None or not found.is_exact:
            return None
        if value.dtype in WHOLE and dtypes & set(WHOLE) - {value.dtype} and not found.is_small:
            return None  # what does not fit the narrower type wraps
    attributes = [arg for place, arg in enumerate(args) if place not in places and arg is not None]
    attributes += [arg for name, arg in kwargs.items() if name == "alpha" and arg != 1]
    name = target._schema.name.split("::")[1] + "".join(f"[{attribute}]" for attribute in attributes)
    result = add_map(graph, name, expression, inputs, value)
    if value.dtype in WHOLE and found is not None:
        graph.bounds[result.value] = found  # now, as chains of operators may be long
    return result


def rule_of(target, expression: Callable[..., Expression]) -> Callable[..., View | None]:
    """Rule of an element-wise operator that the expression computes."""
    return functools.partial(_map, target, expression)


def _is_of_whole_numbers(operands: set[torch.dtype], result: torch.dtype) -> bool:
    """True if an operator computes whole numbers, or compares them."""
    types = operands | {result}
    return bool(types & set(WHOLE)) and not types & set(FLOATS)


def _is_copy(target, input: View, value: Tensor) -> bool:
    """True if the operator copies its operand without a cast."""
    return target in (aten.clone.default, aten.copy.default) and input.value.dtype == value.dtype


def has_types(inputs: list[View], value: Tensor) -> bool:
    """True if programs compute with these data types: those that have no fp64, or on CPUs fp64 beside no other
    floating-point type. No result is in fp64 without an operand that is, as a kernel without such a tensor computes in
    fp32, which would not have whole numbers made of fp64 either."""
    operands = {view.value.dtype for view in inputs}
    types = operands | {value.dtype}
    if not inputs or not types <= {*TYPES}:
        return False
    if torch.float64 not in types:
        return True
    if value.device.type != "cpu" or torch.float64 not in operands or value.dtype not in (torch.float64, torch.bool):
        return False
    return operands <= {torch.float64, torch.bool, *WHOLE}


def moves(graph: Graph, inputs: list[View], value: Tensor) -> bool:
    """True if programs read elements of these data types and store them in that of the result as they are."""
    are_whole = any(view.value.dtype in WHOLE for view in inputs)
    if not has_types(inputs, value) or (are_whole and any(view.value.dtype != value.dtype for view in inputs)):
        return False
    return not are_whole or all(range_of(graph, view).is_exact for view in inputs)


def expanded(view: View, sizes: tuple[int, ...]) -> View | None:
    """The view broadcast to these sizes; None if it cannot be."""
    layout, missing = view.layout, len(sizes) - len(view.layout.sizes)
    if missing < 0 or any(a != b and a != 1 for a, b in zip(layout.sizes, sizes[missing:], strict=True)):
        return None
    strides = [0 if size == 1 else stride for size, stride in zip(layout.sizes, layout.strides, strict=True)]
    return View(view.value, Layout(sizes, (*[0] * missing, *strides), layout.offset))


def rounding_cast(graph: Graph, value, source: View, **options) -> View | None:
    """Rule of a cast that the user wrote: its result is rounded even if no memory is written in between. The source is
    rounded to its own data type, too, unless it is read from memory."""
    in_memory = isinstance(source.value.maker, (Call, type(None)))
    rule = _rounded(value.dtype) if in_memory else _rounded(source.value.dtype, value.dtype)
    result = _map(aten._to_copy.default, rule, graph, value, source, **options)
    if result is not None and isinstance(result.value.maker, Map):
        result.value.maker.rounds = source.value.dtype != value.dtype
    return result


def _rounded(*types: torch.dtype) -> Callable[..., Expression]:
    """Expression of casts to these data types, one after the other."""

    def rule(x, **_):
        for dtype in types:
            x = ROUND[dtype](x) if dtype in ROUND else x
        return x

    return rule


def _copy(graph: Graph, value, to: View, source: View, non_blocking: bool = False) -> View | None:
    """Rule of aten.copy, which does not read the old elements of `to`."""
    rule = _cast if source.value.dtype == value.dtype else _rounded(value.dtype)
    return _map(aten.copy.default, rule, graph, value, source)


RULES = {target: functools.partial(_constant, number) for target, number in CONSTANTS.items()}
RULES |= {target: rule_of(target, expression) for target, expression in (EXPRESSIONS | OF_TRUTHS).items()}
RULES[aten.copy.default] = _copy
