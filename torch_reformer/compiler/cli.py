"""Print what the compiler makes of a model's training step: kernels, bytes and expected times on a GPU, which need not
be there, or times measured on this machine. Graphs are those that torch.compile makes; where the model breaks one off,
the command says so."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from .analysis import fake_gpu
from .analysis.breaks import user_line
from .analysis.page import page
from .analysis.record import RecordedGraph, Stopped, record, record_step
from .analysis.report import Report, joined, report_of, report_of_calls
from .ir.device_model import GPUS
from .ir.fake_tensors import Unsupported, fake_tensors
from .ir.fx_utils import Snapshot
from .lowering.split import Subgraph, is_whole, split
from .lowering.unplanned import why_unplanned

if TYPE_CHECKING:
    from .runtime.executable import Executable

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions
_EXPECTED = "a function that gives a model or training step and a tuple of its inputs, or a dict of them by their names"


def planned(function: Callable, inputs: Sequence, gpu: str | None = None) -> list[Report]:
    """Reports of the forward and the backward of a function (of each of its graphs, if there are several). Nothing is
    computed. If the function is a module, its parameters are planned as such.

    Args:
        gpu: the GPU whose times are predicted, a key of device_model.GPUS such as ``sm_90``. The tensors stay where
            they are.

    Raises:
        Stopped: the function branches on values of tensors, or fails.
        Unsupported: a graph has no plan.
    """
    return [report for graph in recorded(function, inputs, gpu=gpu) for report in graph.reports()]


def measured(function: Callable, inputs: Sequence) -> list[Report]:
    """Reports with measured times: each plan runs several times. Parameters get no gradients, but buffers change."""
    return [report for graph in recorded_and_measured(function, inputs) for report in graph.reports()]


def recorded(
    function: Callable,
    inputs: Sequence = (),
    keywords: Mapping[str, Any] | None = None,
    gpu: str | None = None,
    on_gpu: bool = False,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
) -> list[RecordedGraph]:
    """Graphs of a function, with expected times. Nothing is computed.

    Args:
        gpu: the GPU whose times are predicted, a key of device_model.GPUS.
        on_gpu: record as if all tensors were on a GPU (analysis/fake_gpu.py), instead of where they are.
        autocast: the data type of torch.autocast around the function.
        channels_last: convert images, volumes and their filters to channels_last.

    Raises:
        Stopped: the function branches on values of tensors, or fails.
    """
    from .pipeline import plan

    def reported(subgraph: Subgraph) -> Report:
        if not subgraph.is_planned:
            return report_of_calls(subgraph.operators, gpu, reason=why_unplanned)
        executable = plan(subgraph.module, gpu=gpu)
        return report_of(executable.graph, executable.fusion, gpu, executable.planned, explains=True)

    def compiled(module: GraphModule, passes: list[Report | Unsupported]) -> Callable:
        before = Snapshot(module.graph)
        try:
            passes.append(joined(map(reported, split(module))))
        except Unsupported as why:
            passes.append(why)
        module.graph = before.graph()  # what stages make of it may be right in a plan only
        return module.forward

    with fake_tensors() as fake, fake_gpu.answered() if on_gpu else contextlib.nullcontext():

        def replace(tensor: Tensor) -> Tensor:
            replacement = _in_format(fake(tensor), channels_last)
            if on_gpu:
                sizes, strides = replacement.shape, replacement.stride()
                replacement = torch.empty_strided(sizes, strides, dtype=replacement.dtype, device="cuda")
            return replacement.requires_grad_(tensor.requires_grad)

        return _record(function, inputs, keywords or {}, autocast, compiled, replace)


def recorded_and_measured(
    function: Callable,
    inputs: Sequence = (),
    keywords: Mapping[str, Any] | None = None,
    autocast: torch.dtype | None = None,
    channels_last: bool = False,
) -> list[RecordedGraph]:
    """Graphs of a function, with measured times: their plans run. For arguments and errors see :func:`recorded`."""
    from .pipeline import plan
    from .runtime.partial_plan import PartialPlan

    def compiled(module: GraphModule, passes: list[Report | Unsupported]) -> Callable:
        before = Snapshot(module.graph)
        try:
            subgraphs = split(module)
            parts = [
                _MeasuredPlan(plan(part.module)) if part.is_planned else _MeasuredCalls(part) for part in subgraphs
            ]
        except Unsupported as why:
            passes.append(why)
            module.graph = before.graph()
            return module.forward
        place = len(passes)
        whole = parts[0] if is_whole(module, subgraphs) else PartialPlan(module, subgraphs, parts, None, None)
        passes.append(joined(part.report for part in parts))

        def run(*args):
            results = whole(list(args))
            passes[place] = joined(part.report for part in parts)
            return results

        return run

    def replace(tensor: Tensor) -> Tensor:
        return _in_format(tensor.detach(), channels_last).requires_grad_(tensor.requires_grad)

    return _record(function, inputs, keywords or {}, autocast, compiled, replace)


class _MeasuredPlan:
    """Runs an executable, and has its report."""

    def __init__(self, executable: Executable):
        from .pipeline import gpu_of

        self._executable = executable
        self._subject = executable.graph, executable.fusion, gpu_of(executable.graph), executable.planned
        self.report = report_of(*self._subject, explains=True)

    def __call__(self, args: list) -> list:
        from .runtime.measure import measure

        times, results = measure(self._executable, args)
        self.report = report_of(*self._subject, times, explains=True)
        return results


class _MeasuredCalls:
    """Runs a subgraph by PyTorch's operators, and has its report."""

    def __init__(self, subgraph: Subgraph):
        self._subgraph = subgraph
        self.report = report_of_calls(subgraph.operators, reason=why_unplanned)

    def __call__(self, args: list) -> list:
        from .runtime.measure import measure_calls

        times, results = measure_calls(self._subgraph.module, args)
        self.report = report_of_calls(self._subgraph.operators, measured=times)
        return results


