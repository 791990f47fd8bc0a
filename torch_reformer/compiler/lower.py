"""Regions and calls as the steps of a plan (runtime/plan.py)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container
from dataclasses import dataclass

import torch

from .. import program as p
from ..program import Program
from ..program import Value as Expression
from ..program.row_sums import early_row_sum
from ..runtime import plan as plans
from .grouping import Grouping
from .ir import Call, Casts, Conv, ConvGrads, Graph, Layout, Map, Operation, Reduce, Typed, Value, View, replaced, span
from .regions import Region, inlined, whole_of
from .space import Digits, Space, operand_digits, shaped, without

_conv2d = torch.ops.reformer._conv2d.default
_empty = torch.ops.aten.empty_strided.default
_zero, _zero_all = torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default
_copy_all = torch.ops.aten._foreach_copy_.default
_arange = torch.ops.aten.arange
_ALIGNED = 128  # elements, so that parts of one memory begin at what kernels read at once


class Cyclic(Exception):
    """No order of the groups has each after those it needs."""


def schedule(grouping: Grouping) -> list[int]:
    """The groups, each after those that it needs, and after those that read what it changes; else in the graph's
    order."""
    groups = {n: region.members for n, region in grouping.regions.items()}
    groups |= {n: [operation] for n, operation in grouping.alone.items()}
    first = {n: min(grouping.place_of[id(each)] for each in members) for n, members in groups.items()}
    before: dict[int, set[int]] = {n: set() for n in groups}
    readers: dict[int, set[int]] = {}
    for n in groups:
        for view in reads_of(grouping, n):
            made_by = grouping.group_that_makes(view.value)
            if made_by is not None and made_by != n:
                before[n].add(made_by)
            readers.setdefault(id(view.value), set()).add(n)
    for n, operation in grouping.alone.items():
        for value in operation.writes:
            for reader in readers.get(id(value), set()) - {n}:
                earlier, later = (reader, n) if first[reader] < first[n] else (n, reader)
                before[later].add(earlier)
    for one, other in itertools.pairwise(grouping.random):
        before[other].add(one)
    for n, region in grouping.regions.items():
        for view in region.into.values():
            before[n] |= readers.get(id(view.value), set()) - {n}
    after: dict[int, list[int]] = {n: [] for n in groups}
    for n, needed in before.items():
        for each in needed:
            after[each].append(n)
    left = {n: len(needed) for n, needed in before.items()}
    ready = [(first[n], n) for n, count in left.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for each in after[n]:
            left[each] -= 1
            if not left[each]:
                heapq.heappush(ready, (first[each], each))
    if len(order) < len(groups):
        raise Cyclic
    needed = {*readers, *(id(view.value) for view in grouping.graph.output_views())}
    return [n for n in order if n not in grouping.alone or not _is_unused(grouping.alone[n], needed)]


def _is_unused(operation: Operation, needed: Container[int]) -> bool:
    """Whether it counts for programs, which know their channels' numbers."""
    return any(map(_counts_up, operation.results)) and id(operation.results[0]) not in needed


def reads_of(grouping: Grouping, group: int) -> list[View]:
    """What a region or call needs in memory, but what it makes itself."""
    if group in grouping.alone:
        return grouping.alone[group].operands
    region = grouping.regions[group]
    made = {id(each) for operation in region.computed for each in operation.results}
    anchors = region.anchor.operands if region.anchor else []
    leaves = [view for key, view in region.leaves.items() if not _is_channel_index(region, view, key[2])]
    in_memory = [view for view in leaves if id(view.value) not in made | region.look_ups.keys()]
    looked_up = [view for each in region.look_ups.values() for view in (each.table, each.index)]
    return [*anchors, *in_memory, *looked_up]


def _counts_up(value: Value) -> bool:
    """Whether it is 0, 1, 2 and so on: of channels that needs no memory."""
    maker = value.maker
    if not isinstance(maker, Call):
        return False
    if maker.operator is _arange.default:
        return True
    return maker.operator in (_arange.start, _arange.start_step) and (maker.args[0], *maker.args[2:]) in ((0,), (0, 1))


def _is_channel_index(region: Region, view: View, digits: Digits) -> bool:
    return _counts_up(view.value) and not view.layout.offset and region.space.kind(digits) == "channel"


