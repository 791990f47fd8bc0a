"""Groups and calls as the steps of a plan (runtime/plan.py)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from ...runtime import plan as plans
from ..fusion.greedy import Fusion
from ..fusion.group import FusionGroup
from ..fusion.schedule import needed_in_memory, schedule
from ..ir.graph import Call, Casts, Conv, ConvGrads, Graph, Operation, Typed, Value, View, replaced
from ..ir.iteration_space import IterationSpace
from ..ir.layout import Layout
from ..ir.stages import blamed
from .kernel_program import KernelProgram

_conv2d = torch.ops.reformer._conv2d.default
_empty = torch.ops.aten.empty_strided.default
_zero = torch.ops.aten.zero_.default
_cast_all = torch.ops.reformer._cast_all.default
_ALIGNED = 128  # elements, so that parts of one memory begin at what kernels read at once


@dataclass(frozen=True)
class EmittedPlan:
    """A plan of a graph's inputs, which gives those outputs that are tensors, in order. types: of its tensors, by their
    numbers, as far as this package's own steps read them. steps: of each group (fusion/greedy.py), in the order in which
    they run."""

    plan: plans.Plan
    types: dict[int, Typed]
    steps: dict[int, range]


def emit_plan(graph: Graph, fusion: Fusion) -> EmittedPlan:
    return _Emitter(graph, fusion).run()


class _Emitter:
    def __init__(self, graph: Graph, fusion: Fusion):
        self.graph, self.fusion = graph, fusion
        self.steps = plans.Plan(len(graph.inputs))
        self.base: dict[Value, tuple[int, Layout]] = {}  # value -> a tensor of it, and that tensor's layout
        self.views: dict[tuple[Value, Layout], int] = {}
        self.types: dict[int, Typed] = {}
        for i, value in enumerate(graph.inputs):
            self._is(value, i, value.layout)
        self.needed = needed_in_memory(fusion, (*fusion.groups, *fusion.extern_calls))

    def run(self) -> EmittedPlan:
        steps: dict[int, range] = {}
        for number in schedule(self.fusion):
            first = len(self.steps.steps)
            group, alone = self.fusion.groups.get(number), self.fusion.extern_calls.get(number)
            with blamed("lowering", [alone] if alone else group.computed):
                if alone:
                    self._extern_call(alone)
                else:
                    self._group(group)
            steps[number] = range(first, len(self.steps.steps))
        self.steps.give(*(self._number(view) for view in self.graph.output_views()))
        return EmittedPlan(self.steps, self.types, steps)

    def _is(self, value: Value, number: int, layout: Layout) -> None:
        self.base[value] = number, layout
        self.views[value, layout] = number
        self.types[number] = Typed(layout, value.dtype, value.device)

    def _number(self, view: View, layout: Layout | None = None) -> int:
        """The tensor that is this view, or the same elements in another layout."""
        layout = layout or view.layout
        key = view.value, layout
        if key not in self.views:
            number, own = self.base[view.value]
            offset = layout.offset - own.offset if layout.numel else 0
            (self.views[key],) = self.steps.view(number, layout.sizes, layout.strides, offset)
            self.types[self.views[key]] = Typed(layout, view.value.dtype, view.value.device)
        return self.views[key]

    def _extern_call(self, operation: Operation) -> None:
        if isinstance(operation, ConvGrads):
            numbers = [self._number(view) for view in operation.operands]
            made = self.steps.conv2d_grads(operation.wanted, _geometry(operation), *numbers)
        elif isinstance(operation, Casts):
            made = self._casts(operation)
        else:
            args, kwargs = (replaced(each, self._number) for each in (operation.args, operation.kwargs))
            layouts = [(each.layout.sizes, each.layout.strides) for each in self._checked(operation)]
            made = self.steps.aten(operation.operator, args, kwargs, operation.lengths, layouts)
            if operation.parts:
                made = self.steps.parts(*made, len(operation.results))
        for value, number in zip(operation.results, made, strict=True):
            self._is(value, number, value.layout)

    def _checked(self, operation: Call) -> list[Value]:
        """Results whose sizes and strides have to be those that the graph says, up to the last that is read: now and
        then PyTorch's fake tensors are wrong about one that is there for a backward only."""
        if operation.writes or operation.parts:
            return []
        results = list(operation.results)
        while results and results[-1] not in self.needed:
            results.pop()
        return results

    def _casts(self, operation: Casts) -> list[int]:
        results, made = operation.results, []
        options = {"dtype": results[0].dtype, "device": results[0].device}
        if operation.parts:
            ends = list(itertools.accumulate(-(-each.layout.numel // _ALIGNED) * _ALIGNED for each in results))
            (memory,) = self.steps.aten(_empty, ((ends[-1],), (1,)), options)
        for i, result in enumerate(results):
            layout = result.layout
            if operation.parts:
                made += self.steps.view(memory, layout.sizes, layout.strides, ends[i - 1] if i else 0)
            else:
                made += self.steps.aten(_empty, (layout.sizes, layout.strides), options)
        self.steps.aten(_cast_all, ([self._number(view) for view in operation.inputs], made))
        return made

    def _group(self, group: FusionGroup) -> None:
        stored = [each for each in group.members if each.results[0] in self.needed]
        copies = group.copies.keys() & self.needed  # others only go on to reductions
        there = group.destinations.keys() | group.reused.keys() | copies
        into = [each for each in group.operations if each.results[0] in there]
        stored = [*(each for each in stored if each not in into), *into]
        if not stored:
            return
        if stored == [group.anchor]:
            operands = [self._number(view) for view in group.anchor.operands]
            (made,) = self.steps.aten(_conv2d, (*operands, None, _geometry(group.anchor)))
            self._is(group.anchor.results[0], made, group.anchor.results[0].layout)
            return
        text = KernelProgram(group, stored)
        tensors = [self._number(*text.tensors[name]) for name in text.program.names]
        if group.anchor:
            operands = [self._number(view) for view in group.anchor.operands]
            made = self.steps.conv2d(text.program.code, _geometry(group.anchor), *operands, tensors)
        else:
            if text.acc is None:
                acc = self._memory(text.space.layout, text.dtype, stored[0].results[0].device)
            else:
                acc = self._number(*text.acc)
            written = [self._written(group, each.results[0], text.space) for each in into]
            made = self.steps.stitch(text.program.code, acc, tensors, written)
        for operation, number in zip(stored, made, strict=True):
            if operation.results[0] not in group.copies:
                self._is(operation.results[0], number, text.layout_of(operation))

    def _written(self, group: FusionGroup, value: Value, space: IterationSpace) -> int:
        """The tensor that is there and gets a group's result."""
        over = group.reused.get(value)
        if value not in group.copies:
            view = over or group.destinations[value]
            return self._number(view, space.layout_of("full", view.layout.offset) if over else None)
        if value in group.parts:
            return self._part(group.parts[value], space.placement(group.copies[value]))
        memory, own = value.memory or value.layout, value.layout
        there = self._number(View(over.value, memory)) if over else None
        number = self._memory(memory, value.dtype, value.device) if there is None else there
        self._is(value, number, memory)
        if value.memory:
            rest = memory.sizes[-1] - own.sizes[-1]
            self.steps.aten(_zero, self.steps.view(number, (*own.sizes[:-1], rest), own.strides, own.sizes[-1]))
        return self._number(View(value, space.placement(group.copies[value])))

    def _part(self, part: View, placement: Layout) -> int:
        """The tensor that is a part of one that is there from its first part on."""
        value = part.value
        if value not in self.base:
            self._is(value, self._memory(value.layout, value.dtype, value.device), value.layout)
        return self._number(View(value, Layout(placement.sizes, placement.strides, part.layout.offset)))

    def _memory(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> int:
        (made,) = self.steps.aten(_empty, (layout.sizes, layout.strides), {"dtype": dtype, "device": device})
        self.types[made] = Typed(layout, dtype, device)
        return made


def _geometry(operation: Conv | ConvGrads) -> int:
    g = operation.geometry
    return plans.geometry_number(g.stride, g.padding, g.dilation, g.groups)
