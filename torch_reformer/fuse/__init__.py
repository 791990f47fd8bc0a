"""Fusion by patterns over a model's modules. Frozen: the graph compiler replaces it."""

from .fusion import Fusion, fuse

__all__ = ["Fusion", "fuse"]
