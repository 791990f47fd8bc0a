"""Run the graphs of AOTAutograd by plans: by one, by a plan for each tuple of sizes, or by plans of their parts."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from ...runtime import aten
from ..analysis.report import Report, joined, report_of_calls
from ..ir.fake_tensors import Unsupported
from ..ir.stages import attempted
from ..lowering.split import Subgraph, is_whole, split
from .compiled import Compiled, Uncached
from .dynamic import Dynamic, MakePlan
from .executable import Executable
from .partial_plan import ByPyTorch, PartialPlan, plan_inner_graphs, warning_of_calls
from .static_sizes import depends_on_sizes, is_nested_int


def run_graph(module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None) -> Compiled:
    """Run a graph of AOTAutograd's by a plan, or by a plan for each tuple of sizes if they are symbolic."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op in ("placeholder", "call_function")]
    if any(node.users for node in module.graph.find_nodes(op="placeholder") if is_nested_int(node.meta.get("val"))):
        return _without_plan(module, Unsupported("it reads the number that stands for a jagged tensor's lengths"))
    if any(map(depends_on_sizes, values)):
        return Dynamic(module, plan, planned, report)
    return planned(plan, module, report)


def planned(
    plan: MakePlan,
    module: GraphModule,
    report: Callable[[Report], Any] | None,
    sized: Callable[[], GraphModule] | None = None,
) -> Compiled:
    """The graph's executable. If no plan can compute all of it: a partial plan, or a function that runs it by PyTorch's
    operators, with a warning.

    Args:
        sized: gives the graph with the sizes that it is planned for; None if its sizes are numbers.
    """
    try:
        if aten.library is None:
            raise Unsupported(aten.missing)
        result = attempted(lambda: _plan_or_split(plan, module, sized), module)
    except Unsupported as why:
        return _without_plan(module, why)
    if isinstance(result, tuple):
        return _partial(plan, *result, report)
    result.report_to(report)
    return result


def _without_plan(module: GraphModule, why: Unsupported) -> Compiled:
    warnings.warn(f"a graph runs without a plan, by PyTorch's operators: {why}", stacklevel=3)
    module.recompile()  # the stages change graphs only
    return Uncached(lambda values: _by_pytorch(module, values))


def _plan_or_split(
    plan: MakePlan, module: GraphModule, sized: Callable[[], GraphModule] | None
) -> Executable | tuple[GraphModule, list[Subgraph]]:
    """The graph's executable, or the graph of known sizes and its subgraphs."""
    module = sized() if sized else module
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
    runs: list[Compiled] = []
    for subgraph in subgraphs:
        if subgraph.is_planned:
            runs.append(planned(plan, subgraph.module, append))
        else:
            plan_inner_graphs(subgraph.module, run_inner)
            runs.append(ByPyTorch(subgraph, subgraphs))
            reports.append(report_of_calls(subgraph.operators))
    result = PartialPlan(module, subgraphs, runs, warning_of_calls(subgraphs), joined(reports) if report else None)
    result.tell(report)
    return result
