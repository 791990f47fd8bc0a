"""Expressions of a program, built with Python's operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..runtime.sizes import Real, as_float
from .operations import INPUTS, OPERANDS, ROW_REDUCTIONS, ROW_SCANS

Number = int | float


class Value:
    """Expression with one number for each element of the result: an operation and its operands. Immutable; compared by
    identity."""

    __slots__ = ("op", "operands", "attribute")

    def __init__(self, op: str, *operands: Value | Number, attribute: Any = None):
        if len(operands) != OPERANDS[op]:
            raise TypeError(f"program: {op} takes {OPERANDS[op]} operands, got {len(operands)}")
        self.op = op
        self.operands = tuple(as_value(operand) for operand in operands)
        # the number of a constant, the name of an input, its DigitOf (digits.py), or its Mapped (mapped.py)
        self.attribute: Any = as_float(attribute) if op == "constant" else attribute

    @property
    def is_input(self) -> bool:
        return self.op in INPUTS

    @property
    def name(self) -> str:
        """Name of an input."""
        return self.attribute if isinstance(self.attribute, str) else self.attribute.name

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
    """Plain Python number, also if torch.compile made a symbol of it. Numbers are part of a program, so a graph is
    guarded on the numbers that it was recorded with."""
    if not torch.compiler.is_compiling():
        return number
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # slow to import, and not needed without symbols

    return guard_scalar(number)


def as_value(value: Value | Number) -> Value:
    if isinstance(value, Value):
        return value
    if isinstance(value, (int, float, Real)):
        return Value("constant", attribute=plain(value))
    raise TypeError(f"program: expected a value or a number, got {type(value).__name__}")


def in_order(values: list[Value]) -> Iterator[Value]:
    """All values that these depend on, and the values themselves, in topological order (operands first), each once."""
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
    """Result of the operator that runs before the program: the convolution's sum. In :func:`torch_reformer.stitch`, the
    element of the tensor that the program runs over."""
    return Value("acc")


def full(name: str) -> Value:
    """Tensor of the call as large as the result: ``[N, K, H, W]``."""
    return _input("full", name)


def channel(name: str) -> Value:
    """Vector of the call with one element for each channel of the result: ``[K]``."""
    return _input("channel", name)


def row(name: str) -> Value:
    """Tensor of the call with one element for each spatial position, shared by all channels: ``[N, H, W]``."""
    return _input("row", name)


def plane(name: str) -> Value:
    """Tensor of the call with one element for each channel of each batch element, shared by all spatial positions:
    ``[N, K]``."""
    return _input("plane", name)


def scalar(name: str) -> Value:
    """Tensor of the call with a single element."""
    return _input("scalar", name)


def random(name: str) -> Value:
    """Independent random numbers, uniform in [0, 1), with 23 bits each. Philox-4x32-7 (Salmon et al., Parallel random
    numbers: as easy as 1, 2, 3, SC 2011; seven rounds are the fewest with which it passes BigCrush) encrypts the
    element's index in channels_last order under a key, the tensor `name` of the call: int64, one element. Equal keys
    give equal numbers, so a derivative sees those of the forward."""
    return _input("random", name)


def table(name: str) -> Value:
    """Row of the matrix ``[rows, K]`` `name` of the call for each spatial position. The tensor :func:`index_of(name)
    <index_of>` of the call, ``[N, H, W]``, int64 or int32, holds the row numbers. A number outside the matrix is an
    error."""
    return _input("table", name)


def index_of(table: str) -> str:
    """Name of the input that holds a table's row numbers."""
    return f"{table}_index"


def rows() -> Value:
    """Number of rows of the result: N * H * W."""
    return Value("rows")


def columns() -> Value:
    """Number of channels of the result."""
    return Value("columns")


def channel_index() -> Value:
    """Index of the element's channel, from 0."""
    return Value("channel_index")


def _function(op: str, doc: str):
    def function(*operands: Value | Number) -> Value:
        return Value(op, *operands)

    function.__name__ = function.__qualname__ = op
    function.__doc__ = doc
    return function


