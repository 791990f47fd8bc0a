"""Emit the steps of a plan (runtime/plan.py) for a fusion's groups and extern calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...runtime import plan as plans
from ...runtime.sizes import Real
from ..fusion.greedy import Fusion
from ..fusion.group import FusionGroup
from ..fusion.schedule import is_after, needed_in_memory, schedule
from ..fusion.titles import kind_and_operations, title
from ..ir.access import Access
from ..ir.collectives import is_all_reduce
from ..ir.concats import is_concat, memory_of, parts_of
from ..ir.custom_ops import add_product, append, embedding_grad, packed_starts, scale_in_place
from ..ir.graph import Call, Casts, Conv, ConvGrads, Graph, Operation, Typed, Value, View, replaced
from ..ir.iteration_space import IterationSpace
from ..ir.layout import Layout
from ..ir.product import Product, result_layout
from ..ir.stages import blamed
from ..ir.targets import Targets
from .kernel_program import KernelProgram
from .map_tables import MapTable, MapTables

aten = torch.ops.aten
_conv2d = torch.ops.reformer._conv2d.default
_mm, _addmm = torch.ops.aten.mm.default, torch.ops.aten.addmm.default
_empty = torch.ops.aten.empty_strided.default
_full = torch.ops.aten.full.default
_zero = torch.ops.aten.zero_.default
_cat = torch.ops.aten.cat.default
_cast_all = torch.ops.reformer._cast_all.default
# Calls whose results are in memory of their own, or of an input that is dead afterwards.
_SUMS = _mm, aten.mm.dtype, _addmm, add_product, embedding_grad, scale_in_place


@dataclass(frozen=True)
class EmittedPlan:
    """A plan that takes a graph's inputs and gives those of its outputs that are tensors, in order.

    Attributes:
        types: layout, dtype and device of the plan's tensors, by number, as far as this package's own steps read them.
        tables: constants that the plan takes after the graph's inputs.
        steps: for each group or call of the fusion, in the order in which they run, its steps.
    """

    plan: plans.Plan
    types: dict[int, Typed]
    tables: list[MapTable]
    steps: dict[int, range]


def emit_plan(graph: Graph, fusion: Fusion) -> EmittedPlan:
    """Emit the plan of a graph.

    Raises:
        Cyclic: the groups have no order.
    """
    return _Emitter(graph, fusion).run()


class _Emitter:
    def __init__(self, graph: Graph, fusion: Fusion):
        self.graph, self.fusion, self.readers = graph, fusion, graph.readers()
        self.tables = MapTables()
        for group in fusion.groups.values():
            for value, _, index_map in group.inputs:
                if isinstance(index_map, Access):
                    self.tables.add(index_map, group.space, value.device)
            for value, index_map in group.copies.items():
                if isinstance(index_map, Targets):
                    self.tables.add_targets(index_map, group.space, value.device)
        inputs = [*graph.inputs, *self.tables.values.values()]
        self.steps = plans.Plan(len(inputs))
        self.base: dict[Value, tuple[int, Layout]] = {}  # value -> number of its tensor, and the layout of that
        self.views: dict[tuple[Value, Layout], int] = {}
        self.types: dict[int, Typed] = {}
        self.numbers: dict[tuple[str, torch.device], Value] = {}
        for i, value in enumerate(inputs):
            self._bind(value, i, value.layout)
        for value, view in graph.parts.items():
            self._bind(value, self._number(view), value.layout)
        self.needed = needed_in_memory(fusion, (*fusion.groups, *fusion.extern_calls))

    def run(self) -> EmittedPlan:
        steps: dict[int, range] = {}
        for number in schedule(self.fusion):
            first = len(self.steps.steps)
            group, call = self.fusion.groups.get(number), self.fusion.extern_calls.get(number)
            with blamed("lowering", [call] if call else group.computed):
                if call:
                    self._extern_call(call)
                else:
                    self._group(group)
            self.steps.name(first, title(*kind_and_operations(call or group)))
            steps[number] = range(first, len(self.steps.steps))
        self.steps.give(*(self._number(view) for view in self.graph.output_views()))
        return EmittedPlan(self.steps, self.types, [*self.tables.values], steps)

    def _bind(self, value: Value, number: int, layout: Layout) -> None:
        """Note that tensor ``number`` of the plan, which has this layout, holds a value."""
        self.base[value] = number, layout
        self.views[value, layout] = number
        self.types[number] = Typed(layout, value.dtype, value.device)

    def _number(self, view: View, layout: Layout | None = None) -> int:
        """Number of the tensor for a view, or for the view's value in another layout."""
        layout = layout or view.layout
        key = view.value, layout
        if key not in self.views:
            number, base = self.base[view.value]
            offset = layout.offset - base.offset if layout.numel else 0
            (self.views[key],) = self.steps.view(number, layout.sizes, layout.strides, offset)
            self.types[self.views[key]] = Typed(layout, view.value.dtype, view.value.device)
        return self.views[key]

    def _extern_call(self, operation: Operation) -> None:
        if isinstance(operation, ConvGrads):
            numbers = [self._number(view) for view in operation.operands]
            results = self.steps.conv2d_grads(operation.wanted, _geometry(operation), *numbers)
        elif isinstance(operation, Casts):
            results = self._casts(operation)
        elif is_after(operation):
            results = [self._number(operation.operands[0])]
        elif operation.operator is add_product:
            results = [self._add_product(operation)]
        elif operation.operator is embedding_grad and len(operation.args) > 5:
            results = [self._add_embedding_grad(operation)]
        elif operation.operator is append:
            results = [self._append(operation)]
        elif is_all_reduce(operation.operator) and self._is_for(operation, operation.operands[0].value):
            results = self._all_reduce(operation)
        else:
            args, kwargs = (replaced(arguments, self._number) for arguments in (operation.args, operation.kwargs))
            layouts = [(result.layout.sizes, result.layout.strides) for result in self._checked(operation)]
            results = self.steps.aten(operation.operator, args, kwargs, operation.lengths, layouts)
            if operation.parts:
                results = self.steps.parts(*results, len(operation.results))
        for value, number in zip(operation.results, results, strict=True):
            self._bind(value, number, value.layout)

    def _add_product(self, operation: Call) -> int:
        """Emit the sum of a tensor and a product, in place of the tensor if nothing else reads it."""
        sum, *factors = operation.operands
        total = self._summed(sum, operation)
        dtype = sum.value.dtype
        if factors[0].value.dtype == dtype:
            self.steps.aten(aten.addmm.out, (total, *map(self._number, factors)), {"out": total})
        else:  # torch 2.11's addmm takes no sum that is wider than the factors
            batch, *matrices = (_as_batch(view) for view in (sum, *factors))
            (out,) = self.steps.view(total, batch.layout.sizes, batch.layout.strides)
            self.steps.aten(aten.baddbmm.dtype_out, (out, *map(self._number, matrices), dtype), {"out": out})
        return total

    def _add_embedding_grad(self, operation: Call) -> int:
        """Emit the sum of a tensor and the gradient of a table, in place of the tensor if nothing else reads it."""
        grad, ids, _, padding, _, sum = operation.args
        total = self._summed(sum, operation)
        args = total, self._number(grad), self._number(ids), padding, *operation.kwargs.values()
        self.steps.aten(torch.ops.reformer._add_embedding_grad_.default, args, {})
        return total

    def _summed(self, sum: View, operation: Call) -> int:
        """Number of the tensor to which the operation adds: the sum so far, or a copy of it if it is not the plan's own
        or something else reads it."""
        total, value = self._number(sum), sum.value
        readers = [each for each in self.readers[value] if each is None or not is_after(each)]
        is_own = getattr(value.maker, "operator", None) in _SUMS or self._is_made(value)
        if readers == [operation] and is_own and sum.layout.is_row_major:
            return total
        (total,) = self.steps.aten(aten.clone.default, (total,), {"memory_format": torch.contiguous_format})
        return total

    def _append(self, call: Call) -> int:
        """Emit copies of an append's parts to its memory."""
        for part in parts_of(call):
            slice = self._part(part.slice, part.slice.layout)
            self.steps.aten(aten.copy_.default, (slice, self._number(part.view)))
        return self._in_memory(call.results[0])

    def _is_for(self, call: Call, value: Value) -> bool:
        """True if the plan makes the value, in memory of its own, for this call only."""
        is_cat = getattr(value.maker, "operator", None) is _cat
        return (is_cat or self._is_made(value)) and self.readers[value] == [call]

    def _is_made(self, value: Value) -> bool:
        """True if a program of the plan makes the value, in memory of its own."""
        group = self.fusion.groups.get(self.fusion.group_of.get(value.maker, -1))
        return bool(group) and value not in group.destinations

    def _all_reduce(self, call: Call) -> list[int]:
        """Emit an all-reduce in place of its operand, whose copy would move as many bytes."""
        args, kwargs = (replaced(arguments, self._number) for arguments in (call.args, call.kwargs))
        self.steps.aten(torch.ops._c10d_functional.all_reduce_.default, args, kwargs)
        return [self._number(view) for view in call.operands]

    def _checked(self, operation: Call) -> list[Value]:
        """Results whose sizes and strides the plan checks: those up to the last that is read.

        PyTorch's fake tensors are sometimes wrong about a result that is only for a backward."""
        if operation.writes or operation.parts:
            return []
        results = list(operation.results)
        while results and results[-1] not in self.needed:
            results.pop()
        return results

    def _casts(self, operation: Casts) -> list[int]:
        """Emit one step that casts all inputs, into slices of one allocation or separate tensors."""
        results, numbers = operation.results[: len(operation.inputs)], []
        options = {"dtype": results[0].dtype, "device": results[0].device}
        if operation.parts:
            *starts, length = packed_starts(result.layout.numel for result in results)
            (memory,) = self.steps.aten(_empty, ((length,), (1,)), options)
        for i, result in enumerate(results):
            layout = result.layout
            if operation.parts:
                numbers += self.steps.view(memory, layout.sizes, layout.strides, starts[i])
            else:
                numbers += self.steps.aten(_empty, (layout.sizes, layout.strides), options)
        self.steps.aten(_cast_all, ([self._number(view) for view in operation.inputs], numbers))
        memories = zip(operation.spans, operation.results[len(operation.inputs) :], strict=True)
        spans = [
            self.steps.view(memory, span.layout.sizes, span.layout.strides, starts[first])
            for (first, _), span in memories
        ]
        return [*numbers, *(number for (number,) in spans)]

    def _group(self, group: FusionGroup) -> None:
        """Emit the kernel of a group."""
        results = group.makes if group.space and group.space.order else group.copies.keys()
        own = results | group.parts.keys()
        placed = group.destinations.keys() | group.reused.keys() | (own & self.needed)  # others are only reduced
        written = [operation for operation in group.operations if operation.results[0] in placed]
        others = [operation for operation in group.members if operation not in written]
        stored = [*(operation for operation in others if operation.results[0] in self.needed), *written]
        if not stored:
            return
        anchor = group.anchor
        if isinstance(anchor, Product) and len(stored) == 1 and self._is_call(anchor, stored[0]):
            self._product(anchor, stored[0])
            return
        if stored == [group.anchor]:
            operands = [self._number(view) for view in group.anchor.operands]
            (result,) = self.steps.aten(_conv2d, (*operands, None, _geometry(group.anchor)))
            self._bind(group.anchor.results[0], result, group.anchor.results[0].layout)
            return
        kernel = KernelProgram(group, stored, self.tables, self._number_in_memory)
        if isinstance(anchor, Product) and not _is_computed_by_kernel(anchor, kernel):
            self._product(anchor, anchor)
            stored = [operation for operation in stored if operation is not anchor]
            kernel = KernelProgram(group, stored, self.tables, self._number_in_memory)
            layout = result_layout(anchor)
            kernel.acc = View(anchor.results[0], layout), layout
        tensors = [self._number(*kernel.tensors[name]) for name in kernel.program.names]
        if group.anchor and kernel.acc is None:
            operands = [self._number(view) for view in group.anchor.operands]
            results = self.steps.conv2d(kernel.program.code, _geometry(group.anchor), *operands, tensors)
        else:
            if kernel.acc is None:
                acc = self._memory(kernel.space.layout, kernel.dtype, stored[0].results[0].device)
            else:
                acc = self._number(*kernel.acc)
            existing = [self._written(group, operation.results[0], kernel.space) for operation in written]
            results = self.steps.stitch(kernel.program.code, acc, tensors, existing)
        for operation, number in zip(stored, results, strict=True):
            if operation.results[0] not in placed or group.written_map(operation.results[0]) is None:
                self._bind(operation.results[0], number, kernel.layout_of(operation))

    def _is_call(self, product: Product, stored: Operation) -> bool:
        """True if PyTorch's operator computes what is stored. It takes a bias from memory; the group may have computed
        the bias itself, by a cast."""
        return stored is product or (stored is product.bias and _bias(product, stored).value in self.base)

    def _product(self, product: Product, stored: Operation) -> None:
        """Emit a product, or its sum with its bias, as PyTorch's operator."""
        factors = [self._number(view) for view in product.matrices]
        if stored is product:
            (number,) = self.steps.aten(_mm, factors)
        else:
            bias = _bias(product, stored)
            layout = Layout(bias.layout.sizes[-1:], bias.layout.strides[-1:], bias.layout.offset)
            (number,) = self.steps.aten(_addmm, (self._number(View(bias.value, layout)), *factors))
        self._bind(stored.results[0], number, stored.results[0].layout)

    def _number_in_memory(self, number: Real, device: torch.device) -> Value:
        """A tensor of one element that holds a number, which is computed of sizes."""
        key = repr(number), device
        if key not in self.numbers:
            value = self.numbers[key] = Value(-1, Layout((), ()), torch.float32, device)
            (tensor,) = self.steps.aten(_full, ((), number), {"dtype": value.dtype, "device": device})
            self._bind(value, tensor, value.layout)
        return self.numbers[key]

    def _written(self, group: FusionGroup, value: Value, space: IterationSpace) -> int:
        """Number of the existing tensor, or of newly allocated memory, to which the kernel writes a group's result."""
        reused = group.reused.get(value)
        if (index_map := group.written_map(value)) is None:
            if value in group.parts:
                return self._part(group.parts[value], space.layout_of("full"))
            view = reused or group.destinations[value]
            is_full = reused or view.layout.numel == group.numel
            return self._number(view, space.layout_of("full", view.layout.offset) if is_full else None)
        if value in group.parts:
            return self._part(group.parts[value], space.placement(index_map))
        memory, layout = value.memory or value.layout, value.layout
        if reused:
            number = self._number(View(reused.value, memory))
        else:
            number = self._memory(memory, value.dtype, value.device)
        self._bind(value, number, memory)
        if value.memory:
            *outer, columns = layout.sizes
            rest = memory.sizes[-1] - columns
            self.steps.aten(_zero, self.steps.view(number, (*outer, rest), layout.strides, columns))
        return self._number(View(value, space.placement(index_map)))

    def _part(self, part: View, placement: Layout) -> int:
        """Number of a slice of a concatenation."""
        self._in_memory(part.value)
        return self._number(View(part.value, Layout(placement.sizes, placement.strides, part.layout.offset)))

    def _in_memory(self, value: Value) -> int:
        """Number of a concatenation, which is allocated with its first slice, or is that to which it is appended."""
        if value not in self.base:
            memory = memory_of(value)
            if memory is None:
                number = self._memory(value.layout, value.dtype, value.device)
            elif is_concat(memory.value.maker):
                number = self._number(memory)
            else:  # it is not the plan's own
                (number,) = self.steps.aten(aten.clone.default, (self._number(memory),))
            self._bind(value, number, value.layout)
        return self._number(View(value, value.layout))

    def _memory(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> int:
        (number,) = self.steps.aten(_empty, (layout.sizes, layout.strides), {"dtype": dtype, "device": device})
        self.types[number] = Typed(layout, dtype, device)
        return number


def _bias(product: Product, addition: Operation) -> View:
    (bias,) = (view for view in addition.operands if view.value is not product.results[0])
    return bias


def _is_computed_by_kernel(product: Product, kernel: KernelProgram) -> bool:
    """True if one kernel computes a product with its program, to which fusion may have added sums."""
    return bool(product.choice(kernel.program).is_fused)


def _as_batch(matrix: View) -> View:
    """A batch of one matrix."""
    layout = matrix.layout
    return View(matrix.value, Layout((1, *layout.sizes), (layout.numel, *layout.strides), layout.offset))


def _geometry(operation: Conv | ConvGrads) -> int:
    g = operation.geometry
    return plans.geometry_number(g.stride, g.padding, g.dilation, g.groups)
