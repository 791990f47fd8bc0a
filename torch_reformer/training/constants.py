"""Numbers that a function has from elsewhere, and that are constants of a plan in which it is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from .update import Untraceable

_NUMBERS = int, float, complex, str, type(None), torch.dtype
_TRUSTED = "torch", "math", "builtins", "typing", "functools", "itertools"


def constants_of(function: Callable, known: tuple[Callable, ...] = ()) -> Iterator[Any]:
    """Numbers and strings in closures, defaults and globals that a function and those that it calls read.

    Args:
        known: functions that call this one, whose numbers are not given again.

    Raises:
        Untraceable: they may read anything else, such as attributes of an object, which may change unnoticed.
    """
    values, is_trusted = _values(function)
    known = (*known, function)
    for value in values:
        if isinstance(value, _NUMBERS):
            yield value
        elif isinstance(value, (FunctionType, functools.partial)):
            if value not in known:
                yield from constants_of(value, known)
        elif not is_trusted and not _is_constant(value):
            raise Untraceable(f"a function reads an object of the type {type(value).__name__}")


def _values(function: Callable) -> tuple[list, bool]:
    """All that a function has from elsewhere, and if it is PyTorch's."""
    if isinstance(function, functools.partial):
        return [function.func, *function.args, *function.keywords.values()], False
    if not isinstance(function, FunctionType):
        raise Untraceable(f"a {type(function).__name__} is no plain function")
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if _is_of_trusted(function.__globals__.get("__name__")):
        return values, True
    read = [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    return [*values, *read], False


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and those inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_constant(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return _is_of_trusted(value.__name__)
    return isinstance(value, BuiltinFunctionType) or (isinstance(value, type) and _is_of_trusted(value.__module__))


def _is_of_trusted(module: str | None) -> bool:
    return (module or "").split(".")[0] in _TRUSTED
