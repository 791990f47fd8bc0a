"""Windows along an axis, as of im2col and Tensor.unfold."""

from __future__ import annotations

from typing import NamedTuple

from .axis_map import AxisMap


class Windows(NamedTuple):
    """Windows along an axis of so many elements, and which elements they have."""

    size: int
    taps: int
    dilation: int
    padding: int
    step: int

    @property
    def count(self) -> int:
        """Number of windows."""
        return (self.size + 2 * self.padding - self.dilation * (self.taps - 1) - 1) // self.step + 1

    @property
    def elements(self) -> int:
        """Elements of all windows."""
        return self.taps * self.count

    def map(self) -> AxisMap:
        """The map from the axis to the windows' elements: those of all windows at one place follow one another."""
        places = (tap * self.dilation + i * self.step for tap in range(self.taps) for i in range(self.count))
        return AxisMap.choosing(self.size, (place - self.padding for place in places))
