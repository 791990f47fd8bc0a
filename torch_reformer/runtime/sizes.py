"""Sizes that know what they are computed of: numbers with a polynomial of a graph's symbols.

The compiler computes with sizes as with whole numbers. What it makes of them are expressions of the symbols, so that a
plan for some sizes becomes a plan for many (compiler/runtime/template.py). A comparison gives what holds for the
numbers at hand, and notes that as a guard: the plan serves the sizes for which all guards hold. Where a plain number is
needed (by range(), struct.pack(), PyTorch), Python asks for it by ``__index__`` or ``__float__``, which notes that the
size equals that number. So no conversion is silent: a Size is no int, but says that its class is, so that isinstance()
takes it for one.

Two sizes are one key of a dict or set if they have one polynomial. Others are different keys, even if they are equal
for some sizes: to treat equal tensors as different ones is always right."""

from __future__ import annotations

import contextlib
import math
import operator
import struct
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from .polynomials import LEAST, Polynomial, Polynomials

NOTES_COSTS = False  # in tests: decisions about cost note guards like others
_is_about_cost: ContextVar[bool] = ContextVar("is_about_cost", default=False)
_COMPARE = {"==": operator.eq, ">": operator.gt, ">=": operator.ge}
_COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class Symbols:
    """The symbols of one plan, and what it assumes of them.

    Attributes:
        names, values: of the symbols.
        guards: (comparison, polynomial, outcome): of the polynomial and 0.
        is_open: True while the plan is made; afterwards sizes of it equal nothing, as they may be keys of a cache.
    """

    def __init__(self, values: dict[str, int]):
        self.names, self.values = list(values), list(values.values())
        self.polynomials = Polynomials(self.names, self.values)
        self.guards: dict[tuple[str, Polynomial, bool], None] = {}
        self.is_open = True

    def close(self) -> None:
        """End planning: sizes are only expressions from now on."""
        self.is_open = False
        self.polynomials.forget()

    def sizes(self) -> dict[str, Size]:
        of_terms = self.polynomials.of_terms
        return {name: Size(value, of_terms({(i,): 1}), self) for i, (name, value) in enumerate(self._items())}

    def _items(self):
        return zip(self.names, self.values, strict=True)

    def of(self, number: int | Size) -> Polynomial:
        return number.polynomial if type(number) is Size else self.polynomials.number(int(number))

    def size(self, value: int, polynomial: Polynomial) -> int | Size:
        return Size(value, polynomial, self) if polynomial.constant is None else polynomial.constant

    def compare(self, comparison: str, difference: Polynomial, holds: bool) -> bool:
        """Note that the difference compares with 0 in this way, unless it does whatever the symbols."""
        least, greatest = difference.least, difference.greatest
        if difference.constant is not None or _is_about_cost.get():
            return holds
        if comparison != ">=" and ((least is not None and least > 0) or (greatest is not None and greatest < 0)):
            return holds
        if comparison == ">" and greatest == 0:
            return holds
        if comparison == ">=" and ((least is not None and least >= 0) or (greatest is not None and greatest < 0)):
            return holds
        self.guards[comparison, self.polynomials.reduced(difference), holds] = None
        return holds

    def holds(self) -> SizeFunction:
        """A function of the symbols' values: True if all guards hold for them."""
        tests = [f"{name} >= {LEAST}" for name in self.names]
        lines, texts = self._lines([polynomial for _, polynomial, _ in self.guards])
        for (comparison, _, holds), text in zip(self.guards, texts, strict=True):
            tests.append(f"{'' if holds else 'not '}{text} {comparison} 0")
        # A guard says that a divisor is not 0; an expression before it may divide by it.
        tried = [f"    {line}" for line in [*lines, f"return {' and '.join(tests)}"]]
        return self._function(["try:", *tried, "except ZeroDivisionError:", "    pass"], "False")

    def function(self, values: list) -> SizeFunction:
        """A function of the symbols' values that gives this list, with numbers in place of sizes in nested lists,
        tuples and dicts."""
        sizes: dict[Size | Real, str] = {}
        constants: dict[str, Any] = {}
        result = _source(values, sizes, constants)
        lines, texts = self._lines([size.polynomial for size in sizes if type(size) is Size])
        left = iter(texts)
        for size, name in sizes.items():
            lines.append(f"{name} = {next(left) if type(size) is Size else repr(size)}")
        return self._function(lines, result, constants)

    def _lines(self, polynomials: list[Polynomial]) -> tuple[list[str], list[str]]:
        """Assignments of atoms to variables, and expressions of the polynomials by these variables."""
        atoms, needed, todo = self.polynomials.atoms, set(), list(polynomials)
        while todo:
            for atom in {atom for monomial in todo.pop().terms for atom in monomial} - needed:
                needed.add(atom)
                todo += [operand for operand in atoms[atom].operands if isinstance(operand, Polynomial)]

        def text(polynomial: Polynomial) -> str:
            words = []
            for monomial, factor in polynomial.key:
                factors = [] if factor == 1 and monomial else [str(factor)]
                words.append("*".join(factors + [name_of(atom) for atom in monomial]))
            return f"({' + '.join(words) or '0'})"

        def name_of(atom: int) -> str:
            return self.names[atom] if atom < len(self.names) else f"_{atom}"

        lines = []
        for atom in sorted(needed):  # operands come first
            kind, operands, _ = atoms[atom]
            if kind == "bits":
                lines.append(f"_{atom} = bits({operands[0]})")
            elif kind != "symbol":
                lines.append(f"_{atom} = {text(operands[0])} {kind} {text(operands[1])}")
        return lines, list(map(text, polynomials))

    def _function(self, lines: list[str], result: str, constants: dict[str, Any] | None = None) -> SizeFunction:
        body = "".join(f"    {line}\n" for line in [*lines, f"return {result}"])
        return SizeFunction(f"def function({', '.join(self.names)}):\n{body}", constants or {})


