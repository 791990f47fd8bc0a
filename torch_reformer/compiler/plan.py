"""What the compiler makes of a model's training step: kernels, bytes and expected times on a GPU, which need not be
there; or measured times, where it runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .cost import GPUS
from .report import Report, report_of

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def planned(function: Callable, inputs: tuple, gpu: str | None = None) -> list[Report]:
    """Reports of the forward and the backward of a function of these tensors, on which nothing is computed. A module's
    parameters are its own.

    Args:
        gpu: that times are expected of, as cost.GPUS has it, such as ``sm_90``.
    """
    from .execute import Executable
    from .fakes import fake_tensors

    found = []

    def compiled(module, _):
        executable = Executable(module, gpu=gpu)
        found.append(report_of(executable.graph, executable.grouping, gpu, executable.planned))
        return module.forward

    with fake_tensors() as fake:
        _run(function, inputs, compiled, lambda each: fake(each).requires_grad_(each.requires_grad))
    return found


def measured(function: Callable, inputs: tuple) -> list[Report]:
    """The same reports, with times: each plan runs some times. Parameters get no gradients, but buffers change."""
    from .execute import Executable, gpu_of
    from .measure import measure

    found = []

    def compiled(module, _):
        executable = Executable(module)

        def run(*args):
            times, results = measure(executable, list(args))
            planned = executable.graph, executable.grouping, gpu_of(executable.graph), executable.planned
            found.append(report_of(*planned, times))
            return results

        return run

    _run(function, inputs, compiled, lambda each: each.detach().requires_grad_(each.requires_grad))
    return found


def _run(function: Callable, inputs: tuple, compiled: Callable, tensor: Callable[[Tensor], Tensor]) -> None:
    """Forward and backward of what `tensor` gives for the function's tensors."""
    from .backend import compile_graphs  # with Dynamo, which takes seconds to import

    tensors = dict(function.named_parameters()) | dict(function.named_buffers()) if _is_module(function) else {}
    with _uncompiled(function):
        own = [tensor(each) for each in tensors.values()]
        given = [tensor(each) if isinstance(each, Tensor) else each for each in inputs]

        def call(*flat):
            values, given = dict(zip(tensors, flat, strict=False)), flat[len(tensors) :]
            return torch.func.functional_call(function, values, given) if tensors else function(*given)

        results = tree_leaves(compile_graphs(call, compiled)(*own, *given))
        differentiable = [each for each in results if isinstance(each, Tensor) and each.requires_grad]
        torch.autograd.backward(differentiable, list(map(torch.ones_like, differentiable)))


@contextlib.contextmanager
def _uncompiled(function):
    """Modules that are compiled in place (fuse) are called as they are written."""
    modules = list(function.modules()) if _is_module(function) else []
    compiled = [(each, vars(each).pop("_compiled_call_impl", None)) for each in modules]
    try:
        yield
    finally:
        for module, call in compiled:
            if call is not None:
                module._compiled_call_impl = call


def _is_module(function) -> bool:
    return isinstance(function, torch.nn.Module)


def _imported(name: str) -> Callable:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the model is given as MODULE:FUNCTION, got {name!r}: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODULE:FUNCTION", help="a function that gives a model and a tuple of its inputs"
    )
    parser.add_argument("--device", default="sm_90", choices=GPUS, help="the GPU of which times are expected")
    parser.add_argument("--autocast", choices=_TYPES, help="the data type of torch.autocast around the model")
    parser.add_argument("--measure", action="store_true", help="measure it here, on the device that the model is on")
    parser.add_argument("--channels-last", action="store_true", help="images and filters in channels_last")


def run(options: argparse.Namespace) -> int:
    model, inputs = _imported(options.model)()
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
        inputs = [each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in inputs]
    dtype = _TYPES.get(options.autocast)

    class Cast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *args):
            with torch.autocast(where, dtype=dtype, enabled=dtype is not None):
                return self.model(*args)

    where = next((each.device.type for each in tree_leaves(inputs) if isinstance(each, Tensor)), "cpu")
    reports = measured(Cast(), tuple(inputs)) if options.measure else planned(Cast(), tuple(inputs), options.device)
    for title, report in zip(("forward", "backward"), reports, strict=False):
        print(f"{title}\n{report}\n")
    return 0
