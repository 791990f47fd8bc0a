"""What an element-wise operation's operands are to a program, by where their elements lie in memory.

All that a program reads and writes for each element has its elements in one order: that of memory. Seen so, sizes and
permutations of dimensions don't matter, and an operand that is broadcast repeats by a rule: element i of the result
needs the operand's element (i // inner) % count. Such a pair (inner, count) is a digit of the index; an operand has
one for each run of adjacent dimensions in which it varies. Some channels of another tensor have two adjacent digits:
one within a row, and one of rows, which are apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .ir import Layout, Map, Random, View

Digits = tuple[tuple[int, int], ...]
BY_PLACE: Digits = ((-1, 1),)  # of a key: each element has a random number of its own
# Rows as long as a GPU's kernel has in registers, so that what is added up over rows is, too (kernels/stitch_plan.h);
# and as many as keep its processors busy.
LONGEST_ROW, _MANY_ROWS = 4096, 64


def digits_of(result: Layout, operand: Layout) -> Digits | None:
    """How an operand of the result's sizes varies over the result's memory, which is dense. None: its elements lie in
    another order, or apart in another way than rows."""
    inner = expected = 1
    digits: list[tuple[int, int]] = []
    joined = False
    for d in sorted(range(len(result.sizes)), key=lambda d: result.strides[d]):
        size, stride = result.sizes[d], operand.strides[d]
        if size == 1:
            continue
        varies = stride != 0
        if varies:
            if stride != expected:
                return _rows_apart(result, operand)
            expected *= size
            if joined:
                digits[-1] = digits[-1][0], digits[-1][1] * size
            else:
                digits.append((inner, size))
        joined = varies
        inner *= size
    return tuple(digits)


def _rows_apart(result: Layout, operand: Layout) -> Digits | None:
    """The digits of rows that are equally far apart, each of adjacent elements."""
    dims = [d for d in sorted(range(len(result.sizes)), key=lambda d: result.strides[d]) if result.sizes[d] != 1]
    width = expected = 1
    for d in dims:
        if operand.strides[d] != expected:
            if expected != width or width == 1 or operand.strides[d] < width:
                return None
            expected = operand.strides[d]
        elif expected == width:
            width *= result.sizes[d]
        expected *= result.sizes[d]
    return (1, width), (width, result.numel // width)


def are_rows_apart(digits: Digits) -> bool:
    return len(digits) == 2 and digits[0][0] * digits[0][1] == digits[1][0]


def pitch_of(layout: Layout) -> int:
    """Elements from one of these rows to the next."""
    expected = 1
    for stride, size in sorted(zip(layout.strides, layout.sizes, strict=True)):
        if size != 1 and stride != expected:
            return stride
        expected *= size
    raise ValueError("its rows are adjacent")


def operand_digits(operation: Map) -> list[tuple[View, Digits | None]]:
    """How an operation's operands vary over its result's memory."""
    if isinstance(operation, Random):
        return [(view, BY_PLACE) for view in operation.inputs]
    layout = operation.results[0].layout
    return [(view, digits_of(layout, view.layout)) for view in operation.inputs]


def without(layout: Layout, dims: Iterable[int]) -> Digits | None:
    """The digits of what has one element for all that differ only in these dimensions."""
    dims = set(dims)
    left = [0 if d in dims else stride for d, stride in enumerate(layout.strides)]
    # Its elements lie side by side, in the order of memory.
    expected = 1
    for d in sorted(range(len(left)), key=lambda d: layout.strides[d]):
        if left[d] and layout.sizes[d] != 1:
            left[d] = expected
            expected *= layout.sizes[d]
    return digits_of(layout, Layout(layout.sizes, tuple(left)))


@dataclass(frozen=True)
class Space:
    """The result that a program runs over: [images, channels, height, width], in NHWC's order of memory or NCHW's."""

    images: int
    channels: int
    height: int
    width: int
    nhwc: bool

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def numel(self) -> int:
        return self.images * self.channels * self.pixels

    @property
    def layout(self) -> Layout:
        n, c, h, w = sizes = (self.images, self.channels, self.height, self.width)
        strides = (h * w * c, 1, w * c, c) if self.nhwc else (c * h * w, h * w, w, 1)
        return Layout(sizes, strides)

    @property
    def channel_digits(self) -> Digits:
        return ((1 if self.nhwc else self.pixels, self.channels),)

    def kind(self, digits: Digits) -> str | None:
        """What an operand is to a program here: full, channel, row, scalar or random."""
        c, p, n = self.channels, self.pixels, self.images
        if digits == BY_PLACE:  # programs have places in channels_last order
            return "random" if self.nhwc or c == 1 or p == 1 else None
        if self.numel == 1 or digits == ((1, self.numel),):
            return "full"
        if are_rows_apart(digits):
            return "full" if self.nhwc and digits[0][1] == c else None
        if not digits:
            return "scalar"
        if digits == self.channel_digits:
            return "channel"
        rows = ((c, n * p),) if self.nhwc else tuple(each for each in ((1, p), (p * c, n)) if each[1] != 1)
        return "row" if digits == rows else None

    def sizes_of(self, kind: str) -> tuple[int, ...]:
        return {
            "full": self.layout.sizes,
            "channel": (self.channels,),
            "row": (self.images, self.height, self.width),
            "scalar": (),
            "random": (1,),
        }[kind]

    def layout_of(self, kind: str, offset: int = 0) -> Layout:
        if kind == "full":
            return Layout(self.layout.sizes, self.layout.strides, offset)
        sizes = self.sizes_of(kind)
        return Layout(sizes, tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes))), offset)


def shaped(space: Space, layouts: Iterable[Layout], operands: set[Digits]) -> Space:
    """The same space in the sizes of one of the tensors, if one has these elements in four dimensions: so it need not
    be viewed in others."""
    free = space.images == space.channels == 1 and not space.nhwc  # of no operand that is broadcast
    for layout in layouts:
        if len(layout.sizes) != 4 or layout.numel != space.numel:
            continue
        n, c, h, w = layout.sizes
        for nhwc in (True, False):
            same = (n * h * w, c, nhwc) == (space.images * space.pixels, space.channels, space.nhwc)
            if not nhwc:
                same = same and n == space.images
            found = Space(n, c, h, w, nhwc)
            if not (same or free) or min(c, h * w) == 1 or layout.strides != found.layout.strides:
                continue
            if fits(found, operands, ()):
                return found
    return space


def reduces_rows(numel: int, digits: Digits | None) -> bool:
    """Whether what has these digits is better reduced row by row, so that the result is known while the row's elements
    are at hand: there are enough rows for a processor, or they are short."""
    if not digits or len(digits) > 1:
        return False
    ((inner, count),) = digits
    return inner > 1 and inner * count == numel and (count >= _MANY_ROWS or inner <= LONGEST_ROW)


def fits(space: Space, operands: Iterable[Digits], reductions: Collection[Digits], whole_rows: bool = True) -> bool:
    """Whether operands of these digits are what programs know, and what is reduced is reduced to channels, to one
    number, or, if whole rows are at hand (they are not behind a convolution), row by row."""
    if not all(space.kind(each) for each in operands):
        return False
    if not whole_rows and any(map(are_rows_apart, operands)):
        return False
    row = [each for each in reductions if whole_rows and reduces_rows(space.numel, each)]
    others = [each for each in reductions if each not in row]
    if any(space.kind(each) != "row" for each in row) or any(each and space.kind(each) != "channel" for each in others):
        return False
    return not (row and others) or space.channels <= LONGEST_ROW


def find_space(numel: int, operands: set[Digits], reductions: set[Digits]) -> Space | None:
    """One that fits these, if there is one."""
    for digits in sorted(reductions | operands, key=lambda each: (each not in reductions, each)):
        for space in _spaces(numel, digits):
            if fits(space, operands, reductions):
                return space
    plain = Space(1, 1, numel, 1, False)
    return plain if fits(plain, operands, reductions) else None


def _spaces(numel: int, digits: Digits):
    if not digits or digits in (BY_PLACE, ((1, numel),)):
        return
    inner, count = digits[0]
    if are_rows_apart(digits):
        yield Space(1, count, numel // count, 1, True)
    elif len(digits) == 2 and inner == 1:
        images = digits[1][1]
        yield Space(images, numel // (count * images), count, 1, False)
    elif inner == 1:
        yield Space(1, count, numel // count, 1, True)
        yield Space(1, numel // count, count, 1, False)
    else:
        yield Space(numel // (inner * count), count, inner, 1, False)
        if inner * count == numel:
            yield Space(1, inner, count, 1, True)
