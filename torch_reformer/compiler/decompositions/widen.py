"""The data type in which decompositions of several operations compute: that of programs."""

from __future__ import annotations

from torch import Tensor

from ...program.interpreter import computed_type


def wide(tensor: Tensor) -> Tensor:
    """The tensor in fp32, or in fp64 if that is its type."""
    return tensor.to(computed_type(tensor.dtype))
