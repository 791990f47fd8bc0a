"""Planned graphs, as AOTAutograd calls them: with a list of arguments, which they empty."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch.fx import GraphModule

from ...operators import run_plan
from ...operators.dispatch import is_observed
from ...runtime import aten
from ...runtime.plan import Plan
from ..analysis.report import Report, joined, report_of_calls
from ..codegen.emit_plan import EmittedPlan
from ..fusion.greedy import Fusion
from ..fusion.ilp.planner import IlpSummary
from ..ir.fake_tensors import Unsupported, real_tensors
from ..ir.graph import Call, Graph, View
from ..ir.stages import attempted, has_left_out
from ..lowering.from_fx import SCALE
from ..lowering.split import Subgraph, is_whole, split
from .compiled import Compiled, Uncached, reporting
from .partial_plan import ByPyTorch, PartialPlan, plan_inner_graphs, warn_of_calls
from .precompile import precompile
from .static_sizes import depends_on_sizes, depends_on_values, static

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # True if the backward that runs retains its graph
MakePlan = Callable[[GraphModule], "Executable"]  # raises Unsupported
PLANS = 64  # that one graph with symbolic sizes keeps at a time


class Executable(Compiled):
    """A planned graph. It runs once its kernels are compiled (:meth:`start`), after planning or loading from the cache.

    Attributes:
        graph, fusion: what was planned; only in the process that planned it.
        planned: the outcome of the integer program, if there was one.
        emitted: the plan.
        constants: tensors that the plan takes after the graph's own inputs.
    """

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
        self.graph, self.constants, self.fusion, self.planned, self.emitted = graph, constants, fusion, planned, emitted
        self._report = report
        inputs = module.graph.find_nodes(op="placeholder")
        self._tensors = [place for place, node in enumerate(inputs) if isinstance(node.meta["val"], Tensor)]
        self._has_only_tensors = len(self._tensors) == len(inputs)
        self._count = len(graph.output_views())
        self._fixed = [None if isinstance(output, View) else (output,) for output in graph.outputs]
        self._views = _views(graph, len(graph.inputs) + len(emitted.tables))
        self._scaled = _scaled(graph)

    def __getstate__(self) -> dict[str, Any]:
        left = "graph", "fusion", "tables", "_number"
        return {name: value for name, value in vars(self).items() if name not in left}

    def prepare_for_serialization(self) -> None:
        if has_left_out():  # a later process may be able to plan all of it, and shall warn otherwise
            raise BypassAOTAutogradCache("an internal error left out a part of a plan")

    def is_loaded(self) -> None:
        self.start()
        self.report_to(reporting())

    def start(self) -> None:
        """Compile the plan's kernels."""
        precompile(self.emitted)
        assert len(self.tables) == len(self.emitted.tables)  # made now, as a CUDA graph may be captured next
        self._number = self.plan.number

    def report_to(self, report: Callable[[Report], Any] | None) -> None:
        if report is not None:
            report(self._report)

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
        if self._count == len(self._fixed):
            return results
        rest = iter(results)
        return [next(rest) if fixed is None else fixed[0] for fixed in self._fixed]


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
    written = {value for call in calls if call.operator is SCALE for value in call.writes}
    return [place for place, value in enumerate(graph.inputs) if value in written]


class Dynamic:
    """A graph with symbolic sizes: plans an executable for each tuple of sizes and numbers that it is called with, but
    for those that depend on values, as of what a forward with ``nonzero`` saves: PyTorch runs the operators that read
    them."""

    def __init__(self, module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None):
        self.module, self.plan, self.report = module, plan, report
        self._plans = functools.lru_cache(PLANS)(self._planned)
        inputs = module.graph.find_nodes(op="placeholder")
        self._unknown = {place for place, node in enumerate(inputs) if depends_on_values(node.meta.get("val"))}

    def __call__(self, args: list) -> list:
        # Numbers by their texts, as -0.0 equals 0.0, and NaN equals nothing.
        key = tuple(_sizes(arg) for place, arg in enumerate(args) if place not in self._unknown)
        key = _Key(key, args)
        plan = self._plans(key)
        key.args = None  # the cache may keep this key, which would keep the tensors alive
        return plan(args)

    def _planned(self, key: _Key) -> Compiled:
        return planned(self.plan, self.module, self.report, key.args)


class _Key:
    """Key of a cached plan: equal for arguments of equal sizes and numbers."""

    def __init__(self, key: tuple, args: list):
        self.key, self.args = key, list(args)

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _sizes(arg):
    return (arg.shape, arg.stride()) if isinstance(arg, Tensor) else repr(arg)


def planned(
    plan: MakePlan, module: GraphModule, report: Callable[[Report], Any] | None, args: Sequence[Any] | None = None
) -> Compiled:
    """The graph's executable. If no plan can compute all of it: a partial plan, or a function that runs it by PyTorch's
    operators, with a warning.

    Args:
        args: arguments whose sizes the graph is planned for; None if its sizes are numbers.
    """
    try:
        if aten.library is None:
            raise Unsupported(aten.missing)
        result = attempted(lambda: _plan_or_split(plan, module, args), module)
    except Unsupported as why:
        warnings.warn(f"a graph runs without a plan, by PyTorch's operators: {why}", stacklevel=2)
        module.recompile()  # the stages change graphs only
        return Uncached(lambda values: _by_pytorch(module, values))
    if isinstance(result, tuple):
        return _partial(plan, *result, report)
    result.report_to(report)
    return result


def _plan_or_split(
    plan: MakePlan, module: GraphModule, args: Sequence[Any] | None
) -> Executable | tuple[GraphModule, list[Subgraph]]:
    """The graph's executable, or the graph of known sizes and its subgraphs."""
    module = module if args is None else static(module, args)
    subgraphs = split(module)
    return plan(module) if is_whole(module, subgraphs) else (module, subgraphs)


def _by_pytorch(module: GraphModule, args: list) -> list:
    values = list(args)
    args.clear()
    return module.forward(*values)


def _partial(
    plan: MakePlan, module: GraphModule, subgraphs: list[Subgraph], report: Callable[[Report], Any] | None
) -> PartialPlan:
    """The plans of the graph's subgraphs, and of the graphs that its operators call, and one report of all."""
    reports: list[Report] = []
    append = reports.append if report else None
    run_inner = functools.cache(lambda inner: run_graph(inner, plan, append))
    runs: list[Callable[[list], Any]] = []
    for subgraph in subgraphs:
        if subgraph.is_planned:
            runs.append(planned(plan, subgraph.module, append))
        else:
            plan_inner_graphs(subgraph.module, run_inner)
            runs.append(ByPyTorch(subgraph, subgraphs))
            reports.append(report_of_calls(subgraph.operators))
    warn_of_calls(subgraphs)
    if report:
        report(joined(reports))
    return PartialPlan(module, subgraphs, runs)


def run_graph(module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None) -> Compiled:
    """Run a graph of AOTAutograd's by a plan, or by a plan for each tuple of sizes if they are symbolic."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op in ("placeholder", "call_function")]
    if any(map(depends_on_sizes, values)):
        return Uncached(Dynamic(module, plan, report))
    return planned(plan, module, report)
