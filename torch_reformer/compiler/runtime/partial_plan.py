"""Graphs of which plans compute a part, and PyTorch the rest (lowering/split.py)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch.fx import GraphModule, Node

from ..analysis.report import Report
from ..ir.fake_tensors import is_plain
from ..ir.fx_utils import values_of
from ..ir.stages import names_of
from ..lowering.split import Subgraph
from ..lowering.unplanned import why_unknown, why_unplanned
from .compiled import Compiled, reporting
from .pickled_graph import pickled, unpickled
from .pickled_tensors import Constants

hops = torch.ops.higher_order
_CALL_GRAPHS = (hops.cond, hops.while_loop, hops.invoke_subgraph)  # that they take as arguments, with tensors


class PartialPlan(Compiled):
    """Runs the subgraphs of a graph one after the other. Each value is freed after its last use.

    Args:
        runs: of each subgraph, what runs it.
        warning: what the user is told of the graph, also by processes that load it; or None.
        report: of all plans.
    """

    def __init__(
        self,
        module: GraphModule,
        subgraphs: list[Subgraph],
        runs: list[Compiled],
        warning: str | None,
        report: Report | None,
    ):
        super().__init__()
        self.runs, self._warning, self._report = runs, warning, report
        self._has_effects = any(node.target is hops.with_effects for node in module.graph.nodes)
        given = module.graph.find_nodes(op="placeholder")
        (output,) = module.graph.find_nodes(op="output")
        places = {node: place for place, node in enumerate(given)}
        self._steps: list[tuple[Compiled, list[int], slice]] = []
        for run, subgraph in zip(runs, subgraphs, strict=True):
            inputs, first = [places[node] for node in subgraph.inputs], len(places)
            places |= {node: first + i for i, node in enumerate(subgraph.outputs)}
            self._steps.append((run, inputs, slice(first, len(places))))
        self._made = len(places) - len(given)
        self._outputs = Constants(_constant_or_place(module, node, places) for node in output.args[0])
        kept = {place for _, place in self._outputs if place is not None}
        self._frees = _last_uses([inputs for _, inputs, _ in self._steps], kept)

    def prepare_for_serialization(self) -> None:
        super().prepare_for_serialization()
        if self._has_effects:
            raise BypassAOTAutogradCache("PyTorch passes no tokens of effects to graphs that it loads")
        for run in self.runs:
            run.prepare_for_serialization()

    def start(self) -> None:
        for run in self.runs:
            run.start()

    def is_loaded(self) -> None:
        self.start()
        self.tell(reporting())

    def tell(self, report: Callable[[Report], Any] | None) -> None:
        """Give the user the warning and the report."""
        if self._warning:
            warnings.warn(self._warning, stacklevel=2)
        if report and self._report:
            report(self._report)

    def __call__(self, args: list) -> list:
        values = args + [None] * self._made
        args.clear()
        for (run, inputs, outputs), frees in zip(self._steps, self._frees, strict=True):
            given = [values[place] for place in inputs]
            for place in frees:
                values[place] = None
            values[outputs] = run(given)
        return [constant if place is None else values[place] for constant, place in self._outputs]


def _constant_or_place(module: GraphModule, output, places: dict[Node, int]) -> tuple[Any, int | None]:
    """A result of the graph: a constant and None, or None and its place among the values."""
    if not isinstance(output, Node):
        return output, None
    if output.op == "get_attr":
        return getattr(module, output.target), None
    place = places.get(output)
    return (output.meta["val"], None) if place is None else (None, place)


def _last_uses(inputs: list[list[int]], kept: set[int]) -> list[list[int]]:
    """For each step, the places of values that no later step reads."""
    last = {place: step for step, places in enumerate(inputs) for place in places if place not in kept}
    return [[place for place in places if last.get(place) == step] for step, places in enumerate(inputs)]


def warning_of_calls(subgraphs: list[Subgraph]) -> str | None:
    """A warning if PyTorch runs more than half of a graph's operators."""
    operators = [node for subgraph in subgraphs for node in subgraph.operators if _gives_tensors(node)]
    calls = [node for subgraph in subgraphs if not subgraph.is_planned for node in subgraph.operators]
    left_out = [node for node in calls if _gives_tensors(node) and node.target not in _CALL_GRAPHS]
    if len(left_out) * 2 <= len(operators):
        return None
    reasons = ((reason, node) for node in calls if (reason := why_unplanned(node)))
    reason, node = next(reasons, ("they have complex numbers", left_out[0]))
    return (
        f"{len(left_out)} of {len(operators)} operators of a graph run without a plan, by PyTorch's kernels: {reason} "
        f"(in {names_of([node])})"
    )


def _gives_tensors(node: Node) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in values_of(node))


class InnerGraph(nn.Module):
    """A graph that an operator of higher order takes as an argument, run by its plan."""

    def __init__(self, run: Compiled):
        super().__init__()
        self.run = run

    def forward(self, *args):
        return tuple(self.run(list(args)))


def plan_inner_graphs(module: GraphModule, compiled: Callable[[GraphModule], Compiled]) -> None:
    """Run the graphs inside the operators of a graph, such as the branches of a condition, by what `compiled` gives."""
    for node in module.graph.find_nodes(op="get_attr"):
        graph = getattr(module, node.target, None)
        if isinstance(graph, GraphModule) and all(user.target in _CALL_GRAPHS for user in node.users):
            (output,) = graph.graph.find_nodes(op="output")
            if isinstance(output.args[0], (list, tuple)):  # not the condition of a loop
                setattr(module, node.target, InnerGraph(compiled(graph)))


class ByPyTorch(Compiled):
    """A subgraph that PyTorch runs. Results that plans read get the strides that these were made for: fake tensors are
    sometimes wrong about them."""

    def __init__(self, subgraph: Subgraph, subgraphs: list[Subgraph]):
        super().__init__()
        self._module = subgraph.module
        read = {node for other in subgraphs if other.is_planned for node in other.inputs}
        self._layouts = [
            (place, tuple(value.shape), tuple(value.stride()))
            for place, node in enumerate(subgraph.outputs)
            if isinstance(value := node.meta.get("val"), Tensor) and node in read and not why_unknown([value])
        ]

    def __call__(self, args: list) -> list:
        results = list(self._module.forward(args))
        for place, sizes, strides in self._layouts:
            result = results[place]
            if result.shape != sizes or not is_plain(result):
                raise RuntimeError(f"an operator gave another tensor than its fake one of {sizes}: {result}")
            if result.stride() != strides:
                results[place] = torch.empty_strided(sizes, strides, dtype=result.dtype, device=result.device)
                results[place].copy_(result)
        return results

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_module": pickled(self._module, notes=())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._module = unpickled(state["_module"])
        self._module.recompile()

    def start(self) -> None:
        for inner in self._module.modules():
            if isinstance(inner, InnerGraph):
                inner.run.start()