@dataclass(frozen=True)
class Lowered:
    """A plan of a graph's inputs, which gives those outputs that are tensors, in order. types: of its tensors, by their
    numbers, as far as this package's own steps read them."""

    plan: plans.Plan
    types: dict[int, Typed]


def lower(graph: Graph, grouping: Grouping) -> Lowered:
    return _Lowering(graph, grouping).run()


class _Lowering:
    def __init__(self, graph: Graph, grouping: Grouping):
        self.graph, self.grouping = graph, grouping
        self.steps = plans.Plan(len(graph.inputs))
        self.base: dict[int, tuple[int, Layout]] = {}  # value (id) -> a tensor of it, and that tensor's layout
        self.views: dict[tuple[int, Layout], int] = {}
        self.types: dict[int, Typed] = {}
        for i, value in enumerate(graph.inputs):
            self._is(value, i, value.layout)
        self.needed = {
            id(view.value) for group in (*grouping.regions, *grouping.alone) for view in reads_of(grouping, group)
        }
        self.needed |= {id(view.value) for view in graph.output_views()}

    def run(self) -> Lowered:
        for group in schedule(self.grouping):
            if group in self.grouping.alone:
                self._alone(self.grouping.alone[group])
            else:
                self._region(self.grouping.regions[group])
        self.steps.give(*(self._number(view) for view in self.graph.output_views()))
        return Lowered(self.steps, self.types)

    def _is(self, value: Value, number: int, layout: Layout) -> None:
        self.base[id(value)] = number, layout
        self.views[id(value), layout] = number
        self.types[number] = Typed(layout, value.dtype, value.device)

    def _number(self, view: View, layout: Layout | None = None) -> int:
        """The tensor that is this view, or the same elements in another layout."""
        layout = layout or view.layout
        key = id(view.value), layout
        if key not in self.views:
            number, own = self.base[id(view.value)]
            offset = layout.offset - own.offset if layout.numel else 0
            (self.views[key],) = self.steps.view(number, layout.sizes, layout.strides, offset)
            self.types[self.views[key]] = Typed(layout, view.value.dtype, view.value.device)
        return self.views[key]

    def _alone(self, operation: Operation) -> None:
        if isinstance(operation, ConvGrads):
            numbers = [self._number(view) for view in operation.operands]
            made = self.steps.conv2d_grads(operation.wanted, _geometry(operation), *numbers)
        elif isinstance(operation, Casts):
            made = self._casts(operation)
        else:
            args, kwargs = (replaced(each, self._number) for each in (operation.args, operation.kwargs))
            layouts = [] if operation.writes or operation.parts else [each.layout for each in operation.results]
            made = self.steps.aten(
                operation.operator,
                args,
                kwargs,
                operation.lengths,
                [(each.sizes, each.strides) for each in layouts],
            )
            if operation.parts:
                made = self.steps.parts(*made, len(operation.results))
        for value, number in zip(operation.results, made, strict=True):
            self._is(value, number, value.layout)

    def _casts(self, operation: Casts) -> list[int]:
        results, made, to, zeros = operation.results, [], [], []
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
            sizes = operation.inputs[i].layout.sizes
            if sizes == layout.sizes:
                to.append(made[-1])
            else:
                to += self.steps.view(made[-1], sizes, layout.strides)
                rest = (layout.sizes[0] - sizes[0], *sizes[1:])
                zeros += self.steps.view(made[-1], rest, layout.strides, sizes[0] * layout.strides[0])
        if zeros:
            self.steps.aten(_zero_all, (zeros,))
        self.steps.aten(_copy_all, (to, [self._number(view) for view in operation.inputs]))
        return made

    def _region(self, region: Region) -> None:
        stored = [each for each in region.members if id(each.results[0]) in self.needed]
        copies = region.copies.keys() & self.needed  # others only go on to reductions
        into = [each for each in region.operations if id(each.results[0]) in region.into.keys() | copies]
        stored = [*(each for each in stored if each not in into), *into]
        if not stored:
            return
        if stored == [region.anchor]:
            operands = [self._number(view) for view in region.anchor.operands]
            (made,) = self.steps.aten(_conv2d, (*operands, None, _geometry(region.anchor)))
            self._is(region.anchor.results[0], made, region.anchor.results[0].layout)
            return
        text = RegionProgram(region, stored)
        tensors = [self._number(*text.tensors[name]) for name in text.program.names]
        if region.anchor:
            operands = [self._number(view) for view in region.anchor.operands]
            made = self.steps.conv2d(text.program.code, _geometry(region.anchor), *operands, tensors)
        else:
            if text.acc is None:
                acc = self._memory(text.space.layout, text.dtype, stored[0].results[0].device)
            else:
                acc = self._number(*text.acc)
            written = [self._written(region, each.results[0], text.space) for each in into]
            made = self.steps.stitch(text.program.code, acc, tensors, written)
        for operation, number in zip(stored, made, strict=True):
            if id(operation.results[0]) not in region.copies:
                self._is(operation.results[0], number, text.layout_of(operation))

    def _written(self, region: Region, value: Value, space: Space) -> int:
        """The tensor that is there and gets a region's result."""
        if id(value) not in region.copies:
            return self._number(region.into[id(value)])
        memory, own = value.memory or value.layout, value.layout
        number = self._memory(memory, value.dtype, value.device)
        self._is(value, number, memory)
        if value.memory:
            rest = memory.sizes[-1] - own.sizes[-1]
            self.steps.aten(_zero, self.steps.view(number, (*own.sizes[:-1], rest), own.strides, own.sizes[-1]))
        return self._number(View(value, space.placement(region.copies[id(value)])))

    def _memory(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> int:
        (made,) = self.steps.aten(_empty, (layout.sizes, layout.strides), {"dtype": dtype, "device": device})
        self.types[made] = Typed(layout, dtype, device)
        return made


def _geometry(operation: Conv | ConvGrads) -> int:
    g = operation.geometry
    return plans.geometry_number(g.stride, g.padding, g.dilation, g.groups)


class RegionProgram:
    """A region's program. tensors: name -> what is handed over for it, and with what layout. acc: the same of the
    tensor that the program runs over, None if there is none or it is the anchor's result."""

    def __init__(self, region: Region, stored: list[Operation]):
        self.region = region
        layouts = [view.layout for view in region.leaves.values()]
        layouts += [each.results[0].layout for each in stored]
        self.space = region.space
        if not region.anchor:
            self.space = shaped(region.space, layouts, region.operands, region.reductions)
        self.whole = region.whole
        self.members = {id(each) for each in region.computed}
        self.tensors: dict[str, tuple[View, Layout]] = {}
        self.names: dict[tuple[int, Layout, str], Expression] = {}
        self.known: dict[tuple[int, Digits], Expression] = {}
        self.acc: tuple[View, Layout] | None = None
        self.dtype = self._dtype()
        if region.anchor is None:
            self._choose_acc()
        self.program = Program(*(self._output(each) for each in stored))

    def _dtype(self) -> torch.dtype:
        """The result's, which says in what precision the program computes."""
        if self.region.anchor:
            return self.region.anchor.results[0].dtype
        types = [each.results[0].dtype for each in self.region.operations]
        types += [view.value.dtype for view in self.region.leaves.values()]
        floats = [each for each in types if each.is_floating_point]
        return torch.float64 if torch.float64 in floats else floats[0] if floats else torch.float32

    def _choose_acc(self) -> None:
        in_memory = [(digits, view) for (_, _, digits), view in self.region.leaves.items() if self._is_in_memory(view)]
        for digits, view in in_memory:
            is_wide = (view.value.dtype == torch.float64) == (self.dtype == torch.float64)
            is_full = self.space.kind(digits) == "full" and not self.space.is_placed(digits)
            if is_full and view.value.dtype.is_floating_point and is_wide:
                self.acc = view, self._layout(view, "full")
                self.dtype = view.value.dtype
                return
        # The program has to have one, and reads it only where it is asked to.
        for _, view in in_memory:
            layout = self._layout(view, "full")
            if view.value.dtype == self.dtype and layout.offset + span(layout) <= span(view.value.layout):
                self.acc = view, layout
                return

    def _is_in_memory(self, view: View) -> bool:
        """Whether the region reads it, and neither makes it nor looks it up."""
        made = view.value.maker is not None and id(view.value.maker) in self.members
        return not made and id(view.value) not in self.region.look_ups

    def _layout(self, view: View, kind: str) -> Layout:
        if kind == "full" and self.region.anchor:
            own = self.region.anchor.results[0].layout
            return Layout(own.sizes, own.strides, view.layout.offset)
        return self.space.layout_of(kind, view.layout.offset)

    def _placed(self, view: View, digits: Digits) -> Layout:
        placement = self.space.placement(digits)
        return Layout(placement.sizes, placement.strides, view.layout.offset)

    def layout_of(self, operation: Operation) -> Layout:
        """That which the program's tensor for it has."""
        result = operation.results[0]
        if isinstance(operation, Reduce) and self._per(operation) != "row":
            stacked = (2,) if operation.kind == "moments" else ()
            rest = self.space.layout_of(self._reduced_to(operation))
            return Layout((*stacked, *rest.sizes), (*(rest.numel for _ in stacked), *rest.strides))
        if operation is self.region.anchor:
            return result.layout
        return self._layout(View(result, Layout(result.layout.sizes, result.layout.strides)), self._per(operation))

    def _per(self, operation: Map | Reduce) -> str:
        if id(operation) in self.region.of_rows:
            return "row"
        return "full" if operation.results[0].layout.numel == self.space.numel else "channel"

    def _reduced_to(self, operation: Reduce) -> str:
        digits = without(operation.input.layout, operation.over)
        return self.space.dense_kind(digits) if digits else "scalar"

    def _output(self, operation: Operation):
        per = self._per(operation)
        if isinstance(operation, Reduce) and per != "row":
            value = self._read(operation.input, self.whole)
            kind = self._reduced_to(operation)
            over = "all" if kind == "scalar" else kind
            if operation.kind == "moments":
                return p.moments(value, over)
            dtype = operation.results[0].dtype
            reduce = {"sum": p.sum, "max": p.max}[operation.kind]
            return reduce(value, over, None if dtype in (torch.float32, torch.float64) else dtype)
        if operation is self.region.anchor:
            return p.store(p.acc())
        digits = {"full": self.whole, "channel": self.space.channel_digits, "row": self.region.rows}[per]
        value = self._computed(operation, digits)
        dtype = operation.results[0].dtype
        return p.store(
            value, None if dtype == self.dtype and per == "full" else dtype, "element" if per == "full" else per
        )

    def _computed(self, operation: Operation, digits: Digits) -> Expression:
        """What an operation's result is where it is read with these digits."""
        key = id(operation), digits
        if key not in self.known:
            if operation is self.region.anchor:
                self.known[key] = p.acc()
            elif isinstance(operation, Reduce):
                reduce = {"sum": early_row_sum, "max": p.row_max}[operation.kind]
                self.known[key] = reduce(self._read(operation.input, self.whole))
            else:
                whole = whole_of(operation.results[0].layout.numel)
                is_copy = id(operation.results[0]) in self.region.copies
                if is_copy and operation.results[0].layout.is_dense:  # of what is computed here, in another order
                    whole = operand_digits(operation)[0][1]
                operands = [
                    self._read(each, digits if own == whole else own) for each, own in operand_digits(operation)
                ]
                self.known[key] = operation.expression(*operands)
        return self.known[key]

    def _read(self, view: View, digits: Digits) -> Expression:
        maker = view.value.maker
        if id(maker) in self.members and self.region.knows(view, digits):
            return self._computed(maker, digits)
        leaf = self.region.leaf(view, digits)
        if leaf not in self.region.leaves:
            if inlined(view, digits, self.whole) is None:
                raise ValueError(f"{view} is not what the region reads")
            return self._computed(maker, digits)
        if id(view.value) in self.region.look_ups:
            return self._looked_up(view, digits)
        view, digits = self.region.leaves[leaf], leaf[2]
        kind = self.space.kind(digits)
        kind = "full" if kind == "turned" else kind
        layout = self._placed(view, digits) if self.space.is_placed(digits) else self._layout(view, kind)
        if _is_channel_index(self.region, view, digits):
            return p.channel_index()
        if self.acc is not None and kind == "full" and self.acc[0].value is view.value and self.acc[1] == layout:
            return p.acc()
        key = id(view.value), layout, kind
        if key not in self.names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = view, layout
            self.names[key] = Expression(kind, attribute=name)
        return self.names[key]

    def _looked_up(self, view: View, digits: Digits) -> Expression:
        found = self.region.look_ups[id(view.value)]
        layout = found.layout(self.space, view, digits)
        key = id(view.value), layout, "table"
        if key not in self.names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = found.table, found.table.layout
            self.tensors[p.index_of(name)] = found.index, layout
            self.names[key] = p.table(name)
        return self.names[key]
