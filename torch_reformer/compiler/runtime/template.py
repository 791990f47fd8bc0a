"""Plans over symbols: the plan of a graph for some sizes, made again for others of which it assumes the same.

A graph is planned with sizes that note what the plan assumes of them (runtime/sizes.py). For other sizes of which all
that holds, the numbers among the plan's steps are computed by the expressions that the sizes carry, in microseconds a
step. The plan is then the one that these sizes would get by themselves, except that tensors may be treated as different
ones that are equal for these sizes."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from ...runtime import aten
from ...runtime.plan import Step
from ...runtime.sizes import Symbols, estimate, has_sizes, replaced
from ..ir.layout import Layout
from .executable import Executable
from .sized_graph import inputs_of, is_like


class Template:
    """An executable that was planned for sizes of symbols. It pickles.

    Args:
        module: the graph with these sizes.

    Attributes:
        values: of the symbols that it was planned for.
        first: the executable for these values.
        holds: a function of the symbols' values: True if the plan is right for them.
        is_started: True if executables can run.
    """

    def __init__(self, module: GraphModule, executable: Executable, symbols: Symbols):
        # A table is one constant for all sizes.
        tables = [replaced(table, operator.index) for table in executable.emitted.tables]
        self.values, self.holds = tuple(symbols.values), symbols.holds()
        steps = list(enumerate(executable.plan.steps))
        self._own = [place for place, step in steps if not step.call and has_sizes(step.what)]
        calls = {place: step.call for place, step in steps if step.call and has_sizes(step.call.arguments)}
        self._calls = list(calls)
        # Native calls, which equal steps share.
        described = {repr(call.described()): call.described() for call in calls.values()}
        places = {text: place for place, text in enumerate(described)}
        self._native = [places[repr(call.described())] for call in calls.values()]
        self._inputs = symbols.function(inputs_of(module))
        self._fixed = symbols.function(executable.fixed)
        self._what = symbols.function([executable.plan.steps[place].what for place in self._own])
        self._arguments = symbols.function([call.arguments for call in calls.values()])
        self._described = symbols.function([*described.values()])
        self.is_started = False
        self.first = executable
        self.first = self.at(self.values)
        types = executable.emitted.types
        types = {number: type._replace(layout=_plain(type.layout)) for number, type in types.items()}
        self.first.emitted = dataclasses.replace(self.first.emitted, types=types, tables=tables)

    def takes(self, values: tuple[int, ...], args: Sequence[Any]) -> bool:
        """True if the arguments are the numbers, sizes and strides that the graph has for these symbols."""
        return all(is_like(arg, input) for arg, input in zip(args, self._inputs(*values), strict=True))

    def start(self) -> None:
        """Compile the plan's kernels, and make its tables. Executables for other values share them."""
        self.first.start()
        self.is_started = True

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"is_started": False}

    def at(self, values: tuple[int, ...]) -> Executable:
        """The executable for these values of the symbols."""
        native = [aten.library.OperatorCall(*described) for described in self._described(*values)]
        own = dict(zip(self._own, self._what(*values), strict=True))
        calls = [native[number] for number in self._native]
        steps = self.first.plan.steps
        codes = {place: steps[place].call.code(call) for place, call in zip(self._calls, calls, strict=True)}
        plan = self.first.plan.again(own | codes, functools.partial(self._steps, steps, values, own, calls))
        made = self.first.with_plan(plan)
        made.fixed = self._fixed(*values)
        return made

    def _steps(
        self, steps: list[Step], values: tuple[int, ...], own: dict[int, Sequence[int]], calls: list
    ) -> list[Step]:
        """Steps of a plan, for these values of the symbols; calls: the native calls for them."""
        steps = list(steps)
        for place, what in own.items():
            steps[place] = steps[place]._replace(what=tuple(what))
        for place, native, arguments in zip(self._calls, calls, self._arguments(*values), strict=True):
            call = steps[place].call.again(arguments, native)
            steps[place] = steps[place]._replace(what=tuple(call.code()), call=call)
        return steps


def _plain(layout: Layout) -> Layout:
    return Layout(*replaced((layout.sizes, layout.strides, layout.offset), estimate))
