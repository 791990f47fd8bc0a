"""FLOP formulas of the operators for PyTorch's torch.utils.flop_counter.FlopCounterMode. Only multiplications with
their additions are counted: PyTorch does not count element-wise operations either."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from . import fake

COUNTER = "torch.utils.flop_counter"
_ops, aten = torch.ops.reformer, torch.ops.aten


def _flops(output: Sequence[int], weight: Sequence[int]) -> int:
    """FLOPs of a convolution in any of its three directions: an element of the output sums the products of one
    filter."""
    return 2 * math.prod(output) * math.prod(weight[1:])


def _conv2d(input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, **_) -> int:
    return _flops(fake.output_size("conv2d", input, weight, stride, padding, dilation, groups), weight)


def _conv2d_epilogue(input, weight, tensors, program, *geometry, **_) -> int:
    return _conv2d(input, weight, None, *geometry)


def _without_types(count: Callable[..., int]) -> Callable[..., int]:
    """A formula of PyTorch's for an operator that may also be called with its result's data type, which the formula
    would take for the result's shape (``bmm.dtype``)."""

    def formula(*args, **kwargs) -> int:
        return count(*(each for each in args if not isinstance(each, torch.dtype)), **kwargs)

    return formula


def _register(counter: Any) -> None:
    registry = counter.flop_registry
    for product in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm):  # plans call them with a type
        registry[product] = _without_types(registry[product])
    counter.register_flop_formula(_ops.conv2d)(_conv2d)
    counter.register_flop_formula(_ops.conv2d_epilogue)(_conv2d_epilogue)
    counter.register_flop_formula(_ops.conv2d_input_grad)(lambda _, weight, grad, *__, **___: _flops(grad, weight))
    counter.register_flop_formula(_ops.conv2d_weight_grad)(lambda weight, _, grad, *__, **___: _flops(grad, weight))


class _WhenImported:
    """Import hook that registers the formulas once the counter is imported. Importing it earlier would import Triton if
    that is installed."""

    def find_spec(self, name: str, path=None, target=None) -> Any:
        if name != COUNTER:
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register(module)

        spec.loader.exec_module = execute_and_register
        return spec


def register() -> None:
    if COUNTER in sys.modules:
        _register(sys.modules[COUNTER])
    else:
        sys.meta_path.insert(0, _WhenImported())
