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

from ...runtime.plan import Step
from ...runtime.sizes import Real, Size, Symbols, replaced
from .executable import Executable
from .sized_graph import inputs_of, is_like


class _Place:
    """Stands for a size: its place among the numbers that the symbols give."""

    def __init__(self, place: int):
        self.place = place


class Template:
    """An executable that was planned for sizes of symbols.

    Attributes:
        holds: a function of the symbols' values: True if the plan is right for them.
    """

    def __init__(self, module: GraphModule, executable: Executable, symbols: Symbols):
        self._sizes: dict[Any, _Place] = {}
        # A table is one constant for all sizes.
        tables = [replaced(table, operator.index) for table in executable.emitted.tables]
        self._executable = copy.copy(executable)
        self._executable.emitted = dataclasses.replace(executable.emitted, tables=tables)
        self._steps: list[tuple[int, Step, Any]] = []  # those that vary: place, step, and its arguments
        for place, step in enumerate(executable.plan.steps):
            arguments = step.call.arguments if step.call else step.what
            if (placed := self._placed(arguments)) is not arguments:
                self._steps.append((place, step, placed))
        self._fixed = self._placed(executable.fixed)
        self._inputs = self._placed(inputs_of(module))
        self.holds, self._numbers = symbols.holds(), symbols.numbers([*self._sizes])

    def _placed(self, value: Any) -> Any:
        return replaced(value, self._place)

    def _place(self, size: Size | Real) -> _Place:
        return self._sizes.setdefault(size, _Place(len(self._sizes)))

    def takes(self, values: tuple[int, ...], args: Sequence[Any]) -> bool:
        """True if the arguments are the numbers, sizes and strides that the graph has for these symbols."""
        inputs = _filled(self._inputs, self._numbers(*values))
        return all(is_like(arg, input) for arg, input in zip(args, inputs, strict=True))

    def at(self, values: tuple[int, ...]) -> Executable:
        """The executable for these values of the symbols."""
        numbers = self._numbers(*values)
        steps = list(self._executable.plan.steps)
        for place, step, arguments in self._steps:
            steps[place] = step.again(_filled(arguments, numbers))
        made = self._executable.with_plan(self._executable.plan.again(steps))
        made.fixed = _filled(self._fixed, numbers)
        return made


def _filled(value: Any, numbers: tuple) -> Any:
    """The numbers in the places of nested lists and tuples."""
    if type(value) is _Place:
        return numbers[value.place]
    if isinstance(value, (list, tuple)):
        return type(value)([_filled(part, numbers) for part in value])
    if isinstance(value, dict):
        return {key: _filled(part, numbers) for key, part in value.items()}
    return value