class SizeFunction:
    """A function of symbols' values, by its Python code. It pickles.

    Args:
        constants: values of names in the code.
    """

    def __init__(self, code: str, constants: dict[str, Any]):
        self.code, self._constants = code, constants
        names: dict[str, Any] = {"bits": bits_of_double, "inf": math.inf, "nan": math.nan, **constants}
        exec(code, names)
        self._run = names["function"]

    def __call__(self, *values: int):
        return self._run(*values)

    def __reduce__(self):
        return SizeFunction, (self.code, self._constants)


def _arithmetic(name: str, compute: Callable[[Polynomials, Polynomial, Polynomial], Polynomial]):
    plain = getattr(operator, name)

    def result(one, other, symbols):
        if isinstance(one, (float, Real)) or isinstance(other, (float, Real)):
            symbol = {"add": "+", "sub": "-", "mul": "*"}.get(name)
            return Real(symbol, one, other) if symbol else plain(float(one), float(other))
        if not isinstance(one, int) or not isinstance(other, int):
            return NotImplemented
        divisor = symbols.of(other)
        if name in ("floordiv", "mod"):
            symbols.compare("==", divisor, estimate(other) == 0)
        polynomial = compute(symbols.polynomials, symbols.of(one), divisor)
        return symbols.size(plain(estimate(one), estimate(other)), polynomial)

    return (lambda self, other: result(self, other, self.symbols)), (
        lambda self, other: result(other, self, self.symbols)
    )


def _converted(name: str):
    return lambda self, *args: getattr(operator.index(self), name)(*args)


