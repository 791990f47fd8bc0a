"""Strided layouts of tensors."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of the dimensions, and the offset of the first element, all in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @functools.cached_property  # the planner asks some 100,000 times
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @functools.cached_property
    def elements(self) -> int:
        """Number of elements in memory: dimensions of stride 0 repeat them and do not count."""
        return math.prod(n for n, s in zip(self.sizes, self.strides, strict=True) if s)

    def in_memory_order(self) -> list[tuple[int, int]]:
        """Sizes and strides of the dimensions of more than one element, outermost first."""
        pairs = [(size, stride) for size, stride in zip(self.sizes, self.strides, strict=True) if size != 1]
        return sorted(pairs, key=lambda pair: -pair[1])

    def matches(self, other: Layout) -> bool:
        """True if both have the same sizes, and each element lies as far from the first one in both."""
        strides = zip(self.sizes, self.strides, other.strides, strict=False)
        return self.sizes == other.sizes and all(a == b for size, a, b in strides if size != 1)

    @functools.cached_property
    def is_dense(self) -> bool:
        """True if the elements fill the memory from its beginning, each once, in any order of dimensions."""
        expected = 1
        for size, stride in reversed(self.in_memory_order()):
            if stride != expected:
                return False
            expected *= size
        return self.offset == 0

    @staticmethod
    def row_major(sizes: tuple[int, ...], offset: int = 0) -> Layout:
        """Layout of adjacent elements in the order of the dimensions."""
        strides = tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))
        return Layout(sizes, strides, offset)

    @property
    def is_row_major(self) -> bool:
        """True if the elements are adjacent in the order of the dimensions, at any offset."""
        expected = 1
        for size, stride in zip(self.sizes[::-1], self.strides[::-1], strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def packed(self) -> Layout:
        """Dense layout with the elements in this layout's order of memory."""
        strides, expected = dict.fromkeys(range(len(self.sizes)), 1), 1
        for d in sorted(strides, key=lambda d: (self.strides[d], -d)):
            strides[d] = expected
            expected *= self.sizes[d]
        return Layout(self.sizes, tuple(strides.values()))

    def __str__(self) -> str:
        offset = f"+{self.offset}" if self.offset else ""
        return f"{list(self.sizes)}/{list(self.strides)}{offset}".replace(" ", "")


def span(layout: Layout) -> int:
    """Number of elements of memory from the first to the last element, both included."""
    if layout.numel == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(layout.sizes, layout.strides, strict=True))
