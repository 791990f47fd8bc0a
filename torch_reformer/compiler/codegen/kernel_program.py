"""Program of a fusion group over the tensors that it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch

from ... import program as p
from ...program import Program
from ...program import Value as Expression
from ...program.mapped import Targets as ProgramTargets
from ...program.mapped import map_of, mapped
from ...program.row_sums import early_row_sum
from ...runtime.sizes import Real
from ..fusion.group import FusionGroup, is_channel_index
from ..fusion.inlining import inlined
from ..ir.access import Access
from ..ir.graph import Indexed, Map, Operation, Reduce, Value, View
from ..ir.index_maps import IndexMap, full_map_of, without
from ..ir.iteration_space import IterationSpace, fits
from ..ir.kernel_limits import MOST_INPUTS, MOST_MAPS
from ..ir.layout import Layout, span
from ..ir.product import result_layout
from ..ir.scan import Scan
from ..ir.targets import Targets
from . import size_constants
from .map_tables import MapTable, MapTables, columns_within, table_of, table_of_targets


class KernelProgram:
    """Program of a group that stores the results of the operations in ``stored``, reads tables of maps, and
    numbers that are computed of sizes (size_constants.py), whose values ``value_of`` gives.

    Attributes:
        space: the group's iteration space, in the sizes of one of its tensors where that has four dimensions.
        tensors: name in the program -> the view that is passed for it, and the layout in which it is passed.
        acc: view and layout of the tensor that the program runs over; None if there is none or it is the anchor's
            result.
        dtype: data type of ``acc``, by which the program's precision is chosen.
    """

    def __init__(
        self,
        group: FusionGroup,
        stored: list[Operation],
        tables: MapTables,
        value_of: Callable[[Real, torch.device], Value],
    ):
        self.group, self.tables, self.value_of = group, tables, value_of
        layouts = [view.layout for view in group.inputs.values()]
        layouts += [operation.results[0].layout for operation in stored]
        self.space = group.space
        if not group.anchor:
            self.space = _shaped(group.space, layouts, group.operands, group.reductions)
        self.full_map = group.full_map
        self.members = set(group.computed)
        self.tensors: dict[str, tuple[View, Layout]] = {}
        self.names: dict[tuple[Value, Layout, str | Access], Expression] = {}
        self.known: dict[tuple[Operation, IndexMap], Expression] = {}
        self.inlined: dict[tuple[Operation, int, IndexMap], Expression] = {}
        self.acc: tuple[View, Layout] | None = None
        self.dtype = self._dtype()
        if group.anchor is None:
            self._choose_acc()
        outputs = list(map(self._output, stored))
        device = stored[0].results[0].device
        if device.type in size_constants.DEVICES:
            outputs = size_constants.as_operands(outputs, lambda number: self._named(number, device))
        self.program = Program(*outputs)

    def _named(self, number: Real, device: torch.device) -> str | None:
        """Name of the operand that holds a number; None if the kernel has no room for it."""
        if len(self.tensors) >= MOST_INPUTS + MOST_MAPS:
            return None
        value = self.value_of(number, device)
        name = next((name for name, (view, _) in self.tensors.items() if view.value is value), f"t{len(self.tensors)}")
        self.tensors[name] = View(value, value.layout), value.layout
        return name

    def _dtype(self) -> torch.dtype:
        """Data type of the group: fp64 if any of its tensors is, else its first floating-point type, else fp32."""
        if self.group.anchor:
            return self.group.anchor.results[0].dtype
        dtypes = [operation.results[0].dtype for operation in self.group.operations]
        dtypes += [view.value.dtype for view in self.group.inputs.values()]
        floats = [dtype for dtype in dtypes if dtype.is_floating_point]
        return torch.float64 if torch.float64 in floats else floats[0] if floats else torch.float32

    def _choose_acc(self) -> None:
        """Choose the tensor that the program runs over: by preference a full-size input."""
        in_memory = self.group.inputs_in_memory()
        for view, index_map in in_memory:
            is_wide = (view.value.dtype == torch.float64) == (self.dtype == torch.float64)
            is_full = self.space.kind(index_map) == "full" and not self.space.is_strided(index_map)
            if is_full and view.value.dtype.is_floating_point and is_wide:
                self.acc = view, self._layout(view, "full")
                self.dtype = view.value.dtype
                return
        # Any tensor with enough memory does: the program reads it only where an expression names it.
        for view, _ in in_memory:
            layout = self._layout(view, "full")
            if view.value.dtype == self.dtype and layout.offset + span(layout) <= span(view.value.layout):
                self.acc = view, layout
                return

    def _layout(self, view: View, kind: str) -> Layout:
        """Layout in which a view is passed as an operand of this kind."""
        if kind == "full" and self.group.anchor:
            result = result_layout(self.group.anchor)
            return Layout(result.sizes, result.strides, view.layout.offset)
        return self.space.layout_of(kind, view.layout.offset)

    def _strided(self, view: View, index_map: IndexMap) -> Layout:
        """Layout in which a strided operand is passed."""
        placement = self.space.placement(index_map)
        return Layout(placement.sizes, placement.strides, view.layout.offset)

    def layout_of(self, operation: Operation) -> Layout:
        """Layout of the tensor that the program stores for an operation."""
        result = operation.results[0]
        if isinstance(operation, Reduce) and self._per(operation) != "row":
            stacked = (2,) if operation.kind == "moments" else ()
            rest = self.space.layout_of(self._reduced_to(operation))
            return Layout((*stacked, *rest.sizes), (*(rest.numel for _ in stacked), *rest.strides))
        if operation is self.group.anchor:
            return result_layout(operation)
        return self._layout(View(result, Layout(result.layout.sizes, result.layout.strides)), self._per(operation))

    def _per(self, operation: Map | Reduce | Scan) -> str:
        """Kind of an operation's result: "full", or one number per "row" or "channel"."""
        if operation in self.group.per_row:
            return "row"
        (result,) = operation.results
        return "full" if result in self.group.copies or result.layout.numel == self.space.numel else "channel"

    def _reduced_to(self, operation: Reduce) -> str:
        """Kind of a reduction's result that is complete after the kernel: "channel", "plane", "height" or "scalar"."""
        index_map = without(operation.input.layout, operation.over)
        if not index_map:
            return "scalar"
        return "height" if index_map == self.space.height_map else self.space.dense_kind(index_map)

    def _output(self, operation: Operation):
        """Output of the program that stores an operation's result."""
        per = self._per(operation)
        if isinstance(operation, Reduce) and per != "row":
            value = self._read(operation.input, self.full_map)
            kind = self._reduced_to(operation)
            over = "all" if kind == "scalar" else kind
            if operation.kind == "moments":
                return p.moments(value, over)
            dtype = operation.results[0].dtype
            dtype = None if dtype in (torch.float32, torch.float64) else dtype
            if operation.kind != "sum":
                return {"max": p.max, "prod": p.prod}[operation.kind](value, over, dtype)
            return dataclasses.replace(p.sum(value, over, dtype), term_by_term=True)
        if operation is self.group.anchor:
            return p.store(p.acc())
        index_map = {"full": self.full_map, "channel": self.space.channel_map, "row": self.group.rows}[per]
        value = self._computed(operation, index_map)
        dtype = operation.results[0].dtype
        output = p.store(
            value, None if dtype == self.dtype and per == "full" else dtype, "element" if per == "full" else per
        )
        written = self.group.copies.get(operation.results[0])
        if not isinstance(written, Targets):
            return output
        return dataclasses.replace(output, targets=self._targets(written, operation.results[0].device))

    def _targets(self, written: Targets, device: torch.device) -> ProgramTargets:
        """The places to which rows are written, whose table is an operand."""
        table, layout = table_of_targets(written, self.space, device)
        value = self.tables.values[table]
        name = next((name for name, (view, _) in self.tensors.items() if view.value is value), f"t{len(self.tensors)}")
        self.tensors[name] = View(value, value.layout), layout
        return ProgramTargets(name, table.alignment)

    def _computed(self, operation: Operation, index_map: IndexMap) -> Expression:
        """Expression of an operation's result, read by this index map."""
        key = operation, index_map
        if key not in self.known:
            if operation is self.group.anchor:
                self.known[key] = p.acc()
            elif isinstance(operation, Reduce):
                reduce = {"sum": early_row_sum, "max": p.row_max, "prod": p.row_prod}[operation.kind]
                self.known[key] = reduce(self._read(operation.input, self.full_map))
            elif isinstance(operation, Scan):
                scan = {"cumsum": p.row_cumsum, "cumprod": p.row_cumprod}[operation.kind]
                self.known[key] = scan(self._read(operation.input, self.full_map), operation.is_reversed)
            else:
                full_map = full_map_of(operation.results[0].layout.numel)
                operands = [
                    self._read(view, index_map if operand_map == full_map else operand_map)
                    for view, operand_map in self.group.operand_maps(operation)
                ]
                self.known[key] = operation.expression(*operands)
        return self.known[key]

    def _read(self, view: View, index_map: IndexMap) -> Expression:
        """Expression of a view: computed in the program, gathered, or an operand."""
        maker = view.value.maker
        if maker in self.members and self.group.knows(view, index_map):
            return self._computed(maker, index_map)
        input_key = self.group.input_key(view, index_map)
        if input_key not in self.group.inputs:
            operands = inlined(view, index_map, self.full_map)
            if operands is None:
                raise ValueError(f"{view} is no input of the group that needs it")
            if isinstance(maker, Indexed):
                return self._read(*operands[0])
            key = maker, view.layout.offset, index_map
            if key not in self.inlined:
                self.inlined[key] = maker.expression(*(self._read(*operand) for operand in operands))
            return self.inlined[key]
        if view.value in self.group.gathers:
            return self._gathered(view, index_map)
        view, index_map = self.group.inputs[input_key], input_key[2]
        if isinstance(index_map, Access):
            return self._mapped(view, index_map)
        kind = self.space.kind(index_map)
        kind = "full" if kind == "transposed" else kind
        layout = self._strided(view, index_map) if self.space.is_strided(index_map) else self._layout(view, kind)
        if is_channel_index(self.group, view, index_map):
            return p.channel_index()
        if self.acc is not None and kind == "full" and self.acc[0].value is view.value and self.acc[1] == layout:
            return p.acc()
        key = view.value, layout, kind
        if key not in self.names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = view, layout
            self.names[key] = Expression(kind, attribute=name)
        return self.names[key]

    def _mapped(self, view: View, access: Access) -> Expression:
        """Expression of a view that is read through maps of its axes."""
        original = access
        placement, access = self.space.placement(access), self.space.by_columns(access)
        layout = Layout(placement.sizes, placement.strides, view.layout.offset)
        key = view.value, layout, access
        if key not in self.names:
            name, kinds, alignment = f"t{len(self.tensors)}", [], 16
            by_lines = self.group.rows is None and self.space.reads_lines(original)
            within, shift = (), 0
            self.tensors[name] = view, layout
            for i, term in enumerate(access.terms):
                table, of_table = table_of(term, self.space, view.value.device)
                value = self.tables.values[table]
                self.tensors[map_of(name, i)] = View(value, value.layout), of_table
                kinds.append(table.kind)
                is_of_columns = of_table == table.layout and not by_lines
                if is_of_columns and table.run == 1:
                    within, shift = self._within(table, view, layout, access)
                if not within or not is_of_columns:
                    alignment = min(alignment, table.run if is_of_columns else table.alignment)
            mostly = access.mostly_chooses
            self.names[key] = mapped(name, tuple(kinds), access.number, alignment, within, shift, mostly)
        return self.names[key]

    def _within(self, table: MapTable, view: View, lines: Layout, access: Access) -> tuple[tuple[int | None, ...], int]:
        """The element of a group that each column of a group has, and how far before the view the groups begin; () if
        there are no such groups, or if they are not all in the value's memory, however far maps of lines go."""
        within, shift = columns_within(table, lines.offset) or ((), 0)
        last = lines.offset + sum((n - 1) * stride for n, stride in zip(lines.sizes, lines.strides, strict=True))
        of_lines = (term for term in access.terms if all(inner >= self.space.channels for inner, *_ in term.digits))
        last += sum((term.map.size - 1) * term.stride for term in of_lines)
        memory = view.value.memory or view.value.layout
        is_in_memory = lines.offset >= shift and last + self.space.channels - shift <= span(memory)
        return (within, shift) if is_in_memory else ((), 0)

    def _gathered(self, view: View, index_map: IndexMap) -> Expression:
        """Expression that gathers a view's rows from a table."""
        gather = self.group.gathers[view.value]
        layout = gather.layout(self.space, view, index_map)
        key = view.value, layout, "table"
        if key not in self.names:
            name = f"t{len(self.tensors)}"
            self.tensors[name] = gather.table, gather.table.layout
            self.tensors[p.index_of(name)] = gather.index, layout
            self.names[key] = p.table(name)
        return self.names[key]


def _shaped(
    space: IterationSpace, layouts: Iterable[Layout], operands: set[IndexMap], reductions: set[IndexMap]
) -> IterationSpace:
    """The space with the sizes of one of the four-dimensional tensors of these layouts, which then needs no view; the
    space itself if there is none that fits."""
    if space.order:
        return space
    free = space.images == space.channels == 1 and not space.nhwc  # no operand is broadcast
    for layout in layouts:
        if len(layout.sizes) != 4 or layout.numel != space.numel:
            continue
        n, c, h, w = layout.sizes
        for nhwc in (True, False):
            same = (n * h * w, c, nhwc) == (space.images * space.pixels, space.channels, space.nhwc)
            if not nhwc:
                same = same and n == space.images
            candidate = IterationSpace(n, c, h, w, nhwc)
            if not (same or free) or min(c, h * w) == 1 or layout.strides != candidate.layout.strides:
                continue
            if fits(candidate, operands, reductions, transposes=True):
                return candidate
    return space
