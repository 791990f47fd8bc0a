"""Digits of whole numbers in base 2^24 (csrc/program/digits.h): fp32 has each of them, but not all numbers of int64."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from torch import Tensor

from .values import Value

COUNT, BITS = 3, 24
Whole = TypeVar("Whole", Tensor, int)


class DigitOf(NamedTuple):
    """Attribute of an input of which a digit is read; number: 1, the lowest, to 3."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} digit {self.number}"

    def encode(self, input: int) -> int:
        """The attribute as a number of a program's code; input: the number of the tensor among the inputs."""
        return input | self.number << 16

    @staticmethod
    def decode(number: int, names: list[str]) -> DigitOf | str:
        """The attribute with this code: a digit of an input, or the name of one that is read as it is."""
        name = names[number & 0xFFFF]
        return DigitOf(name, number >> 16) if number >> 16 else name


def digit(value: Value, number: int) -> Value:
    """A digit of an input of int64 or int32, taken as a number of 64 bits: bits 0 to 23, unsigned, bits 24 to 47,
    unsigned, or bits 48 to 63 with the sign. All are exact in fp32.

    Args:
        value: a full, channel, row, plane or scalar input, a table, or :func:`channel_index`.
        number: 1, the lowest, to 3.
    """
    if number not in range(1, COUNT + 1):
        raise ValueError(f"program: a whole number has digits 1 to {COUNT}, got {number}")
    if value.op == "channel_index":
        return value if number == 1 else Value("constant", attribute=0)
    if not isinstance(value.attribute, str) or value.op == "random":
        raise ValueError(f"program: only inputs have digits, got {value}")
    return Value(value.op, attribute=DigitOf(value.attribute, number))


def digit_of(whole: Whole, number: int) -> Whole:
    """A digit of a whole number of at most 64 bits, or of a tensor of them."""
    rest = whole >> BITS * (number - 1)
    return rest if number == COUNT else rest & (1 << BITS) - 1
