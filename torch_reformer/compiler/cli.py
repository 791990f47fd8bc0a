"""What the compiler makes of a model's training step: kernels, bytes and expected times on a GPU, which need not be
there; or measured times, where it runs. Graphs are those that torch.compile makes: where the model breaks one, it is
said."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map_only

from .analysis import fake_gpu
from .analysis.report import Report, report_of
from .ir.device_model import GPUS
from .ir.fake_tensors import Unsupported, fake_tensors

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions
_WANTED = "a function that gives a model and a tuple of its inputs, or a dict of them by their names"


@dataclasses.dataclass
class Recorded:
    """A graph that torch.compile makes of a function. passes: reports of its forward and, if it has one, of its
    backward, or why there is no plan. broken: where and why it ends before the function does."""

    passes: list[Report | Unsupported]
    broken: str | None

    def reports(self) -> list[Report]:
        """Raises Unsupported where one of them has no plan."""
        for each in self.passes:
            if isinstance(each, Unsupported):
                raise each
        return list(self.passes)


class Stopped(Exception):
    """The function could not be followed to its end; a sentence. graphs: until there."""

    def __init__(self, sentence: str, graphs: list[Recorded]):
        super().__init__(sentence)
        self.graphs = graphs


def planned(function: Callable, inputs: Sequence, gpu: str | None = None) -> list[Report]:
    """Reports of the forward and the backward, of each graph if there are several, of a function of these tensors, on
    which nothing is computed. A module's parameters are its own.

    Args:
        gpu: that times are expected of, as cost.GPUS has it, such as ``sm_90``. The tensors stay where they are.
    """
    return [report for graph in recorded(function, inputs, gpu=gpu) for report in graph.reports()]


def measured(function: Callable, inputs: Sequence) -> list[Report]:
    """Reports with times: each plan runs some times. Parameters get no gradients, but buffers change."""
    return [report for graph in recorded_and_measured(function, inputs) for report in graph.reports()]


def recorded(
    function: Callable,
    inputs: Sequence = (),
    keywords: Mapping[str, Any] | None = None,
    gpu: str | None = None,
    on_gpu: bool = False,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
) -> list[Recorded]:
    """Graphs of a function of these tensors, on which nothing is computed.

    Args:
        on_gpu: as if all tensors were on a GPU (analysis/fake_gpu.py); else where they are.
        autocast: the data type of torch.autocast around the function.
        channels_last: images, volumes and their filters in channels_last.

    Raises:
        Stopped: where the function goes by values, or fails.
    """
    from .pipeline import plan

    def compiled(module: GraphModule, passes: list[Report | Unsupported]) -> Callable:
        try:
            executable = plan(module, gpu=gpu)
            passes.append(report_of(executable.graph, executable.fusion, gpu, executable.planned))
        except Unsupported as why:
            passes.append(why)
        return module.forward

    with fake_tensors() as fake, fake_gpu.answered() if on_gpu else contextlib.nullcontext():

        def tensor(each: Tensor) -> Tensor:
            found = _in_order(fake(each), channels_last)
            if on_gpu:
                found = torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="cuda")
            return found.requires_grad_(each.requires_grad)

        return _graphs(function, inputs, keywords or {}, autocast, compiled, tensor)


def recorded_and_measured(
    function: Callable,
    inputs: Sequence = (),
    keywords: Mapping[str, Any] | None = None,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
) -> list[Recorded]:
    """Graphs of a function of these tensors, whose plans run, and are measured."""
    from .pipeline import gpu_of, plan
    from .runtime.measure import measure

    def compiled(module: GraphModule, passes: list[Report | Unsupported]) -> Callable:
        place = len(passes)
        try:
            executable = plan(module)
        except Unsupported as why:
            passes.append(why)
            return module.forward
        passes.append(report_of(executable.graph, executable.fusion, gpu_of(executable.graph), executable.planned))

        def run(*args):
            times, results = measure(executable, list(args))
            what = executable.graph, executable.fusion, gpu_of(executable.graph), executable.planned
            passes[place] = report_of(*what, times)
            return results

        return run

    def tensor(each: Tensor) -> Tensor:
        return _in_order(each.detach(), channels_last).requires_grad_(each.requires_grad)

    return _graphs(function, inputs, keywords or {}, autocast, compiled, tensor)


def _in_order(tensor: Tensor, channels_last: bool) -> Tensor:
    last = channels_last and _LAST.get(tensor.dim())
    return tensor.contiguous(memory_format=last) if last else tensor


def _graphs(
    function: Callable,
    inputs: Sequence,
    keywords: Mapping[str, Any],
    autocast: torch.dtype | None,
    compiled: Callable[[GraphModule, list], Callable],
    tensor: Callable[[Tensor], Tensor],
) -> list[Recorded]:
    """Forward and backward of what `tensor` gives for the function's tensors."""
    from .backend import backend_of  # with Dynamo, which takes seconds to import

    graphs: list[Recorded] = []

    def backend(module: GraphModule, given: list) -> Callable:
        reason = module.compile_subgraph_reason
        graphs.append(Recorded([], _broken(reason) if reason and reason.graph_break else None))
        passes = graphs[-1].passes
        return backend_of(lambda each, _: compiled(each, passes))(module, given)

    def call(*args, **named):  # of this module: PyTorch's own forwards, as a Sequential's is, would not be compiled
        return function(*args, **named)

    torch._dynamo.reset()  # a function is compiled anew so many times, and from then on not at all
    args, named = tree_map_only(Tensor, tensor, (tuple(inputs), dict(keywords)))
    with _uncompiled(function), _having(function, tensor) as own:
        tensors = [each for each in tree_leaves((own, args, named)) if isinstance(each, Tensor)]
        where = tensors[0].device.type if tensors else "cpu"
        try:
            with torch.autocast(where, autocast) if autocast else contextlib.nullcontext():
                results = _tensors(torch.compile(call, backend=backend, dynamic=False)(*args, **named))
            differentiable = [each for each in results if each.requires_grad]
            if differentiable:
                torch.autograd.backward(differentiable, list(map(torch.ones_like, differentiable)))
        except Exception as error:
            raise Stopped(_sentence(error), graphs) from error
    return graphs