_LEAVES_VARY = {
    **dict.fromkeys(("acc", "full", "random", "table", "mapped"), {"channels", "rows"}),
    **dict.fromkeys(("channel", "channel_index"), {"channels"}),
    "row": {"rows"},
    "plane": {"channels", "images"},
}


def varies(value: Value) -> dict[int, set[str]]:
    """Dimensions along which a value, and each value that it depends on, varies; keyed by identity. ``"channels"``:
    between the channels of a row; ``"rows"``: between rows; ``"images"``: between batch elements, but not between the
    rows of one. A value with an empty set is a single number."""
    dimensions: dict[int, set[str]] = {}
    for node in in_order([value]):
        if node.op in ROW_REDUCTIONS:
            dimensions[id(node)] = {"rows"}
        elif node.op in ROW_SCANS:
            dimensions[id(node)] = {"channels", "rows"}
        else:
            operands = (dimensions[id(operand)] for operand in node.operands)
            dimensions[id(node)] = set().union(*operands, _LEAVES_VARY.get(node.op, ()))
    return dimensions


row_sum = _function("row_sum", "Sum of a value over its row: all channels of a spatial position.")
row_max = _function("row_max", "Maximum of a value over its row; NaN if any element is NaN.")
row_prod = _function("row_prod", "Product of a value over its row.")


def row_cumsum(value: Value | Number, reversed: bool = False) -> Value:
    """Sum of all elements of a value's row up to and including each one; if `reversed`, from each one to the row's
    end. A GPU's kernels have such sums in rows of up to 4096 elements."""
    return Value("row_cumsum_reversed" if reversed else "row_cumsum", value)


def row_cumprod(value: Value | Number, reversed: bool = False) -> Value:
    """Product of all elements of a value's row up to and including each one, as :func:`row_cumsum`."""
    return Value("row_cumprod_reversed" if reversed else "row_cumprod", value)


exp = _function("exp", "Natural exponential function.")
log = _function("log", "Natural logarithm.")
log1p = _function("log1p", "Natural logarithm of 1 + x, accurate near 0.")
sqrt = _function("sqrt", "Square root.")
rsqrt = _function("rsqrt", "1 / sqrt(x).")
tanh = _function("tanh", "Hyperbolic tangent.")
sigmoid = _function("sigmoid", "1 / (1 + exp(-x)).")
erf = _function("erf", "Error function.")
normal_cdf = _function(
    "normal_cdf", "Distribution function of the standard normal distribution: (1 + erf(x / sqrt 2)) / 2."
)
normal_pdf = _function("normal_pdf", "Density of the standard normal distribution: exp(-x^2 / 2) / sqrt(2 pi).")
expm1 = _function("expm1", "exp(x) - 1, accurate near 0.")
log2 = _function("log2", "Logarithm to base 2.")
log10 = _function("log10", "Logarithm to base 10.")
sin = _function("sin", "Sine of an angle in radians, accurate for large angles, too.")
cos = _function("cos", "Cosine of an angle in radians, accurate for large angles, too.")
floor = _function("floor", "Largest integer that is at most x.")
round = _function("round", "Nearest integer; from halfway the even one.")
relu = _function("relu", "max(x, 0). NaN stays NaN.")
maximum = _function("maximum", "Larger of two values; NaN if either is NaN.")
minimum = _function("minimum", "Smaller of two values; NaN if either is NaN.")
pow = _function("pow", "pow(x, y): x to the power of y. A negative number has powers with whole exponents only.")
fmod = _function("fmod", "fmod(x, y): exact remainder of x / y truncated to an integer, with the sign of x.")
atan2 = _function("atan2", "atan2(y, x): angle of the point (x, y), from -pi to pi.")
copysign = _function("copysign", "copysign(x, y): abs(x) with the sign of y, which may be -0.")
equal = _function("eq", "1 where two values are equal, else 0.")
select = _function("select", "select(condition, a, b): a where the condition is not 0, else b.")
clip = _function("clip", "clip(x, least, most): x limited to [least, most]. NaN stays NaN.")
round_bf16 = _function("round_bf16", "Round to the nearest bfloat16 number.")
round_fp16 = _function("round_fp16", "Round to the nearest float16 number.")