def _in_format(tensor: Tensor, channels_last: bool) -> Tensor:
    last = channels_last and _LAST.get(tensor.dim())
    return tensor.contiguous(memory_format=last) if last else tensor


def _record(
    function: Callable,
    inputs: Sequence,
    keywords: Mapping[str, Any],
    autocast: torch.dtype | None,
    compiled: Callable[[GraphModule, list[Report | Unsupported]], Callable],
    replace: Callable[[Tensor], Tensor],
) -> list[RecordedGraph]:
    if not hasattr(function, "record"):  # else it is a TrainingStep
        return record(function, inputs, keywords, autocast, _backend(compiled), replace)
    if autocast or keywords:
        raise ValueError("a training step takes a batch as a tuple, and torch.autocast inside of its loss")
    return record_step(function, inputs, compiled, replace)


def _backend(compiled: Callable[[GraphModule, list[Report | Unsupported]], Callable]) -> Callable:
    """A backend for :func:`record` that runs what `compiled` gives for each forward and backward of AOTAutograd's."""
    from .backend import backend_of  # imports Dynamo, which takes seconds

    def backend(module: GraphModule, inputs: list, passes: list[Report | Unsupported]) -> Callable:
        return backend_of(lambda graph, _: compiled(graph, passes))(module, inputs)

    return backend


def _imported(name: str) -> Callable:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the model is given as MODULE:FUNCTION, got {name!r}: {error}") from error
    except Exception as error:
        place = user_line(traceback.extract_tb(error.__traceback__), of_project=True)
        raise ValueError(f"{place}{module!r} can't be imported: {type(error).__name__}: {error}") from error


def _model_and_inputs(name: str) -> tuple[Callable, Sequence, Mapping[str, Any]]:
    """The model, its inputs, and its inputs by name, from the function of this name.

    Raises:
        ValueError: there is no such function, it fails, or it gives something else.
    """
    make = _imported(name)
    if isinstance(make, nn.Module) or not callable(make):
        raise ValueError(f"{name} must be {_EXPECTED}; it is a {type(make).__name__}")
    try:
        pair = make()
    except Exception as error:
        place = user_line(traceback.extract_tb(error.__traceback__), of_project=True)
        raise ValueError(f"{place}{name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(pair, tuple | list):
        raise ValueError(f"{name} must be {_EXPECTED}; it gives a {type(pair).__name__}, and no inputs")
    if len(pair) != 2 or not callable(pair[0]):
        kinds = ", ".join(type(part).__name__ for part in pair)
        raise ValueError(f"{name} must be {_EXPECTED}; it gives ({kinds})")
    model, inputs = pair
    if isinstance(inputs, Mapping):
        return model, (), dict(inputs)
    return model, tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODULE:FUNCTION", help=_EXPECTED)
    parser.add_argument("--device", default="sm_90", choices=GPUS, help="the GPU whose times are predicted")
    parser.add_argument("--autocast", choices=_TYPES, help="the data type of torch.autocast around the model")
    parser.add_argument(
        "--measure", action="store_true", help="measure times on this machine, on the device that the model is on"
    )
    parser.add_argument(
        "--channels-last", action="store_true", help="convert images, volumes and their filters to channels_last"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the plan as a page for a browser")


def run(options: argparse.Namespace) -> int:
    if not options.measure and not fake_gpu.begin():
        command = [sys.executable, "-m", "torch_reformer", *options.arguments]
        return subprocess.run(command, env=fake_gpu.environment()).returncode
    model, inputs, keywords = _model_and_inputs(options.model)
    subject, settings = (model, inputs, keywords), (_TYPES.get(options.autocast), options.channels_last)
    stopped = None
    try:
        if options.measure:
            graphs = recorded_and_measured(*subject, *settings)
        else:
            graphs = recorded(*subject, options.device, True, *settings)
    except Stopped as why:
        graphs, stopped = why.graphs, str(why)
    graphs = [graph for graph in graphs if any(not isinstance(one, Report) or one.lines for one in graph.passes)]
    _print(graphs)
    if options.html and graphs:
        device = "this machine" if options.measure else options.device
        options.html.write_text(page(graphs, options.model, device), encoding="utf-8")
    if stopped or not graphs:
        raise ValueError(stopped or "there is no graph to plan: the model computes nothing from its inputs")
    return 0


def _print(graphs: Sequence[RecordedGraph]) -> None:
    for number, graph in enumerate(graphs, 1):
        of_graph = f" of graph {number} of {len(graphs)}" if len(graphs) > 1 else ""
        for title, report in zip(graph.titles, graph.passes, strict=False):
            text = report if isinstance(report, Report) else f"no plan, PyTorch runs it: {report}"
            print(f"{title}{of_graph}\n{text}\n")
        if graph.broken:
            print(f"graph {number} is broken off: {graph.broken}\n")
    reports = [report for graph in graphs for report in graph.passes if isinstance(report, Report)]
    if len(graphs) > 1:
        us = [report.us for report in reports]
        time = "" if None in us else f" in {sum(us):.0f} us"
        megabytes = sum(report.bytes for report in reports) / 1e6
        print(f"all: {sum(len(report.lines) for report in reports)} kernels and calls move {megabytes:.1f} MB{time}")
