"""How elements lie in memory."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Sizes and strides of dimensions, and where the first element lies, all counted in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @functools.cached_property  # the planner asks some 100,000 times
    def numel(self) -> int:
        return math.prod(self.sizes)

    @functools.cached_property
    def elements(self) -> int:
        """Without those that are repeated."""
        return math.prod(n for n, s in zip(self.sizes, self.strides, strict=True) if s)

    def in_memory_order(self) -> list[tuple[int, int]]:
        """Sizes and strides of the dimensions that have more than one element, the outermost first."""
        pairs = [(size, stride) for size, stride in zip(self.sizes, self.strides, strict=True) if size != 1]
        return sorted(pairs, key=lambda pair: -pair[1])

    def matches(self, other: Layout) -> bool:
        """Whether each element has the same place in both, counted from the first."""
        strides = zip(self.sizes, self.strides, other.strides, strict=False)
        return self.sizes == other.sizes and all(a == b for size, a, b in strides if size != 1)

    @functools.cached_property
    def is_dense(self) -> bool:
        """Whether it has every element of its memory once."""
        expected = 1
        for size, stride in reversed(self.in_memory_order()):
            if stride != expected:
                return False
            expected *= size
        return self.offset == 0

    @staticmethod
    def row_major(sizes: tuple[int, ...], offset: int = 0) -> Layout:
        """Adjacent elements, in the order of the dimensions."""
        strides = tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes)))
        return Layout(sizes, strides, offset)

    @property
    def is_row_major(self) -> bool:
        """Whether its elements are adjacent in the order of the dimensions."""
        expected = 1
        for size, stride in zip(self.sizes[::-1], self.strides[::-1], strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def packed(self) -> Layout:
        """The same order of memory without what lies between the elements."""
        strides, expected = dict.fromkeys(range(len(self.sizes)), 1), 1
        for d in sorted(strides, key=lambda d: (self.strides[d], -d)):
            strides[d] = expected
            expected *= self.sizes[d]
        return Layout(self.sizes, tuple(strides.values()))

    def __str__(self) -> str:
        offset = f"+{self.offset}" if self.offset else ""
        return f"{list(self.sizes)}/{list(self.strides)}{offset}".replace(" ", "")


def span(layout: Layout) -> int:
    """Elements from the first to the last."""
    if layout.numel == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(layout.sizes, layout.strides, strict=True))
