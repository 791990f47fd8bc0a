"""Running sums and products along rows, whose elements a kernel has in registers."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import OverDims


@dataclass(eq=False)
class Scan(OverDims):
    """Sums or products of the elements of each row up to and including each element; kind: "cumsum" or "cumprod".

    Rows are along the only dimension, whose elements are adjacent. The result has the input's layout, in fp32 or fp64.

    Args:
        is_reversed: from each element to the row's end instead.
    """

    is_reversed: bool

    def text(self) -> str:
        return f"{self.kind}{' reversed' if self.is_reversed else ''}({self.input}, over={list(self.over)})"
