"""Graphs with symbolic sizes: a plan for each tuple of sizes, made of a template (template.py) where there is one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.fx import GraphModule

from ...runtime.polynomials import LEAST
from ...runtime.sizes import Symbols
from ..analysis.report import Report
from ..ir.fake_tensors import Unsupported
from ..ir.stages import raises
from .compiled import Compiled, reporting
from .executable import Executable
from .sized_graph import SymbolicGraph, fits
from .static_sizes import depends_on_values, is_nested_int, static
from .stored_templates import StoredTemplates
from .template import Template

_log = logging.getLogger(__name__)
PLANS = 64  # that one graph with symbolic sizes keeps at a time
TEMPLATES = 32  # of one graph
_TRIED = 12  # templates after which there are no more, if each has served one tuple of sizes only


class MakePlan(Protocol):
    def __call__(self, module: GraphModule, starts: bool = True) -> Executable:
        """Plan a graph. Raises Unsupported."""


class Dynamic(Compiled):
    """A graph with symbolic sizes: an executable for each tuple of sizes and numbers that it is called with, but for
    those that depend on values, as of what a forward with ``nonzero`` saves: PyTorch runs the operators that read them.

    Args:
        planned: gives the executable of a graph with known sizes (run_graph.py).

    Attributes:
        templates: plans over symbols, the last used first.
        stored: templates on disk, if the graph is in PyTorch's cache.
        reason: why there are no (further) templates, so that each tuple of sizes is planned by itself; or None.
    """

    def __init__(
        self,
        module: GraphModule,
        plan: MakePlan,
        planned: Callable[..., Compiled],
        report: Callable[[Report], Any] | None,
    ):
        super().__init__()
        self.plan, self.planned, self.report = plan, planned, report
        inputs = module.graph.find_nodes(op="placeholder")
        self._unknown = {place for place, node in enumerate(inputs) if depends_on_values(node.meta.get("val"))}
        self._nested = [place for place, node in enumerate(inputs) if is_nested_int(node.meta.get("val"))]
        self.symbolic, self.stored = SymbolicGraph(module), StoredTemplates(TEMPLATES)
        self.reason = "the sizes of an argument depend on values" if self._unknown else None
        self._begin()

    def _begin(self) -> None:
        self.templates: list[Template] = []
        self._served = 0  # tuples of sizes by templates of others
        self._plans = functools.lru_cache(PLANS)(self._planned)

    def prepare_for_serialization(self) -> None:
        super().prepare_for_serialization()
        self.stored.is_used = True

    def __getstate__(self) -> dict[str, Any]:
        left = "report", "templates", "_served", "_plans"
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    def start(self) -> None:
        self.report = reporting()

    def __call__(self, args: list) -> list:
        for place in self._nested:  # nothing reads it (run_graph.py), and each jagged tensor has its own
            args[place] = LEAST
        # Numbers by their texts, as -0.0 equals 0.0, and NaN equals nothing.
        key = tuple(_sizes(arg) for place, arg in enumerate(args) if place not in self._unknown)
        key = _Key(key, args)
        plan = self._plans(key)
        key.args = None  # the cache may keep this key, which would keep the tensors alive
        return plan(args)

    def _planned(self, key: _Key) -> Compiled:
        if (made := self._of_template(key.args)) is not None:
            return made
        return self.planned(self._plan_alone, self.symbolic.module, self.report, lambda: self._sized(key.args))

    def _plan_alone(self, module: GraphModule, starts: bool = True) -> Executable:
        """An executable for one tuple of sizes only."""
        executable = self.plan(module, starts=starts)
        executable.note_sizes(self.reason)
        return executable

    def _of_template(self, args: Sequence[Any]) -> Executable | None:
        """An executable for these arguments, of a template that serves them or of a new one; None if there is none."""
        if self._unknown:
            return None
        sizes = self.symbolic.values(args)
        if min(sizes.values(), default=0) < LEAST:
            return None
        if (template := self._serving(sizes, args)) is None:
            self.templates += self.stored.read()
            template = self._serving(sizes, args)
        if template is None and self.reason is None and len(self.templates) < TEMPLATES:
            template = self._new_template(sizes, args)
        return template and template.at(tuple(sizes.values()))

    def _serving(self, sizes: dict[str, int], args: Sequence[Any]) -> Template | None:
        """A template that serves these arguments."""
        values = tuple(sizes.values())
        for template in self.templates:
            if template.holds(*values) and template.takes(values, args):
                self.templates.remove(template)
                self.templates.insert(0, template)
                self._served += values != template.values
                self._start_once(template)
                return template
        return None

    def _start_once(self, template: Template) -> None:
        if not template.is_started:
            template.start()
            template.first.report_to(self.report)

    def _new_template(self, sizes: dict[str, int], args: Sequence[Any]) -> Template | None:
        try:
            template = self._template(sizes)
            if not template.takes(template.values, args):
                raise Unsupported("arguments have other strides than the graph was traced with")
            self._start_once(template)
        except Unsupported as why:
            self.reason = str(why)
        except Exception as error:
            if raises():
                raise
            self.reason = f"an internal error ({type(error).__name__}: {error})"
        else:
            self.templates.insert(0, template)
            self.stored.write(template)
            if len(self.templates) >= _TRIED and not self._served:
                self.reason = "tables or other constants depend on the sizes"
            return template
        _log.info("each tuple of sizes is planned by itself: %s", self.reason)
        return None

    def _template(self, values: dict[str, int]) -> Template:
        symbols = Symbols(values)
        try:
            module = self.symbolic.at(symbols.sizes())
            return Template(module, self.plan(module, starts=False), symbols)
        finally:
            symbols.close()

    def _sized(self, args: Sequence[Any]) -> GraphModule:
        """The graph with fake values of its nodes for these arguments. Sizes that depend on values stay unknown: the
        plan is that of other values, too."""
        if self._unknown:
            return static(self.symbolic.module, args)
        try:
            sized = self.symbolic.at(self.symbolic.values(args))
        except Unsupported:
            return static(self.symbolic.module, args)
        return sized if fits(sized, args) else static(self.symbolic.module, args)


def _sizes(arg):
    return (arg.shape, arg.stride()) if isinstance(arg, Tensor) else repr(arg)


class _Key:
    """Key of a cached plan: equal for arguments of equal sizes and numbers."""

    def __init__(self, key: tuple, args: list):
        self.key, self.args = key, list(args)

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)