class Size:
    """A whole number that is a polynomial of symbols, and no constant."""

    __slots__ = ("value", "polynomial", "symbols")
    __class__ = property(lambda self: int)  # type: ignore[assignment]

    def __init__(self, value: int, polynomial: Polynomial, symbols: Symbols):
        self.value, self.polynomial, self.symbols = value, polynomial, symbols

    __add__, __radd__ = _arithmetic("add", Polynomials.add)
    __sub__, __rsub__ = _arithmetic("sub", lambda all, one, other: all.add(one, other, -1))
    __mul__, __rmul__ = _arithmetic("mul", Polynomials.multiply)
    __floordiv__, __rfloordiv__ = _arithmetic("floordiv", Polynomials.quotient)
    __mod__, __rmod__ = _arithmetic("mod", Polynomials.remainder)

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __truediv__(self, other):
        return Real("/", self, other)

    def __rtruediv__(self, other):
        return Real("/", other, self)

    def __neg__(self):
        return 0 - self

    def __pos__(self):
        return self

    def __abs__(self):
        return self if self >= 0 else -self

    def __pow__(self, exponent):
        if isinstance(exponent, int):
            return math.prod([self] * operator.index(exponent)) if exponent >= 0 else 1 / self**-exponent
        return float(self) ** exponent

    def _compared(self, comparison: str, other) -> bool:
        """True if self - other compares with 0 in this way. A guard notes the outcome."""
        symbols = self.symbols
        if type(other) is not Size:
            if not isinstance(other, (int, float)):
                return NotImplemented
            if isinstance(other, float) and not other.is_integer():
                if comparison == "==" or not math.isfinite(other):
                    return _COMPARE[comparison](self.value, other)
                # A whole number is above a fraction if it is above the whole number below that.
                comparison, other = ">", math.floor(other)
        if not symbols.is_open or (type(other) is Size and other.symbols is not symbols):
            if comparison != "==":
                raise RuntimeError("sizes of two plans, or of one that is made, are not compared")
            return self is other
        difference = symbols.polynomials.add(self.polynomial, symbols.of(other), -1)
        return symbols.compare(comparison, difference, _COMPARE[comparison](self.value, estimate(other)))

    def __eq__(self, other):
        return self._compared("==", other)

    def __ne__(self, other):
        return _inverted(self._compared("==", other))

    def __gt__(self, other):
        return self._compared(">", other)

    def __ge__(self, other):
        return self._compared(">=", other)

    def __lt__(self, other):
        return _inverted(self._compared(">=", other))

    def __le__(self, other):
        return _inverted(self._compared(">", other))

    def __bool__(self):
        return not self._compared("==", 0)

    def __hash__(self):
        return hash(self.polynomial.key)

    def __index__(self):
        assert self.symbols.is_open
        self._compared("==", self.value)
        return self.value

    __int__ = __trunc__ = __floor__ = __ceil__ = __index__

    def __float__(self):
        return float(operator.index(self))

    for _name in ("lshift", "rlshift", "rshift", "rrshift", "and", "rand", "or", "ror", "xor", "rxor", "invert"):
        locals()[f"__{_name}__"] = _converted(f"__{_name}__")
    bit_length, __round__, __rpow__ = map(_converted, ("bit_length", "__round__", "__rpow__"))
    del _name

    def __repr__(self):  # as texts may be keys
        return self.symbols.polynomials.text(self.polynomial)

    def __format__(self, spec):
        return format(repr(self), spec)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("a size of symbols is of one process only")


def _inverted(outcome):
    return outcome if outcome is NotImplemented else not outcome


