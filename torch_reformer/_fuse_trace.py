"""Traces a module's forward with torch.fx, or says why a trace would not do what the forward does."""

from __future__ import annotations

import dis
import inspect
import operator
import types
from collections.abc import Callable

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import nn as nn_of_ours
from ._fuse_calls import hooks

IN_PLACE_OPERATORS = {
    getattr(operator, f"i{name}") for name in "add sub mul matmul truediv floordiv mod pow and or xor".split()
} | {operator.setitem}


class _Proxy(fx.Proxy):
    """Stands for a traced value. Of fx's own, `a += b` would be traced as `a = a + b`."""


def _in_place(operation: Callable) -> Callable:
    return lambda self, other: self.tracer.create_proxy("call_function", operation, (self, other), {})


for _operation in IN_PLACE_OPERATORS - {operator.setitem}:
    setattr(_Proxy, f"__{_operation.__name__}__", _in_place(_operation))


class _Tracer(fx.Tracer):
    """Goes into modules whose forward is the same at every call and does nothing that a trace would lose: not those of
    this package, not those whose forward is not their class's, and not those with hooks."""

    proxy_buffer_attributes = True  # what is done with buffers is traced, not done

    def trace(self, root, concrete_args=None):
        with torch.enable_grad(), _NoTensors():
            self.modes = _modes()
            return super().trace(root, concrete_args)

    def create_node(self, *args, **kwargs):
        if _modes() != self.modes:
            raise ValueError("it switches gradients or autocast on or off")
        return super().create_node(*args, **kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        known = super().is_leaf_module(module, name) or isinstance(module, (nn.Conv2d, nn.Linear))
        return known or is_ours(module) or _reason_not_to_trace(module) is not None or hooks(module) is not None


def _modes() -> tuple:
    autocast = [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


class _NoTensors(TorchDispatchMode):
    """What is computed from no input would be the same at every call of a trace."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        raise ValueError(f"it makes tensors of its own ({op})")


def is_ours(module: nn.Module) -> bool:
    return type(module).__module__ == nn_of_ours.__name__


# Names in a forward's code, and what it does with them that is decided anew at each call.
_DECIDED_AT_EACH_CALL = {
    "training": "asks whether it is in training",
    "is_grad_enabled": "asks whether there are gradients",
    "isinstance": "asks for types",
    "random": "draws random numbers",
    "autocast": "switches autocast on or off",
    "enable_grad": "switches gradients on or off",
    "set_grad_enabled": "switches gradients on or off",
    "checkpoint": "uses checkpointing",
    "checkpoint_sequential": "uses checkpointing",
}


def _reason_not_to_trace(module: nn.Module) -> str | None:
    if "forward" in vars(module):
        return "its forward is not its class's"
    if not inspect.isfunction(type(module).forward):
        return "its forward is no function"
    if hasattr(type(module).forward, "__wrapped__"):
        return "its forward is decorated"
    codes = _codes(type(module).forward, type(module))
    for name, what in _DECIDED_AT_EACH_CALL.items():
        if any(name in code.co_names for code in codes):
            return f"its forward {what}"
    if any(step.opname in ("STORE_ATTR", "STORE_GLOBAL") for code in codes for step in dis.get_instructions(code)):
        return "its forward sets attributes"
    return None


def _codes(function: Callable, kind: type) -> list[types.CodeType]:
    """The code of a forward, and of the module's methods and the other functions of its file that it names."""
    found, functions = [], [function]
    while functions:
        function = inspect.unwrap(functions.pop())
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            if code in found:
                continue
            found.append(code)
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            for name in code.co_names:
                for named in (getattr(kind, name, None), function.__globals__.get(name)):
                    if inspect.isfunction(named) and not str(named.__module__).startswith("torch."):
                        functions.append(named)
    return found


def traced(module: nn.Module) -> tuple[fx.Graph | None, str]:
    """The module's forward, or why it was not traced."""
    if reason := _reason_not_to_trace(module):
        return None, reason
    for parameter in list(inspect.signature(type(module).forward).parameters.values())[1:]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            return None, f"its forward has an argument that may be left out ({parameter.name})"
    try:
        return _Tracer().trace(module), ""
    except Exception as error:  # whatever a model's code does with a traced value
        return None, f"its forward could not be traced: {str(error).splitlines()[0] if str(error) else repr(error)}"
