"""Tensors that a program reads through maps of their axes (csrc/program/axis_maps.h).

The compiler uses them for pads, rolls, pools, upsampling and the like: an element of the result is a sum of elements of
the tensor, at places that constant tables hold. Nothing checks that the places are inside of the tensor.

A call passes a mapped tensor as a view of five or more dimensions, whose strides give the part of an element's address
that needs no table; a dimension with a table has stride 0. The view has the result's elements in order of memory, or,
if a table is of columns, one element a row. A table of rows is a view of the int32 table with five or more dimensions,
which has the table's numbers for each row; a table of columns is ``[K, numbers]``."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .values import Value


class Mapped(NamedTuple):
    """Attribute of a mapped value.

    Attributes:
        name: of the tensor; ``map_of(name, i)`` are the names of its tables.
        maps: the kind of each table: "places" (in elements, -1: none) or "weighted" (pairs of a place and the bits of
            an fp32 weight).
        nowhere: the value of an element without any place; 0 if elements are summed.
        alignment: a power of two, at most 16, that divides all places. If a table is of columns, it divides their
            number, too, and so many columns, beginning at any multiple, are adjacent in the tensor, or all nowhere.
        within: if four columns, beginning at any multiple, come from the same four columns, `shift` elements before the
            tensor's first one: for each of them which of these it is, or None for nowhere. Kernels read vectors then,
            and no table of columns; the alignment is that of the other tables.
        mostly_chooses: most elements have one combination of taps at most: kernels read others under a condition.
    """

    name: str
    maps: tuple[str, ...]
    nowhere: float = 0.0
    alignment: int = 1
    within: tuple[int | None, ...] = ()
    shift: int = 0
    mostly_chooses: bool = False

    def __str__(self) -> str:
        within = f" {self.within} {self.shift}" if self.within else ""
        mostly = " mostly chooses" if self.mostly_chooses else ""
        return f"{self.name} {' '.join(self.maps)} {self.nowhere!r} {self.alignment}{within}{mostly}"

    def encode(self, input: int) -> int:
        """The attribute as a number of a program's code; input: the number of the tensor among the inputs."""
        bits = self.alignment.bit_length() - 1
        if self.within:
            digits = [_GROUP if each is None else each for each in self.within]
            bits |= (1 + self.shift + _GROUP * _number_of(digits)) << _ALIGNMENT_BITS
        bits |= self.mostly_chooses << _LAST_BIT
        (number,) = struct.unpack("<q", struct.pack("<HHf", input, bits, self.nowhere))
        return number

    @staticmethod
    def decode(number: int, names: list[str], kinds: list[str]) -> Mapped:
        """The attribute with this code, in a program whose inputs have these names and kinds."""
        input, bits, nowhere = struct.unpack("<HHf", struct.pack("<q", number))
        maps = tuple(itertools.takewhile(lambda kind: kind in MAPS, kinds[input + 1 :]))
        alignment = 1 << (bits & (1 << _ALIGNMENT_BITS) - 1)
        mostly_chooses = bool(bits >> _LAST_BIT)
        if not (bits := (bits & (1 << _LAST_BIT) - 1) >> _ALIGNMENT_BITS):
            return Mapped(names[input], maps, nowhere, alignment, mostly_chooses=mostly_chooses)
        number, shift = divmod(bits - 1, _GROUP)
        digits = [number // (_GROUP + 1) ** i % (_GROUP + 1) for i in range(_GROUP)]
        within = tuple(None if digit == _GROUP else digit for digit in digits)
        return Mapped(names[input], maps, nowhere, alignment, within, shift, mostly_chooses)


class Targets(NamedTuple):
    """Where the rows of an output are stored (csrc/program/targets.h). The call passes a tensor to write to, as a view
    of five or more dimensions, and the table as it passes a table of rows.

    Attributes:
        name: of the int32 table.
        alignment: a power of two, at most 16, that divides all places.
    """

    name: str
    alignment: int = 1

    def __str__(self) -> str:
        return f"to {self.name} {self.alignment}"

    def encode(self, input: int) -> int:
        """The targets as a number of a program's code; input: the number of the table among the inputs."""
        return input | (self.alignment.bit_length() - 1) << 16

    @staticmethod
    def decode(number: int, names: list[str]) -> Targets:
        """The targets with this code, in a program whose inputs have these names."""
        return Targets(names[number & 0xFFFF], 1 << (number >> 16))


MAPS = ("places", "weighted")
_GROUP, _ALIGNMENT_BITS, _LAST_BIT = 4, 3, 15  # columns of `within`; bits of the alignment's logarithm


def _number_of(digits: list[int]) -> int:
    return sum(digit * (_GROUP + 1) ** i for i, digit in enumerate(digits))


def mapped(
    name: str,
    maps: tuple[str, ...],
    nowhere: float = 0.0,
    alignment: int = 1,
    within: tuple[int | None, ...] = (),
    shift: int = 0,
    mostly_chooses: bool = False,
) -> Value:
    """The tensor `name` of the call, read through maps of its axes; see :class:`Mapped`."""
    return Value("mapped", attribute=Mapped(name, maps, nowhere, alignment, within, shift, mostly_chooses))


def map_of(name: str, number: int) -> str:
    """Name of the input that holds a table of a mapped tensor."""
    return f"{name}_map{number}"


def read_mapped(attribute: Mapped, tensors: Mapping[str, Tensor], size, wide: torch.dtype) -> Tensor:
    """The elements as a tensor of this size ``[N, K, H, W]``, by PyTorch's operations."""
    n, k, h, w = size
    rows, base = n * h * w, tensors[attribute.name]
    memory = base.as_strided((base.untyped_storage().nbytes() // base.itemsize,), (1,), 0)
    start = _places(base).view(rows, -1).expand(rows, k) + int(base.storage_offset())
    tables = [_taps(tensors[map_of(attribute.name, i)], kind, k) for i, kind in enumerate(attribute.maps)]
    total = torch.zeros(rows, k, dtype=wide, device=base.device)
    is_somewhere = torch.zeros(rows, k, dtype=torch.bool, device=base.device)
    for taps in itertools.product(*(range(places.shape[-1]) for places, _ in tables)):
        chosen = [(places[..., tap], weights[..., tap]) for (places, weights), tap in zip(tables, taps, strict=True)]
        is_there = torch.stack([(places >= 0).expand(rows, k) for places, _ in chosen]).all(0)
        place = start
        for places, _ in chosen:
            place = place + places
        element = memory[torch.where(is_there, place, 0)].to(wide)
        for _, weights in chosen:
            element = element * weights.to(wide)
        total = torch.where(is_there, torch.where(is_somewhere, total + element, element), total)
        is_somewhere |= is_there
    total = torch.where(is_somewhere, total, torch.tensor(attribute.nowhere, dtype=wide, device=base.device))
    return total.view(n, h, w, k).permute(0, 3, 1, 2)


def _places(view: Tensor) -> Tensor:
    """Distance of each of the view's elements from its first one, in order of its dimensions."""
    place = torch.zeros((), dtype=torch.int64, device=view.device)
    for size, stride in zip(view.shape, view.stride(), strict=True):
        place = place[..., None] + torch.arange(size, device=view.device) * stride
    return place.reshape(-1)


def _taps(table: Tensor, kind: str, columns: int) -> tuple[Tensor, Tensor]:
    """Places and weights of a table: [rows, 1, taps], or [1, columns, taps] of a table of columns."""
    numbers = table.reshape(-1, 1, table.shape[-1]) if table.dim() > 4 else table.view(1, columns, -1)
    if kind == "places":
        return numbers, torch.ones_like(numbers)
    return numbers[..., ::2], numbers[..., 1::2].contiguous().view(torch.float32)
