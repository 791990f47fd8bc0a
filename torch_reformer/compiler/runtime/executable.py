"""Planned graphs, as AOTAutograd calls them: with a list of arguments, which they empty."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...operators import run_plan
from ...operators.dispatch import is_observed
from ...runtime import aten
from ...runtime.plan import Plan
from ..analysis.report import Report
from ..codegen.emit_plan import EmittedPlan
from ..fusion.greedy import Fusion
from ..fusion.ilp.planner import IlpSummary
from ..ir.custom_ops import scale_in_place
from ..ir.fake_tensors import real_tensors
from ..ir.graph import Call, Graph, View
from .compiled import Compiled, reporting
from .pickled_tensors import Constants
from .precompile import precompile

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # True if the backward that runs retains its graph


class Executable(Compiled):
    """A planned graph. It runs once its kernels are compiled (:meth:`start`), after planning or loading from the cache.

    Attributes:
        graph, fusion: what was planned; only in the process that planned it.
        planned: the outcome of the integer program, if there was one.
        emitted: the plan.
        constants: tensors that the plan takes after the graph's own inputs.
        fixed: for each output of the graph that is no tensor, its value in a tuple; None for tensors.
    """

    _ahead: Future[int] | None = None  # ends when the plan's kernels are compiled

    def __init__(
        self,
        module: GraphModule,
        graph: Graph,
        constants: list[Tensor],
        fusion: Fusion,
        planned: IlpSummary | None,
        emitted: EmittedPlan,
        report: Report | None,
    ):
        super().__init__()
        self.graph, self.fusion, self.planned, self.emitted, self._report = graph, fusion, planned, emitted, report
        self.constants: list[Tensor] = Constants(constants)
        inputs = module.graph.find_nodes(op="placeholder")
        self._tensors = [place for place, node in enumerate(inputs) if isinstance(node.meta["val"], Tensor)]
        self._has_only_tensors = len(self._tensors) == len(inputs)
        self._count = len(graph.output_views())
        self.fixed = [None if isinstance(output, View) else (output,) for output in graph.outputs]
        self._views = _views(graph, len(graph.inputs) + len(emitted.tables))
        self._scaled = _scaled(graph)

    def __getstate__(self) -> dict[str, Any]:
        left = "graph", "fusion", "tables", "_number", "_ahead"
        return {name: value for name, value in vars(self).items() if name not in left}

    def is_loaded(self) -> None:
        self.start()
        self.report_to(reporting())

    def start(self) -> None:
        """Begin to compile the plan's kernels. The next graph is planned meanwhile."""
        self._ahead = precompile(self.emitted)
        assert len(self.tables) == len(self.emitted.tables)  # made now, as a CUDA graph may be captured next
        self._number = self.plan.number

    def report_to(self, report: Callable[[Report], Any] | None) -> None:
        if report is not None:
            report(self._report)

    def note_sizes(self, reason: str | None) -> None:
        """Note in the report why the plan is for one tuple of sizes only."""
        if self._report and reason:
            self._report = dataclasses.replace(self._report, only_for=reason)

    @property
    def plan(self) -> Plan:
        return self.emitted.plan

    @functools.cached_property
    def tables(self) -> list[Tensor]:
        """Constants that the plan takes after these (EmittedPlan.tables)."""
        with real_tensors():
            return [table.tensor().to(table.device) for table in self.emitted.tables]

    def with_plan(self, plan: Plan) -> Executable:
        """A copy with another plan, which has the same inputs and outputs."""
        other = copy.copy(self)
        other.emitted, other._number = dataclasses.replace(self.emitted, plan=plan), plan.number
        return other

    def __call__(self, args: list) -> list:
        if self._ahead is not None:
            self._ahead.result()
            self._ahead = None
        tensors = args if self._has_only_tensors else [args[place] for place in self._tensors]
        if tensors is not args:
            args.clear()
        if self._scaled and keeps_graph():
            for place in self._scaled:
                tensors[place] = tensors[place].clone()
        if self.constants or self.tables:
            tensors.extend(self.constants)
            tensors.extend(self.tables)
        if is_observed():
            results = run_plan.step_by_step(self.plan, tensors)
        else:
            results = aten.library.run_plan(self._number, tensors, self._count, self._views)
        if self._count == len(self.fixed):
            return results
        rest = iter(results)
        return [next(rest) if fixed is None else fixed[0] for fixed in self.fixed]


def _views(graph: Graph, inputs: int) -> list[tuple[int, int]]:
    """Outputs that are views of an input or of an earlier output: pairs of the output's position, and the base's among
    all of the plan's inputs, which are so many, and outputs. An input that is an output unchanged is no view: it stays
    the same tensor."""
    places = {value: place for place, value in enumerate(graph.inputs)}
    views = []
    for place, view in enumerate(graph.output_views(), inputs):
        base = places.setdefault(view.value, place)
        if base != place and not (base < len(graph.inputs) and view.layout == view.value.layout):
            views.append((place - inputs, base))
    return views


def _scaled(graph: Graph) -> list[int]:
    """Positions of inputs that a backward scales in place, for which the forward saved them."""
    calls = [operation for operation in graph.operations if isinstance(operation, Call)]
    written = {call.args[0].value for call in calls if call.operator is scale_in_place}
    return [place for place, value in enumerate(graph.inputs) if value in written]
