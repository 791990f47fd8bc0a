"""Traces a module's forward with torch.fx, or says why a trace would not do what the forward does."""

from __future__ import annotations

import builtins
import dis
import inspect
import operator
import types
from collections.abc import Callable, Iterator

import torch
from torch import fx, nn

from .. import nn as nn_of_ours
from ..operators.dispatch import TorchDispatchMode
from .calls import OWN_FORWARD, reason_to_call
from .guard import Reads

IN_PLACE_OPERATORS = {
    getattr(operator, f"i{name}") for name in "add sub mul matmul truediv floordiv mod pow and or xor".split()
} | {operator.setitem}


class _Proxy(fx.Proxy):
    """A traced value. With fx's own proxy, `a += b` would be traced as `a = a + b`."""


def _in_place(operation: Callable) -> Callable:
    return lambda self, other: self.tracer.create_proxy("call_function", operation, (self, other), {})


for _operation in IN_PLACE_OPERATORS - {operator.setitem}:
    setattr(_Proxy, f"__{_operation.__name__}__", _in_place(_operation))


class _Tracer(fx.Tracer):
    """Goes into modules whose forward is the same at every call and does nothing that a trace would lose: not those of
    this package, and not those that have to be called themselves."""

    proxy_buffer_attributes = True  # what is done with buffers is traced, not done

    def __init__(self, reads: Reads):
        super().__init__()
        self.reads = reads

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
        if known or is_ours(module) or _reason_not_to_trace(module) or reason_to_call(module):
            return True
        self.reads.traced.append(module)
        return False


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
        return OWN_FORWARD
    if not inspect.isfunction(type(module).forward):
        return "its forward is no function"
    if hasattr(type(module).forward, "__wrapped__"):
        return "its forward is decorated"
    found = _codes(type(module).forward, module)
    codes = [code for code, _ in found]
    for name, what in _DECIDED_AT_EACH_CALL.items():
        if any(name in code.co_names for code in codes):
            return f"its forward {what}"
    steps = {step.opname for code in codes for step in dis.get_instructions(code)}
    if steps & {"STORE_ATTR", "STORE_GLOBAL"}:
        return "its forward sets attributes"
    if "IMPORT_NAME" in steps:
        return "its forward imports"
    for code, function in found:
        for name, value in _from_outside(code, function):
            if not _is_the_same_at_every_call(value):
                return f"its forward reads {name}, a global {type(value).__name__}"
    return None


def _codes(function: Callable, module: nn.Module) -> list[tuple[types.CodeType, types.FunctionType]]:
    """The code of a forward, and of the module's methods and the other functions that it names; and whose it is."""
    found, functions = [], [function]
    own = [vars(module), *map(vars, type(module).__mro__)]
    while functions:
        function = inspect.unwrap(functions.pop())
        codes = [function.__code__]
        while codes:
            code = codes.pop()
            if (code, function) in found:
                continue
            found.append((code, function))
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            named = [names[name] for name in code.co_names for names in own if name in names]
            for each in [*named, *(value for _, value in _from_outside(code, function))]:
                each = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
                if inspect.isfunction(each) and not str(each.__module__).startswith("torch."):
                    functions.append(each)
    return found


def _from_outside(code: types.CodeType, function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """The globals that a function's code reads, and what it reads of the function that it is written in."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval, function.__globals__.get(step.argval, vars(builtins).get(step.argval))
    if code is function.__code__:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield name, cell.cell_contents


def _is_the_same_at_every_call(value) -> bool:
    """Whether it is a function, a class or a module, and none that may draw numbers, read a clock or hold settings."""
    if isinstance(value, types.FunctionType):
        return True
    if isinstance(value, types.BuiltinFunctionType):
        value = value.__self__
    if isinstance(value, types.ModuleType):
        home = value.__name__
    else:
        home = value.__module__ if isinstance(value, type) else ""
    is_module = isinstance(value, type) and issubclass(value, nn.Module)
    return is_module or home.partition(".")[0] in ("torch", "builtins", "math", "operator", "_operator")


def traced(module: nn.Module, reads: Reads) -> tuple[fx.Graph | None, str]:
    """The module's forward, or why it was not traced. reads: gets what it reads of modules."""
    if reason := _reason_not_to_trace(module):
        return None, reason
    for parameter in list(inspect.signature(type(module).forward).parameters.values())[1:]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            return None, f"its forward has an argument that may be left out ({parameter.name})"
    try:
        with reads:
            graph = _Tracer(reads).trace(module)
    except Exception as error:  # whatever a model's code does with a traced value
        return None, f"its forward could not be traced: {str(error).splitlines()[0] if str(error) else repr(error)}"
    reason = reads.reason_to_leave()
    return (None, reason) if reason else (graph, "")
