"""Plans over symbols: the plan of a graph for some sizes, made again for others of which it assumes the same.

A graph is planned with sizes that note what the plan assumes of them (runtime/sizes.py). For other sizes of which all
that holds, the numbers among the plan's steps are computed by the expressions that the sizes carry, in microseconds a
step. The plan is then the one that these sizes would get by themselves, except that tensors may be treated as different
ones that are equal for these sizes."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from ...runtime import aten
from ...runtime.sizes import Symbols, has_sizes, replaced
from ..ir.layout import Layout
from .executable import Executable
from .sized_graph import inputs_of, is_like


class Template:
    """An executable that was planned for sizes of symbols.

    Args:
        module: the graph with these sizes.

    Attributes:
        holds: a function of the symbols' values: True if the plan is right for them.
    """

    def __init__(self, module: GraphModule, executable: Executable, symbols: Symbols):
        # A table is one constant for all sizes.
        tables = [replaced(table, operator.index) for table in executable.emitted.tables]
        self._executable = copy.copy(executable)
        self._executable.emitted = dataclasses.replace(executable.emitted, tables=tables)
        steps = list(enumerate(executable.plan.steps))
        self._own = [place for place, step in steps if not step.call and has_sizes(step.what)]
        self._calls = {place: step.call for place, step in steps if step.call and has_sizes(step.call.arguments)}
        # Native calls, which equal steps share.
        described = {repr(call.described()): call.described() for call in self._calls.values()}
        places = {text: place for place, text in enumerate(described)}
        self._native = [places[repr(call.described())] for call in self._calls.values()]
        self.holds = symbols.holds()
        self._inputs = symbols.function(inputs_of(module))
        self._fixed = symbols.function(executable.fixed)
        self._what = symbols.function([executable.plan.steps[place].what for place in self._own])
        self._arguments = symbols.function([call.arguments for call in self._calls.values()])
        layouts = [type.layout for type in executable.emitted.types.values()]
        self._layouts = symbols.function([(layout.sizes, layout.strides, layout.offset) for layout in layouts])
        self._described = symbols.function([*described.values()])

    def takes(self, values: tuple[int, ...], args: Sequence[Any]) -> bool:
        """True if the arguments are the numbers, sizes and strides that the graph has for these symbols."""
        return all(is_like(arg, input) for arg, input in zip(args, self._inputs(*values), strict=True))

    def started(self, values: tuple[int, ...]) -> Executable:
        """The first executable, for these values of the symbols. The plan's kernels are compiled, and its tables made,
        for those that follow, too."""
        assert len(self._executable.tables) == len(self._executable.emitted.tables)
        made = self.at(values)
        numbers, layouts = self._executable.emitted.types, self._layouts(*values)
        typed = zip(numbers.items(), layouts, strict=True)
        types = {number: type._replace(layout=Layout(*layout)) for (number, type), layout in typed}
        made.emitted = dataclasses.replace(made.emitted, types=types)
        made.start()
        return made

    def at(self, values: tuple[int, ...]) -> Executable:
        """The executable for these values of the symbols."""
        steps = list(self._executable.plan.steps)
        for place, what in zip(self._own, self._what(*values), strict=True):
            steps[place] = steps[place]._replace(what=what)
        native = [aten.library.OperatorCall(*described) for described in self._described(*values)]
        for place, number, arguments in zip(self._calls, self._native, self._arguments(*values), strict=True):
            call = self._calls[place].again(arguments, native[number])
            steps[place] = steps[place]._replace(what=tuple(call.code()), call=call)
        made = self._executable.with_plan(self._executable.plan.again(steps))
        made.fixed = self._fixed(*values)
        return made