class Real:
    """A number that is computed of sizes by floating-point arithmetic. It is no float: where a float is needed, the
    sizes become plain numbers."""

    __slots__ = ("operator", "operands", "symbols")

    def __init__(self, symbol: str, *operands):
        self.operator, self.operands = symbol, operands
        self.symbols = next(each.symbols for each in operands if type(each) in (Size, Real))

    @property
    def value(self) -> float:
        return _COMPUTE[self.operator](*map(estimate, self.operands))

    def bits(self) -> int | Size:
        """The number's bits as a double, as a whole number."""
        polynomial = self.symbols.polynomials.atom("bits", (repr(self),), bits_of_double(self.value))
        return self.symbols.size(bits_of_double(self.value), polynomial)

    def __float__(self):
        for operand in self.operands:
            float(operand)
        return self.value

    def __neg__(self):
        return Real("-", 0.0, self)

    def __eq__(self, other):
        if type(other) is Real and repr(self) == repr(other):
            return True
        if self.operator == "/" and isinstance(other, (int, float)) and other == 1:
            return self.operands[0] == self.operands[1]
        return float(self) == other

    def __hash__(self):
        return hash(repr(self))

    def __lt__(self, other):
        return float(self) < other

    def __le__(self, other):
        return float(self) <= other

    def __gt__(self, other):
        return float(self) > other

    def __ge__(self, other):
        return float(self) >= other

    def __bool__(self):
        return bool(float(self))

    def __repr__(self):
        return f" {self.operator} ".join(f"({operand!r})" for operand in self.operands).join("()")


for _method, _symbol in (("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/")):

    def _forward(self, other, symbol=_symbol):
        return Real(symbol, self, other) if isinstance(other, (int, float, Real)) else NotImplemented

    def _backward(self, other, symbol=_symbol):
        return Real(symbol, other, self) if isinstance(other, (int, float, Real)) else NotImplemented

    setattr(Real, f"__{_method}__", _forward)
    setattr(Real, f"__r{_method}__", _backward)


@contextlib.contextmanager
def about_cost(decides: bool = True) -> Iterator[None]:
    """Context, and decorator, of decisions that are only about cost: comparisons note no guards. A plan is right for
    other sizes, too, for which another plan would cost less. decides: False if no plan depends on what is compared."""
    token = _is_about_cost.set(not (decides and NOTES_COSTS))
    try:
        yield
    finally:
        _is_about_cost.reset(token)


def estimate(number: Any):
    """The plain number at hand, without a guard: for decisions that are only about cost."""
    return number.value if type(number) in (Size, Real) else number


def as_float(number: int | float | Size | Real) -> float | Real:
    """The number as a constant of a program."""
    return number * 1.0 if type(number) in (Size, Real) else float(number)


def plain(value: Any):
    """Plain numbers in place of sizes in nested lists, without guards: for what is made again for other sizes."""
    return replaced(value, estimate)


def replaced(value: Any, replace: Callable[[Any], Any]):
    """`replace` of each size in nested lists, tuples and dicts."""
    if type(value) in (Size, Real):
        return replace(value)
    if isinstance(value, (list, tuple)):
        parts = [replaced(part, replace) for part in value]
        if all(part is before for part, before in zip(parts, value, strict=True)):
            return value
        return value._make(parts) if hasattr(value, "_make") else list(parts) if type(value) is list else tuple(parts)
    if isinstance(value, dict):
        return {key: replaced(part, replace) for key, part in value.items()}
    return value


def has_sizes(value: Any) -> bool:
    """True if nested lists, tuples and dicts have a size."""
    return replaced(value, estimate) is not value


def _source(value: Any, sizes: dict[Size | Real, str], constants: dict[str, Any]) -> str:
    """The value as an expression of Python. Adds names of the sizes in it, and of constants."""
    if type(value) in (Size, Real):
        return sizes.setdefault(value, f"_size_{len(sizes)}")
    if type(value) in (int, bool, type(None)):
        return repr(value)
    if isinstance(value, (list, tuple, dict)) and has_sizes(value):
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {_source(part, sizes, constants)}' for key, part in value.items())}}}"
        parts = "".join(f"{_source(part, sizes, constants)}, " for part in value)
        return f"[{parts}]" if type(value) is list else f"({parts})"
    name = f"_constant_{len(constants)}"
    constants[name] = value
    return name


def bits_of_double(number: float) -> int:
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return bits
