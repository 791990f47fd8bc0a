"""A region as a program over the tensors that it reads."""

from __future__ import annotations

import dataclasses

import torch

from ... import program as p
from ...program import Program
from ...program import Value as Expression
from ...program.row_sums import early_row_sum
from ..fusion.group import Region, inlined, is_channel_index, whole_of
from ..ir.graph import Map, Operation, Reduce, Value, View
from ..ir.iteration_space import Digits, shaped, without
from ..ir.layout import Layout, span


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
        self.members = {each for each in region.computed}
        self.tensors: dict[str, tuple[View, Layout]] = {}
        self.names: dict[tuple[Value, Layout, str], Expression] = {}
        self.known: dict[tuple[Operation, Digits], Expression] = {}
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
        made = view.value.maker is not None and view.value.maker in self.members
        return not made and view.value not in self.region.look_ups

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
        if operation in self.region.of_rows:
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
            dtype = None if dtype in (torch.float32, torch.float64) else dtype
            if operation.kind == "max":
                return p.max(value, over, dtype)
            return dataclasses.replace(p.sum(value, over, dtype), term_by_term=True)
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
        key = operation, digits
        if key not in self.known:
            if operation is self.region.anchor:
                self.known[key] = p.acc()
            elif isinstance(operation, Reduce):
                reduce = {"sum": early_row_sum, "max": p.row_max}[operation.kind]
                self.known[key] = reduce(self._read(operation.input, self.whole))
            else:
                whole = whole_of(operation.results[0].layout.numel)
                operands = [
                    self._read(each, digits if own == whole else own)
                    for each, own in self.region.operand_digits(operation)
                ]
                self.known[key] = operation.expression(*operands)
        return self.known[key]

    def _read(self, view: View, digits: Digits) -> Expression:
        maker = view.value.maker
        if maker in self.members and self.region.knows(view, digits):
            return self._computed(maker, digits)
        leaf = self.region.leaf(view, digits)
        if leaf not in self.region.leaves:
            if inlined(view, digits, self.whole) is None:
                raise ValueError(f"{view} is not what the region reads")
            return self._computed(maker, digits)
        if view.value in self.region.look_ups:
            return self._looked_up(view, digits)
        view, digits = self.region.leaves[leaf], leaf[2]
        kind = self.space.kind(digits)
        kind = "full" if kind == "turned" else kind
        layout = self._placed(view, digits) if self.space.is_placed(digits) else self._layout(view, kind)
        if is_channel_index(self.region, view, digits):
            return p.channel_index()
        if self.acc is not None and kind == "full" and self.acc[0].value is view.value and self.acc[1] == layout:
            return p.acc()
        key = view.value, layout, kind
        if key not in self.names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = view, layout
            self.names[key] = Expression(kind, attribute=name)
        return self.names[key]

    def _looked_up(self, view: View, digits: Digits) -> Expression:
        found = self.region.look_ups[view.value]
        layout = found.layout(self.space, view, digits)
        key = view.value, layout, "table"
        if key not in self.names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = found.table, found.table.layout
            self.tensors[p.index_of(name)] = found.index, layout
            self.names[key] = p.table(name)
        return self.names[key]
