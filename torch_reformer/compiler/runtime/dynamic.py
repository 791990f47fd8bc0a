"""Graphs with symbolic sizes: a plan for each tuple of sizes, made of a template (template.py) where there is one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node

from ...runtime.polynomials import LEAST
from ...runtime.sizes import Symbols
from ..analysis.report import Report
from ..ir.fake_tensors import Unsupported
from ..ir.fx_utils import copied
from ..ir.stages import raises
from .compiled import Compiled, Uncached
from .executable import Executable, planned
from .sized_graph import SymbolicGraph, fits
from .template import Template

_log = logging.getLogger(__name__)
PLANS = 64  # that one graph with symbolic sizes keeps at a time
TEMPLATES = 32  # of one graph
_TRIED = 12  # templates after which there are no more, if each has served one tuple of sizes only


class MakePlan(Protocol):
    def __call__(self, module: GraphModule, starts: bool = True) -> Executable:
        """Plan a graph. Raises Unsupported."""


def _is_symbolic(value) -> bool:
    if isinstance(value, Tensor):
        return not all(isinstance(size, int) for size in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


class Dynamic:
    """A graph with symbolic sizes: an executable for each tuple of sizes and numbers that it is called with.

    Attributes:
        templates: plans over symbols, the last used first.
        reason: why there are no (further) templates, so that each tuple of sizes is planned by itself; or None.
    """

    def __init__(self, module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None):
        self.module, self.plan, self.report = module, plan, report
        self.symbolic, self.templates, self.reason = SymbolicGraph(module), [], None
        self._served = 0  # tuples of sizes by templates of others
        self._plans = functools.lru_cache(PLANS)(self._planned)

    def __call__(self, args: list) -> list:
        # Numbers by their texts, as -0.0 equals 0.0, and NaN equals nothing.
        key = tuple((arg.shape, arg.stride()) if isinstance(arg, Tensor) else repr(arg) for arg in args)
        key = _Key(key, args)
        plan = self._plans(key)
        key.args = None  # the cache may keep this key, which would keep the tensors alive
        return plan(args)

    def _planned(self, key: _Key) -> Compiled:
        if (made := self._of_template(key.args)) is not None:
            return made
        return planned(lambda: self._of_these(key.args), self.module, self.report)

    def _of_these(self, args: Sequence[Any]) -> Executable:
        """An executable for the sizes of these arguments only."""
        executable = self.plan(self._sized(args))
        executable.note_sizes(self.reason)
        return executable

    def _of_template(self, args: Sequence[Any]) -> Executable | None:
        """An executable for these arguments, of a template that serves them or of a new one; None if there is none."""
        sizes = self.symbolic.values(args)
        if min(sizes.values(), default=0) < LEAST:
            return None
        values = tuple(sizes.values())
        for template in self.templates:
            if template.holds(*values) and template.takes(values, args):
                self.templates.remove(template)
                self.templates.insert(0, template)
                self._served += 1
                return template.at(values)
        if self.reason is not None or len(self.templates) == TEMPLATES:
            return None
        try:
            return self._of_new_template(sizes, args)
        except Unsupported as why:
            self.reason = str(why)
        except Exception as error:
            if raises():
                raise
            self.reason = f"an internal error ({type(error).__name__}: {error})"
        _log.info("each tuple of sizes is planned by itself: %s", self.reason)
        return None

    def _of_new_template(self, sizes: dict[str, int], args: Sequence[Any]) -> Executable:
        template, values = self._template(sizes), tuple(sizes.values())
        if not template.takes(values, args):
            raise Unsupported("arguments have other strides than the graph was traced with")
        made = template.started(values)
        made.report_to(self.report)
        self.templates.insert(0, template)
        if len(self.templates) == _TRIED and not self._served:
            self.reason = "tables or other constants depend on the sizes"
        return made

    def _template(self, values: dict[str, int]) -> Template:
        symbols = Symbols(values)
        try:
            module = self.symbolic.at(symbols.sizes())
            return Template(module, self.plan(module, starts=False), symbols)
        finally:
            symbols.close()

    def _sized(self, args: Sequence[Any]) -> GraphModule:
        """The graph with fake values of its nodes for these arguments."""
        try:
            sized = self.symbolic.at(self.symbolic.values(args))
        except Unsupported:
            return interpreted(self.module, args)
        return sized if fits(sized, args) else interpreted(self.module, args)


class _Key:
    """Key of a cached plan: equal for arguments of equal sizes and numbers."""

    def __init__(self, key: tuple, args: list):
        self.key, self.args = key, list(args)

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def interpreted(module: GraphModule, args: Sequence[Any]) -> GraphModule:
    """A copy of the graph with fake values of its nodes for these arguments, computed again.

    Raises:
        Unsupported: a size depends on the values of the arguments.
    """
    sized = GraphModule(module, copied(module.graph))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, torch.no_grad():
            fake = [mode.from_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args]
            _Sizes(sized).run(*fake)
    except (RuntimeError, DynamicOutputShapeException, DataDependentOutputException) as error:
        raise Unsupported(f"the sizes are not known before the graph runs: {error}") from error
    return sized


class _Sizes(Interpreter):
    def run_node(self, node: Node):
        node.meta["val"] = super().run_node(node)
        return node.meta["val"]


def run_graph(module: GraphModule, plan: MakePlan, report: Callable[[Report], Any] | None) -> Compiled:
    """Run a graph of AOTAutograd's by a plan, or by a plan for each tuple of sizes if they are symbolic."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op in ("placeholder", "call_function")]
    flat = [part for value in values for part in (value if isinstance(value, (list, tuple)) else [value])]
    if any(map(_is_symbolic, flat)):
        return Uncached(Dynamic(module, plan, report))
    return planned(lambda: plan(module), module, report)
