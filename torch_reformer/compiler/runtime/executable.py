"""Plans of graphs, as AOTAutograd calls them: with a list of arguments, which is emptied."""

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
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node

from ...operators import run_plan
from ...operators.dispatch import is_observed
from ...runtime import aten
from ...runtime.plan import Plan
from ..analysis.report import Report
from ..codegen.emit_plan import EmittedPlan
from ..fusion.greedy import Fusion
from ..fusion.ilp.planner import IlpSummary
from ..ir.fake_tensors import Unsupported
from ..ir.graph import Call, Graph, View
from ..ir.stages import attempted, has_left_out
from ..lowering.from_fx import SCALE
from .compiled import Compiled, Uncached, reporting
from .precompile import precompile

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # retain_graph=True of the backward that runs
MakePlan = Callable[[GraphModule], "Executable"]  # raises Unsupported
PLANS = 64  # of one graph with symbols: for so many different sizes


class Executable(Compiled):
    """A planned graph, ready to run once it was started (:meth:`start`), here or where PyTorch's cache had it.

    graph, fusion: what was planned. They stay with the process that planned it. planned: what integer programming said
    of the fusion. emitted: the plan. constants: tensors that the plan takes after the graph's own."""

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
        self._given = [place for place, node in enumerate(inputs) if isinstance(node.meta["val"], Tensor)]
        self._all_given = len(self._given) == len(inputs)
        self._count = len(graph.output_views())
        self._fixed = [None if isinstance(each, View) else (each,) for each in graph.outputs]
        self._views = _views(graph)
        self._scaled = _scaled(graph)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("graph", "fusion", "_number")}

    def prepare_for_serialization(self) -> None:
        if has_left_out():  # a later process may do better, and is to warn else
            raise BypassAOTAutogradCache("an internal error left out a part of a plan")

    def is_loaded(self) -> None:
        self.start()
        self.report_to(reporting())

    def start(self) -> None:
        """Compile the plan's kernels."""
        precompile(self.emitted)
        self._number = self.plan.number

    def report_to(self, report: Callable[[Report], Any] | None) -> None:
        if report is not None:
            report(self._report)

    @property
    def plan(self) -> Plan:
        return self.emitted.plan

    def with_plan(self, plan: Plan) -> Executable:
        """The same with another plan, which takes and gives the same tensors."""
        other = copy.copy(self)
        other.emitted, other._number = dataclasses.replace(self.emitted, plan=plan), plan.number
        return other

    def __call__(self, args: list) -> list:
        tensors = args if self._all_given else [args[place] for place in self._given]
        if tensors is not args:
            args.clear()
        if self._scaled and keeps_graph():
            for place in self._scaled:
                tensors[place] = tensors[place].clone()
        if self.constants:
            tensors.extend(self.constants)
        if is_observed():
            found = run_plan.step_by_step(self.plan, tensors)
        else:
            found = aten.library.run_plan(self._number, tensors, self._count, self._views)
        if self._count == len(self._fixed):
            return found
        left = iter(found)
        return [next(left) if each is None else each[0] for each in self._fixed]


def _views(graph: Graph) -> list[tuple[int, int]]:
    """Outputs that are views of an input or of an output before them, with that tensor's place among both. Inputs that
    are outputs as they are stay the same tensors."""
    places = {value: place for place, value in enumerate(graph.inputs)}
    found = []
    for place, view in enumerate(graph.output_views(), len(graph.inputs)):
        base = places.setdefault(view.value, place)
        if base != place and not (base < len(graph.inputs) and view.layout == view.value.layout):
            found.append((place - len(graph.inputs), base))
    return found


def _scaled(graph: Graph) -> list[int]:
    """Inputs that a backward scales in place: the forward saved them for this."""
    scaled = [each for each in graph.operations if isinstance(each, Call) and each.operator is SCALE]
    written = {value for each in scaled for value in each.writes}
    return [place for place, value in enumerate(graph.inputs) if value in written]


def _is_symbolic(value) -> bool:
    if isinstance(value, Tensor):
        return not all(isinstance(each, int) for each in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


class Dynamic:
    """A graph with symbols for sizes: an executable for each tuple of sizes that it is called with."""

    def __init__(self, module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None):
        self.module, self.plan, self.report = module, plan, report
        self._plans = functools.lru_cache(PLANS)(self._planned)

    def __call__(self, args: list) -> list:
        # Numbers by their texts: -0.0 equals 0.0, and NaN no number.
        key = tuple((each.shape, each.stride()) if isinstance(each, Tensor) else repr(each) for each in args)
        key = _Key(key, args)
        plan = self._plans(key)
        key.args = None  # which may be the plan's key from now on, and would hold tensors
        return plan(args)

    def _planned(self, key: _Key) -> Compiled:
        return planned(lambda: self.plan(static(self.module, key.args)), self.module, self.report)


class _Key:
    """Equal for arguments of equal sizes and numbers."""

    def __init__(self, key: tuple, args: list):
        self.key, self.args = key, list(args)

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def static(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """The same graph, with what its nodes give for arguments of these sizes."""
    sized = GraphModule(module, copy.deepcopy(module.graph))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, torch.no_grad():
            given = [mode.from_tensor(each) if isinstance(each, Tensor) else each for each in args]
            _Sizes(sized).run(*given)
    except (RuntimeError, DynamicOutputShapeException, DataDependentOutputException) as error:
        raise Unsupported(f"sizes are not known before it runs: {error}") from error
    return sized


class _Sizes(Interpreter):
    def run_node(self, node: Node):
        node.meta["val"] = super().run_node(node)
        return node.meta["val"]


def planned(make: Callable[[], Executable], module: GraphModule, report: Callable[[Report], Any] | None) -> Compiled:
    """What it makes, or the graph as PyTorch has it where no plan computes it, with a warning."""
    try:
        if aten.library is None:
            raise Unsupported(aten.missing)
        found = attempted(make, module)
    except Unsupported as why:
        warnings.warn(f"a graph runs as PyTorch has it, without a plan: {why}", stacklevel=2)
    else:
        found.report_to(report)
        return found

    def run(args: list) -> list:
        given = list(args)
        args.clear()
        return module.forward(*given)

    return Uncached(run)


def run_graph(module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None) -> Compiled:
    """Run a graph of AOTAutograd's by a plan, or by one for each of its sizes."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op in ("placeholder", "call_function")]
    flat = [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]
    if any(map(_is_symbolic, flat)):
        return Uncached(Dynamic(module, plan, report))
    return planned(lambda: plan(module), module, report)
