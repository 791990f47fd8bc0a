"""Values of a program while it is written: expressions, with Python's operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .operations import INPUTS, OPERANDS, ROW_REDUCTIONS

Number = int | float


class Value:
    """A number for each element of the result: what an operation makes of others. Immutable; compared by identity."""

    __slots__ = ("op", "operands", "attribute")

    def __init__(self, op: str, *operands: Value | Number, attribute: Any = None):
        if len(operands) != OPERANDS[op]:
            raise TypeError(f"program: {op} takes {OPERANDS[op]} operands, got {len(operands)}")
        self.op = op
        self.operands = tuple(as_value(operand) for operand in operands)
        self.attribute = float(attribute) if op == "constant" else attribute  # a constant's number, an input's name

    @property
    def is_input(self) -> bool:
        return self.op in INPUTS

    def __repr__(self) -> str:
        inside = [repr(operand) for operand in self.operands]
        if self.attribute is not None:
            inside.append(repr(self.attribute))
        return f"{self.op}({', '.join(inside)})" if inside else self.op

    def __add__(self, other):
        return Value("add", self, other)

    def __radd__(self, other):
        return Value("add", other, self)

    def __sub__(self, other):
        return Value("sub", self, other)

    def __rsub__(self, other):
        return Value("sub", other, self)

    def __mul__(self, other):
        return Value("mul", self, other)

    def __rmul__(self, other):
        return Value("mul", other, self)

    def __truediv__(self, other):
        return Value("div", self, other)

    def __rtruediv__(self, other):
        return Value("div", other, self)

    def __neg__(self):
        return Value("neg", self)

    def __abs__(self):
        return Value("abs", self)

    def __lt__(self, other):
        return Value("lt", self, other)

    def __le__(self, other):
        return Value("le", self, other)

    def __gt__(self, other):
        return Value("lt", other, self)

    def __ge__(self, other):
        return Value("le", other, self)

    def __bool__(self):
        raise TypeError(
            "program: a value has no truth while the program is written; use select(condition, a, b), and one "
            "comparison at a time"
        )


def plain(number: Number) -> Number:
    """The number itself, where torch.compile has made a symbol of it: numbers are part of a program, so a graph is for
    those that it was recorded with."""
    if not torch.compiler.is_compiling():
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # slow to import, and not needed without symbols

    return guard_scalar(number)


def as_value(value: Value | Number) -> Value:
    if isinstance(value, Value):
        return value
    if isinstance(value, (int, float)):
        return Value("constant", attribute=float(plain(value)))
    raise TypeError(f"program: expected a value or a number, got {type(value).__name__}")


def in_order(values: list[Value]) -> Iterator[Value]:
    """The values and all that they are made of, each once, operands first."""
    seen, stack = set(), [(value, False) for value in reversed(values)]
    while stack:
        value, ready = stack.pop()
        if ready:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            stack.append((value, True))
            stack += [(operand, False) for operand in reversed(value.operands)]


def _input(op: str, name: str) -> Value:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"program: {op} needs a name, a Python identifier, got {name!r}")
    return Value(op, attribute=name)


def acc() -> Value:
    """What the operator computes before the program: the convolution's sum. In :func:`torch_reformer.stitch` it is the
    element of the tensor that the program runs over."""
    return Value("acc")


def full(name: str) -> Value:
    """A tensor of the call, as large as the result: ``[N, K, H, W]``."""
    return _input("full", name)


def channel(name: str) -> Value:
    """A vector of the call, an element for each channel of the result: ``[K]``."""
    return _input("channel", name)


def row(name: str) -> Value:
    """A tensor of the call, an element for each pixel, the same for all channels: ``[N, H, W]``."""
    return _input("row", name)


def plane(name: str) -> Value:
    """A tensor of the call, an element for each channel of each image, the same for all pixels: ``[N, K]``."""
    return _input("plane", name)


def scalar(name: str) -> Value:
    """A tensor of the call of one element."""
    return _input("scalar", name)


def random(name: str) -> Value:
    """Independent random numbers, uniform in [0, 1), of 23 bits each: Philox-4x32-7 (Salmon et al., Parallel random
    numbers: as easy as 1, 2, 3, SC 2011; with seven rounds the fastest of theirs that passes BigCrush) of the element's
    place in channels_last order, under the key in the tensor `name` of the call: int64, one element. The same key gives
    the same numbers, so a derivative sees those of the forward."""
    return _input("random", name)


def table(name: str) -> Value:
    """A row of the matrix ``[rows, K]`` `name` of the call for each pixel: that whose number is in the tensor
    :func:`index_of(name) <index_of>` of the call, ``[N, H, W]``, int64 or int32. A number that no row has is an
    error."""
    return _input("table", name)


def index_of(table: str) -> str:
    """The name of a table's index."""
    return f"{table}_index"


def rows() -> Value:
    """How many rows the result has: N * H * W."""
    return Value("rows")


def columns() -> Value:
    """How many channels the result has."""
    return Value("columns")


def channel_index() -> Value:
    """The number of the element's channel, from 0."""
    return Value("channel_index")


def _function(op: str, sentence: str):
    def function(*operands: Value | Number) -> Value:
        return Value(op, *operands)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = sentence
    return function


_LEAVES_VARY = {
    **dict.fromkeys(("acc", "full", "random", "table"), {"channels", "rows"}),
    **dict.fromkeys(("channel", "channel_index"), {"channels"}),
    "row": {"rows"},
    "plane": {"channels", "images"},
}


def varies(value: Value) -> dict[int, set[str]]:
    """For a value and all that it is made of, by their identity: whether it differs between ``"channels"`` of a row,
    between ``"rows"``, between ``"images"`` of what is the same for all rows of one, or is one number."""
    found: dict[int, set[str]] = {}
    for each in in_order([value]):
        if each.op in ROW_REDUCTIONS:
            found[id(each)] = {"rows"}
        else:
            operands = (found[id(operand)] for operand in each.operands)
            found[id(each)] = set().union(*operands, _LEAVES_VARY.get(each.op, ()))
    return found


row_sum = _function("row_sum", "The sum of a value over its row, which is all channels of a pixel.")
row_max = _function("row_max", "The largest value of the row; NaN if one is.")
exp = _function("exp", "e to the power of a value.")
log = _function("log", "The natural logarithm.")
log1p = _function("log1p", "The natural logarithm of 1 + x, accurate near 0.")
sqrt = _function("sqrt", "The square root.")
rsqrt = _function("rsqrt", "1 by the square root.")
tanh = _function("tanh", "The hyperbolic tangent.")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x)).")
erf = _function("erf", "The error function.")
normal_cdf = _function(
    "normal_cdf", "The distribution function of a standard normal variable: (1 + erf(x / sqrt 2)) / 2."
)
normal_pdf = _function("normal_pdf", "The density of a standard normal variable: exp(-x^2 / 2) / sqrt(2 pi).")
relu = _function("relu", "The value where it is above 0, else 0. NaN stays NaN.")
maximum = _function("maximum", "The larger of two values; NaN if one is.")
minimum = _function("minimum", "The smaller of two values; NaN if one is.")
equal = _function("eq", "1 where two values are equal, else 0.")
select = _function("select", "select(condition, a, b): a where the condition is not 0, else b.")
clip = _function("clip", "clip(x, least, most): x, but no less and no more than these. NaN stays NaN.")
round_bf16 = _function("round_bf16", "The nearest number of bfloat16.")
round_fp16 = _function("round_fp16", "The nearest number of float16.")
