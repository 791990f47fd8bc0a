"""Expressions of Maps, compared as text."""

from __future__ import annotations

from ...program import Program, full, store
from .graph import Map


def expression_of(operation: Map) -> str:
    """The program of a Map as text, by which Maps are compared: their names omit some constants."""
    return str(Program(store(operation.expression(*(full(f"t{i}") for i in range(len(operation.inputs)))))))
