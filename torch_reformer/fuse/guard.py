"""Guards: what a fused forward was made from, of a model's modules, against what they are now.

A trace fixes which modules there are, that nobody hooks them, and what their forwards, and fuse(), read of them besides
parameters and buffers. All of that is compared at each call.
"""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import types
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))  # hooks, modules, parameters, ...
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_ABSENT = ...  # in a copy it is itself
_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format)
_BY_IDENTITY = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, enum.Enum, nn.Module)


class Reads:
    """Records, while it is entered, which attributes modules are asked for; and what a trace goes into."""

    def __init__(self):
        self.found: dict[tuple[int, str], nn.Module] = {}
        self.traced: list[nn.Module] = []

    def __enter__(self) -> Reads:
        def read(module, name):
            if name not in _OF_EVERY_MODULE and not name.startswith("__"):
                self.found[id(module), name] = module
            return object.__getattribute__(module, name)

        nn.Module.__getattribute__ = read
        return self

    def __exit__(self, *_) -> None:
        del nn.Module.__getattribute__

    def reason_to_leave(self) -> str | None:
        """Why what was read cannot be compared with what it will be."""
        for (_, name), module in self.found.items():
            value = vars(module).get(name, _ABSENT)
            if value is not _ABSENT and not isinstance(value, Tensor) and not _can_be_held(value):
                return f"its forward reads {name}, a {type(value).__name__}, which may change"
            if value is _ABSENT and _is_data_of_class(type(module), name):
                return f"its forward reads {name}, which its class has"
        return None

    def values(self) -> Iterator[tuple[nn.Module, str, str, object]]:
        """Module, name of a dictionary of its, key and value of what a trace fixes: not what a fused forward reads
        itself, which are tensors and modules."""
        for (_, name), module in self.found.items():
            for of in ("_parameters", "_buffers", "_modules"):
                if name in vars(module)[of]:
                    if vars(module)[of][name] is None:
                        yield module, of, name, None
                    break
            else:
                value = vars(module).get(name, _ABSENT)
                is_method = value is _ABSENT and hasattr(nn.Module, name)
                if not is_method and not isinstance(value, Tensor):
                    yield module, "__dict__", name, _held(value)


def _can_be_held(value) -> bool:
    if isinstance(value, (list, tuple, set, dict)):
        return all(map(_can_be_held, itertools.chain(value, value.values() if isinstance(value, dict) else ())))
    return type(value) in _CONSTANTS or isinstance(value, _BY_IDENTITY)


def _held(value):
    """The value as it is now, though somebody change it in place."""
    if isinstance(value, dict):
        return {key: _held(each) for key, each in value.items()}
    if isinstance(value, (list, set)):
        return type(value)(map(_held, value))
    return tuple(map(_held, value)) if type(value) is tuple else value


def _is_data_of_class(kind: type, name: str) -> bool:
    """Whether it is an attribute of a class that is not PyTorch's, and no method or the like."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), nn.Module)
    is_pytorchs = owner.__module__.partition(".")[0] == "torch"
    return not is_pytorchs and not hasattr(inspect.getattr_static(kind, name), "__get__")


class Guard:
    """Checks at each call that a module's fused forward is still that of the module.

    Args:
        containers: the module and all inside it that are not called as a whole.
        gone: modules that are no longer called themselves, as they are part of the forward.
        reads: what was read of any of them.
    """

    def __init__(self, containers: Iterable[nn.Module], gone: Iterable[nn.Module], reads: Reads):
        self.containers, self.gone = list(containers), list(dict.fromkeys(gone))
        self.children = [dict(module._modules) for module in self.containers]
        self.types = list(map(type, self.gone))
        read = {(id(module), of, name): (module, of, name, value) for module, of, name, value in reads.values()}
        for module, name in itertools.product(self.gone, ("forward", "_conv_forward")):
            if hasattr(type(module), name):
                read[id(module), "__dict__", name] = module, "__dict__", name, _ABSENT
        self.owners, self.dictionaries, self.names, self.values = (
            [each[i] for each in read.values()] for i in range(4)
        )

    @functools.cached_property
    def _live(self) -> tuple[list[dict], list[dict], list[dict]]:
        """The modules' own dictionaries: a copy's are others."""
        children = [module._modules for module in self.containers]
        hooks = [getattr(module, name) for module in self.gone for name in _HOOKS]
        return children, hooks, list(map(getattr, self.owners, self.dictionaries))

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "_live"}

    @torch.compiler.assume_constant_result  # asked once, when torch.compile traces
    def holds(self) -> bool:
        children, hooks, read = self._live
        try:
            return (
                children == self.children
                and not any(hooks)
                and list(map(type, self.gone)) == self.types
                and list(map(dict.get, read, self.names, itertools.repeat(_ABSENT))) == self.values
            )
        except Exception:  # values that have no truth when they are compared, as tensors have none, are others
            return False

    def holds_for_compiler(self) -> bool:
        """The part of it that torch.compile traces, so that it compiles again for other modules and settings. Later
        hooks it does not notice in any module."""
        for module, children in zip(self.containers, self.children, strict=True):
            if module._modules != children:
                return False
        for module, name, value in zip(self.owners, self.names, self.values, strict=True):
            if value is not _ABSENT and getattr(module, name) != value:
                return False
        return True