def _tensors(result) -> list[Tensor]:
    """Those in what a model gives, be it an object with fields."""
    leaves = tree_leaves(result)
    fields = [vars(each) for each in leaves if dataclasses.is_dataclass(each)]
    return [each for each in leaves if isinstance(each, Tensor)] + [
        found for each in fields for found in _tensors(each)
    ]


@contextlib.contextmanager
def _having(function: Callable, tensor: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """A module has these in the place of its parameters and buffers, each once where names share one."""
    if not isinstance(function, nn.Module):
        yield []
        return
    found = {}
    for each in (*function.parameters(), *function.buffers()):
        made = tensor(each)
        found[each] = nn.Parameter(made, each.requires_grad) if isinstance(each, nn.Parameter) else made
    named = [*function.named_parameters(remove_duplicate=False), *function.named_buffers(remove_duplicate=False)]
    with torch.nn.utils.stateless._reparametrize_module(function, {name: found[each] for name, each in named}):
        yield list(found.values())


@contextlib.contextmanager
def _uncompiled(function: Callable) -> Iterator[None]:
    """Modules that are compiled in place (fuse) are called as they are written."""
    modules = list(function.modules()) if isinstance(function, nn.Module) else []
    compiled = [(each, vars(each).pop("_compiled_call_impl", None)) for each in modules]
    try:
        yield
    finally:
        for module, call in compiled:
            if call is not None:
                module._compiled_call_impl = call


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _place(frames: Sequence[traceback.FrameSummary], of_project: bool = False) -> str:
    """The line that was reached in code that is neither PyTorch's nor this package's; of_project: nor installed, if
    there is such a line."""
    folders = tuple(os.path.dirname(each.__file__) + os.sep for each in (torch, sys.modules[__package__], importlib))
    found = [each for each in frames if not each.filename.startswith((*folders, "<"))]
    own = [each for each in found if of_project and "site-packages" not in each.filename] or found
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""


def _broken(reason) -> str:
    """Where and why, from Dynamo's GraphCompileReason."""
    if reason.reason.startswith("generic_jump"):
        why = "a branch goes by a tensor's values"
    else:
        why = _explained(reason.reason)
    return f"{_place(reason.user_stack)}{why}"


def _explained(message: str) -> str:
    """The first line of a message, and what Dynamo explains of it."""
    explained = re.search(r"Explanation: (.*)", message)
    return ": ".join([_first_line(message), *(explained.groups() if explained else ())])


def _sentence(error: Exception) -> str:
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if isinstance(error, BackendCompilerFailed):
        why = f"{type(error.inner_exception).__name__}: {_first_line(error.inner_exception)}"
        return f"a graph could not be planned, which is a fault of torch_reformer's; please report it: {why}"
    place = _place(getattr(error, "real_stack", None) or traceback.extract_tb(error.__traceback__))
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return f"{place}the model goes by a tensor's values, which only --measure has ({error.func})"
    of_operator = re.search(r"got (\w+)\((['\"])(.*)\2\)", str(error))  # in Dynamo's words
    why = of_operator.expand(r"\1: \3") if of_operator else f"{type(error).__name__}: {_explained(str(error))}"
    return f"{place}the model fails: {why}"


def _imported(name: str) -> Callable:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the model is given as MODULE:FUNCTION, got {name!r}: {error}") from error
    except Exception as error:
        place = _place(traceback.extract_tb(error.__traceback__), of_project=True)
        raise ValueError(f"{place}{module!r} can't be imported: {type(error).__name__}: {error}") from error


def _model_and_inputs(name: str) -> tuple[Callable, Sequence, Mapping[str, Any]]:
    """What that function gives: a model, its inputs, and those that have names."""
    make = _imported(name)
    if isinstance(make, nn.Module) or not callable(make):
        raise ValueError(f"{name} must be {_WANTED}; it is a {type(make).__name__}")
    try:
        found = make()
    except Exception as error:
        place = _place(traceback.extract_tb(error.__traceback__), of_project=True)
        raise ValueError(f"{place}{name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(found, tuple | list):
        raise ValueError(f"{name} must be {_WANTED}; it gives a {type(found).__name__}, and no inputs")
    if len(found) != 2 or not callable(found[0]):
        kinds = ", ".join(type(each).__name__ for each in found)
        raise ValueError(f"{name} must be {_WANTED}; it gives ({kinds})")
    model, inputs = found
    if isinstance(inputs, Mapping):
        return model, (), dict(inputs)
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODULE:FUNCTION", help=_WANTED)
    parser.add_argument("--device", default="sm_90", choices=GPUS, help="the GPU of which times are expected")
    parser.add_argument("--autocast", choices=_TYPES, help="the data type of torch.autocast around the model")
    parser.add_argument("--measure", action="store_true", help="measure it here, on the device that the model is on")
    parser.add_argument(
        "--channels-last", action="store_true", help="images, volumes and their filters in channels_last"
    )


def run(options: argparse.Namespace) -> int:
    if not options.measure and not fake_gpu.begin():
        command = [sys.executable, "-m", "torch_reformer", *options.arguments]
        return subprocess.run(command, env=fake_gpu.environment()).returncode
    model, inputs, keywords = _model_and_inputs(options.model)
    given, options_of_both = (model, inputs, keywords), (_TYPES.get(options.autocast), options.channels_last)
    stopped = None
    try:
        if options.measure:
            graphs = recorded_and_measured(*given, *options_of_both)
        else:
            graphs = recorded(*given, options.device, True, *options_of_both)
    except Stopped as why:
        graphs, stopped = why.graphs, str(why)
    graphs = [each for each in graphs if any(not isinstance(found, Report) or found.lines for found in each.passes)]
    _print(graphs)
    if stopped or not graphs:
        raise ValueError(stopped or "there is no graph to plan: the model computes nothing of its inputs")
    return 0


def _print(graphs: Sequence[Recorded]) -> None:
    for number, graph in enumerate(graphs, 1):
        of = f" of graph {number} of {len(graphs)}" if len(graphs) > 1 else ""
        for title, each in zip(("forward", "backward"), graph.passes, strict=False):
            print(f"{title}{of}\n{each if isinstance(each, Report) else f'no plan, PyTorch runs it: {each}'}\n")
        if graph.broken:
            print(f"graph {number} is broken off: {graph.broken}\n")
    reports = [each for graph in graphs for each in graph.passes if isinstance(each, Report)]
    if len(graphs) > 1:
        us = [each.us for each in reports]
        time = "" if None in us else f" in {sum(us):.0f} us"
        megabytes = sum(each.bytes for each in reports) / 1e6
        print(f"all: {sum(len(each.lines) for each in reports)} kernels and calls move {megabytes:.1f} MB{time}")
