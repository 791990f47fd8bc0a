"""Polynomials of the symbols of a graph's sizes, with whole coefficients.

A polynomial is a dict from monomials to coefficients; a monomial is a sorted tuple of atoms, which are the numbers of
symbols and of expressions that are no polynomials (quotients and remainders, say). Equal polynomials of one set of
atoms are one object."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from typing import NamedTuple

Monomial = tuple[int, ...]
LEAST = 2  # value of a symbol; PyTorch makes no symbols of 0 and 1, and plans over symbols serve no others


class Atom(NamedTuple):
    """A symbol (`operator` is "symbol"), or an operator and its operands.

    Attributes:
        least: a number that it is never below, whatever the symbols; None if none is known.
    """

    operator: str
    operands: tuple
    least: int | None


class Polynomial:
    """A polynomial of the atoms of one Polynomials; made by its methods."""

    __slots__ = ("terms", "key", "constant", "least", "greatest")

    def __init__(self, terms: dict[Monomial, int], atoms: list[Atom]):
        self.terms = terms
        self.key = tuple(sorted(terms.items()))
        self.constant = 0 if not terms else terms.get((), None) if len(terms) == 1 else None
        self.least = _bound(terms, atoms, 1)
        self.greatest = _bound(terms, atoms, -1)


def _bound(terms: dict[Monomial, int], atoms: list[Atom], sign: int) -> int | None:
    """The least (sign 1) or greatest (sign -1) value, as far as all terms but the constant grow in that direction."""
    total = 0
    for monomial, factor in terms.items():
        for atom in monomial:
            least = atoms[atom].least
            if least is None or least < 0 or factor * sign < 0:
                return None
            factor *= least
        total += factor
    return total


class Polynomials:
    """The atoms of one plan, their values, and the polynomials of them."""

    def __init__(self, names: list[str], values: list[int]):
        self.atoms = [Atom("symbol", (name,), LEAST) for name in names]
        self.values: list[int] = list(values)  # of the atoms
        self._places: dict[tuple, int] = {}
        self._known: dict[frozenset, Polynomial] = {}
        self._results: dict[tuple, Polynomial] = {}

    def forget(self) -> None:
        """Drop what saves time only."""
        self._results.clear()

    def of_terms(self, terms: dict[Monomial, int]) -> Polynomial:
        key = frozenset(terms.items())
        if (known := self._known.get(key)) is None:
            known = self._known[key] = Polynomial(terms, self.atoms)
        return known

    def number(self, number: int) -> Polynomial:
        return self.of_terms({(): number} if number else {})

    def atom(self, operator: str, operands: tuple, value: int, least: int | None = None) -> Polynomial:
        """The polynomial that is this expression, whose value is known; equal expressions are one atom."""
        key = operator, operands
        if key not in self._places:
            self._places[key] = len(self.atoms)
            self.atoms.append(Atom(operator, operands, least))
            self.values.append(value)
        return self.of_terms({(self._places[key],): 1})

    def value(self, polynomial: Polynomial) -> int:
        return sum(factor * math.prod(self.values[atom] for atom in monomial) for monomial, factor in polynomial.key)

    def add(self, one: Polynomial, other: Polynomial, factor: int = 1) -> Polynomial:
        """one + factor * other"""
        key = "+", one, other, factor
        if (known := self._results.get(key)) is None:
            terms = dict(one.terms)
            for monomial, number in other.terms.items():
                _add(terms, monomial, factor * number)
            known = self._results[key] = self.of_terms(terms)
        return known

    def multiply(self, one: Polynomial, other: Polynomial) -> Polynomial:
        key = "*", one, other
        if (known := self._results.get(key)) is None:
            terms: dict[Monomial, int] = {}
            for a, m in one.terms.items():
                for b, n in other.terms.items():
                    _add(terms, tuple(sorted(a + b)), m * n)
            known = self._results[key] = self.of_terms(terms)
        return known

    def exact_quotient(self, one: Polynomial, other: Polynomial) -> Polynomial | None:
        """one / other, if that is a polynomial; else None."""
        leader, factor = max(other.terms.items(), key=_order)
        rest, quotient = one, self.number(0)
        while rest.terms:
            monomial, number = max(rest.terms.items(), key=_order)
            left = _without(monomial, leader)
            if left is None or number % factor:
                return None
            term = self.of_terms({left: number // factor})
            quotient = self.add(quotient, term)
            rest = self.add(rest, self.multiply(term, other), -1)
        return quotient

    def quotient(self, one: Polynomial, other: Polynomial) -> Polynomial:
        """one // other"""
        key = "//", one, other
        if (known := self._results.get(key)) is None:
            known = self._results[key] = self._quotient(one, other)
        return known

    def _quotient(self, one: Polynomial, other: Polynomial) -> Polynomial:
        if (exact := self.exact_quotient(one, other)) is not None:
            return exact
        if self._is_below(one, other):
            return self.number(0)
        whole, rest = self._split(one, other)
        if rest.constant is not None and other.constant is not None:
            return self.add(whole, self.number(rest.constant // other.constant))
        is_positive = rest.least is not None and rest.least >= 0 and other.least is not None and other.least > 0
        value = self.value(rest) // self.value(other)
        return self.add(whole, self.atom("//", (rest, other), value, 0 if is_positive else None))

    def remainder(self, one: Polynomial, other: Polynomial) -> Polynomial:
        """one % other"""
        key = "%", one, other
        if (known := self._results.get(key)) is None:
            known = self._results[key] = self._remainder(one, other)
        return known

    def _remainder(self, one: Polynomial, other: Polynomial) -> Polynomial:
        if self.exact_quotient(one, other) is not None:
            return self.number(0)
        if self._is_below(one, other):
            return one
        _, rest = self._split(one, other)
        if rest.constant is not None and other.constant is not None:
            return self.number(rest.constant % other.constant)
        is_positive = other.least is not None and other.least > 0
        return self.atom("%", (rest, other), self.value(rest) % self.value(other), 0 if is_positive else None)

    def _is_below(self, one: Polynomial, other: Polynomial) -> bool:
        """True if 0 <= one < other, whatever the symbols."""
        difference = self.add(other, one, -1)
        return one.least is not None and one.least >= 0 and difference.least is not None and difference.least > 0

    def _split(self, one: Polynomial, other: Polynomial) -> tuple[Polynomial, Polynomial]:
        """(whole, rest): one = whole * other + rest, where `whole` has the terms that are multiples of `other`."""
        whole = self.number(0)
        for monomial, factor in one.key:
            term = self.exact_quotient(self.of_terms({monomial: factor}), other)
            if term is None and other.constant and factor // other.constant:
                term = self.of_terms({monomial: factor // other.constant})
            whole = whole if term is None else self.add(whole, term)
        return whole, self.add(one, self.multiply(whole, other), -1)

    def reduced(self, one: Polynomial) -> Polynomial:
        """The polynomial without factors that are positive whatever the symbols; it has the same sign."""
        key = "reduced", one
        if (known := self._results.get(key)) is None:
            divisor = math.gcd(*one.terms.values())
            shared = functools.reduce(operator.and_, map(Counter, one.terms))
            positive = [atom for atom in shared.elements() if (self.atoms[atom].least or 0) > 0]
            common = self.of_terms({tuple(sorted(positive)): divisor})
            known = self._results[key] = self.exact_quotient(one, common) or one
        return known

    def text(self, polynomial: Polynomial) -> str:
        """The polynomial as an expression of Python, whose symbols have their names."""
        words = []
        for monomial, factor in polynomial.key:
            factors = [] if factor == 1 and monomial else [str(factor)]
            words.append("*".join([*factors, *map(self._text_of_atom, monomial)]))
        return " + ".join(words) or "0"

    def _text_of_atom(self, number: int) -> str:
        operator, operands, _ = self.atoms[number]
        if operator == "symbol":
            return operands[0]
        texts = [f"({self.text(each)})" if isinstance(each, Polynomial) else str(each) for each in operands]
        return f"({texts[0]} {operator} {texts[1]})" if len(texts) == 2 else f"{operator}({texts[0]})"


def _add(terms: dict[Monomial, int], monomial: Monomial, number: int) -> None:
    if total := terms.get(monomial, 0) + number:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def _order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """An order of monomials that products preserve."""
    monomial, _ = term
    return len(monomial), monomial


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """monomial / divisor; None if that is none."""
    left = Counter(monomial)
    left.subtract(divisor)
    return None if min(left.values(), default=0) < 0 else tuple(sorted(left.elements()))
