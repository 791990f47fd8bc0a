"""Plans of graphs, as AOTAutograd calls them: with a list of arguments, which is emptied."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ..runtime import aten
from .capture import Unsupported, capture
from .in_place import write_in_place
from .ir import View
from .lower import Cyclic, lower
from .passes import PASSES
from .recompute import recompute
from .regions import Grouping
from .report import Report, report_of

PLANS = 64  # of one graph with symbols: for so many different sizes


class Executable:
    """A graph whose sizes are known, ready to run."""

    def __init__(self, module: GraphModule, report: Callable[[Report], Any] | None = None):
        self.graph, self.constants = capture(module)
        for change in PASSES:
            change(self.graph)
        self.grouping = Grouping(self.graph)
        self.grouping.run()
        recompute(self.grouping)
        write_in_place(self.grouping)
        try:
            self.plan = lower(self.graph, self.grouping)
        except Cyclic:
            raise Unsupported("what the graph changes in place is needed before and after") from None
        if report is not None:
            report(report_of(self.graph, self.grouping))
        self._number = self.plan.number
        self._given = [
            place
            for place, node in enumerate(module.graph.find_nodes(op="placeholder"))
            if isinstance(node.meta["val"], Tensor)
        ]
        self._all_given = len(self._given) == len(module.graph.find_nodes(op="placeholder"))
        self._count = len(self.graph.output_views())
        self._fixed = [None if isinstance(each, View) else (each,) for each in self.graph.outputs]

    def __call__(self, args: list) -> list:
        tensors = args if self._all_given else [args[place] for place in self._given]
        if tensors is not args:
            args.clear()
        if self.constants:
            tensors.extend(self.constants)
        found = aten.library.run_plan(self._number, tensors, self._count)
        if self._count == len(self._fixed):
            return found
        left = iter(found)
        return [next(left) if each is None else each[0] for each in self._fixed]


def _is_symbolic(value) -> bool:
    if isinstance(value, Tensor):
        return not all(isinstance(each, int) for each in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


class Dynamic:
    """A graph with symbols for sizes: an Executable for each sizes that it is called with."""

    def __init__(self, module: GraphModule, report: Callable[[Report], Any] | None):
        self.module, self.report = module, report
        self._plans = functools.lru_cache(PLANS)(self._planned)

    def __call__(self, args: list) -> list:
        key = tuple((each.shape, each.stride()) if isinstance(each, Tensor) else each for each in args)
        run, tensors = self._plans(_Key(key, args)), [each for each in args if isinstance(each, Tensor)]
        args.clear()
        return run(tensors)

    def _planned(self, key: _Key) -> Executable:
        with torch.no_grad():
            return Executable(static(self.module, key.args), self.report)


class _Key:
    """Equal for arguments of equal sizes and numbers."""

    def __init__(self, key: tuple, args: list):
        self.key, self.args = key, list(args)

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def static(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """The graph of those arguments that are tensors, for their sizes and the other arguments."""

    def of_tensors(*tensors):
        left = iter(tensors)
        return module(*(next(left) if isinstance(each, Tensor) else each for each in args))

    return make_fx(of_tensors, tracing_mode="fake")(*(each for each in args if isinstance(each, Tensor)))


def executable(module: GraphModule, report: Callable[[Report], Any] | None) -> Callable[[list], list]:
    """What runs the graph. report: gets a report of each plan.

    Raises:
        Unsupported: with a sentence, where no plan computes the graph.
    """
    values = [node.meta.get("val") for node in module.graph.nodes if node.op in ("placeholder", "call_function")]
    flat = [each for value in values for each in (value if isinstance(value, (list, tuple)) else [value])]
    return (Dynamic if any(map(_is_symbolic, flat)) else Executable)(module, report)
