"""Let matrix products on Hopper run the element-wise operations that follow them in their own kernels.

PyTorch's product and a stitched kernel write the product's result and read it again. A kernel of this package that
computes both (csrc/hip/tma_gemm) does not, but the operations take issue slots while it multiplies. A product becomes
an anchor of fusion (:class:`Product`) if the expected time falls, by the selector of products (docs/selector.md) or,
where there are no weights for it, by ir/epilogue_cost.py. It says which operations may join it: those whose stored
results the kernel's copy engine can store, and one reduction of each column, as for a bias's gradient. What is reduced
along rows, like a layer norm's operand, is read by another kernel again, which counts.

A bias of ``aten.addmm`` becomes an operation again. The second factor may lie in memory by columns or, as in input
gradients, by rows. Products with rows that begin at no multiples of 16 bytes or of other data types stay calls. The
operations are unchanged, so are values, except that the product is not rounded before them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import torch

from ... import program as p
from ...program import Output, Program
from ...program import Value as Expression
from ...runtime.config import settings
from ...runtime.dtypes import NARROW
from ..ir.device_model import GPUS, device_of, flops, predicted_us
from ..ir.epilogue_cost import epilogue_us, slots_of
from ..ir.graph import Call, Geometry, Graph, Indexed, Map, Operation, Reduce, Value, View, is_cast
from ..ir.index_maps import operand_maps, without
from ..ir.iteration_space import IterationSpace
from ..ir.layout import Layout
from ..ir.product import PRODUCTS, Product, result_layout

aten = torch.ops.aten
_COPIES = (aten.cat.default, torch.ops.reformer._contiguous.default)  # calls whose work a stitched kernel may take over
_POINTWISE = Geometry((1, 1), (0, 0), (1, 1), 1)
_MOST_LOADED, _MOST_STORED = 2, 2  # tensors that the copy engine loads and stores (csrc/hip/tma_gemm/tma_gemm.h)
_ALIGNED = 16  # bytes
_SHARPNESS = 32  # the selector's logits differ by so much times the logarithm of the ratio of times
_LEAST_PROBABILITY = 1e-12
_LEAST = 132 * 128 * 128  # elements whose tiles fill a GPU: libraries split the depth of smaller products


def anchor_products(graph: Graph, gpu: str | None) -> None:
    """Replace products by anchors where that is expected to take less time on this GPU (a key of GPUS)."""
    if gpu is None or not GPUS[gpu].has_tma or settings().force or settings().epilogues == "separate":
        return
    uses, operations = _Uses(graph), []
    for call in uses.operations:
        factors = _factors(call)
        if factors:
            graph.operations = operations.copy()
            product = _add_anchor(graph, device_of(gpu), call, *factors)
            product.epilogue = _Epilogue(product, call, uses).best(gpu)
            if product.epilogue:
                operations = graph.operations
                continue
            call.results[0].maker = call
        operations.append(call)
    graph.operations = operations


class _Uses:
    """Operations by their place in the graph, the places of each value's readers, and what each value needs.

    Attributes:
        readers: as of Graph.readers().
        before: operations that each value needs, as bits by their places.
    """

    def __init__(self, graph: Graph):
        self.operations = list(graph.operations)
        self.readers = graph.readers()
        self.place = {operation: place for place, operation in enumerate(self.operations)}
        self.before: dict[Value, int] = {}
        for place, operation in enumerate(self.operations):
            bits = 1 << place
            for view in operation.operands:
                bits |= self.before.get(view.value, 0)
            for value in operation.results:
                self.before[value] = bits


def _factors(call: Operation) -> tuple[View | None, View, View] | None:
    """Bias, and factors, of a product that the kernels compute; else None."""
    if not isinstance(call, Call) or call.operator not in PRODUCTS or call.kwargs:
        return None
    *biases, first, second = call.args
    bias = biases[0] if biases else None
    (result,) = call.results
    types = {result.dtype, first.value.dtype, second.value.dtype}
    if len(types) > 1 or result.dtype not in NARROW or result.memory is not None:
        return None
    sizes = (*first.layout.sizes, second.layout.sizes[1])
    if not all(type(size) is int and size > 1 for size in sizes) or not result.layout.is_row_major:
        return None
    if not first.layout.is_row_major:
        return None
    if not second.layout.is_row_major and not second.transposed().layout.is_row_major:
        return None
    if sizes[0] * sizes[2] < _LEAST:
        return None
    elements = _ALIGNED // result.dtype.itemsize
    if any(number % elements for number in (*sizes[1:], first.layout.offset, second.layout.offset)):
        return None
    if bias is not None and (bias.layout.sizes, bias.layout.strides) != ((sizes[2],), (1,)):
        return None
    return bias, first, second


def _add_anchor(graph: Graph, device: str, call: Call, bias: View | None, first: View, second: View) -> Product:
    """Add the product, and the addition of its bias."""
    (result,) = call.results
    (rows, depth), columns = first.layout.sizes, second.layout.sizes[1]
    image = View(first.value, Layout((1, depth, rows, 1), (rows * depth, 1, depth, depth), first.layout.offset))
    of_depth, of_column = second.layout.strides
    pitch = max(of_depth, of_column)
    filter = View(
        second.value, Layout((columns, depth, 1, 1), (of_column, of_depth, pitch, pitch), second.layout.offset)
    )
    product = Product(image, filter, _POINTWISE, None, frozenset(), device)
    product.node = call.node
    graph.operations.append(product)
    if bias is None:
        product.results, result.maker = [result], product
        return product
    value = graph.value(result.layout, result.dtype, result.device)
    product.results, value.maker = [value], product
    spread = View(bias.value, Layout((rows, columns), (0, 1), bias.layout.offset))
    add = Map([View(value, value.layout), spread], "add", lambda x, y: x + y)
    add.node, add.results, result.maker = call.node, [result], add
    product.bias = add
    graph.operations.append(add)
    return product


class _Epilogue:
    """The operations that may follow a product in its kernel."""

    def __init__(self, product: Product, call: Call, uses: _Uses):
        self.product, self.bias, self.uses = product, [product.bias] if product.bias else [], uses
        self.result, self.call = product.results[0], call
        self.space = IterationSpace(1, *result_layout(product).sizes[1:3], 1, True)
        self.inside = self._following(set())
        self.reductions: list[Reduce] = []  # of columns; kernels compute one

    def best(self, gpu: str) -> frozenset[Operation]:
        """As many operations as one kernel computes; none if it is expected to take longer than two."""
        refused: set[Operation] = set()
        while (operation := self._unsupported()) is not None:
            refused.add(operation)
            self.inside = self._following(refused)
        if self.product.is_call(self.inside):
            return frozenset()
        saved = self._saved_us(gpu)
        self.reductions = self._reductions()
        if self.reductions:
            with_reductions = self._saved_us(gpu)
            if with_reductions > saved:
                saved = with_reductions
            else:
                self.reductions = []
        return frozenset([*self.inside, *self.reductions]) if saved > 0 else frozenset()

    def _readers(self, value: Value) -> list[Operation | None]:
        """The operations that read a value; None stands for a result of the graph."""
        return self.bias if self.bias and value is self.result else self.uses.readers.get(value, [])

    def _following(self, refused: set[Operation]) -> list[Map]:
        """Element-wise operations on the product's result that need nothing else which needs the product."""
        inside = [operation for operation in self.bias if operation not in refused]
        known = {self.result, *(operation.results[0] for operation in inside)}
        todo = [
            self.uses.place[reader] for value in known for reader in self._readers(value) if reader in self.uses.place
        ]
        heapq.heapify(todo)
        while todo:
            place = heapq.heappop(todo)
            operation = self.uses.operations[place]
            if operation in refused or operation.results and operation.results[0] in known:
                continue
            if self._is_element_wise(operation, known):
                inside.append(operation)
                known.add(operation.results[0])
                for reader in self._readers(operation.results[0]):
                    if reader is not None:
                        heapq.heappush(todo, self.uses.place[reader])
        return self._with_operands(inside, refused)

    def _with_operands(self, inside: list[Map], refused: set[Operation]) -> list[Map]:
        """These operations and, before them, others whose results only these read."""
        todo = list(inside)
        members = set(inside)
        while todo:
            for value in _values(todo.pop()):
                maker = value.maker
                if maker in members or maker in refused or not members.issuperset(self._readers(value)):
                    continue
                if self._is_element_wise(maker, set()):
                    members.add(maker)
                    todo.append(maker)
        return sorted(members, key=lambda operation: self.uses.place.get(operation, -1))

    def _is_element_wise(self, operation: Operation | None, known: set[Value]) -> bool:
        """True for an element-wise operation that a program computes in the order of the product's memory."""
        if not isinstance(operation, Map) or isinstance(operation, Indexed):
            return False
        (result,) = operation.results
        if result.layout.numel != self.space.numel or not result.layout.is_dense or result.memory is not None:
            return False
        product = self.uses.place[self.call]
        for view, index_map in operand_maps(operation):
            kind = self.space.dense_kind(index_map)
            if kind not in ("full", "channel", "scalar", "random") or (kind == "full" and not view.is_full):
                return False
            if view.value in known:
                if kind != "full":
                    return False
            elif self.uses.before.get(view.value, 0) >> product & 1 or view.value.dtype == torch.float64:
                return False
        return True

    def _reductions(self) -> list[Reduce]:
        """The first reduction of columns of the first tensor that is stored, which stays one that others read."""
        stored = self._stored()
        value = next(iter(stored), None)
        for reader in stored.get(value, ()):
            if isinstance(reader, Reduce) and len(stored[value]) > 1 and self._is_of_columns(reader):
                return [reader]
        return []

    def _is_of_columns(self, operation: Reduce) -> bool:
        """True if the operation reduces each column of a tensor that is as large as the product and lies as it does."""
        layout, (result,) = operation.input.layout, operation.results
        if layout.numel != self.space.numel or not operation.input.is_full or result.dtype == torch.float64:
            return False
        return self.space.dense_kind(without(layout, operation.over)) == "channel"

    def _unsupported(self) -> Operation | None:
        """An operation without which one kernel may be possible; None if it is possible."""
        stored = [value for value in self._stored() if value is not self.result]
        for value in stored:
            if value.dtype != self.result.dtype or any(map(_is_copy, self._readers(value))):
                return value.maker
        if len(self._stored()) > _MOST_STORED:
            return stored[-1].maker
        loaded = self._loaded()
        excess = {value for value in loaded if value.dtype != self.result.dtype} or set(loaded[_MOST_LOADED:])
        return next((each for each in reversed(self.inside) if not excess.isdisjoint(_values(each))), None)

    def _stored(self) -> dict[Value, list[Operation | None]]:
        """Results that other operations read, and these."""
        inside: set[Operation | None] = {*self.inside, *self.reductions}
        stored: dict[Value, list[Operation | None]] = {}
        for value in (self.result, *(operation.results[0] for operation in self.inside)):
            if others := [reader for reader in self._readers(value) if reader not in inside]:
                stored.setdefault(self._narrow(value), []).extend(others)
        return stored

    def _narrow(self, value: Value) -> Value:
        """The operand of a cast to a wider type, which the kernels that read the cast's result repeat; else the
        value."""
        maker = value.maker
        if value is self.result or not is_cast(maker) or None in self._readers(value):
            return value
        (source,) = _values(maker)
        return source if source.dtype.itemsize < value.dtype.itemsize else value

    def _loaded(self) -> list[Value]:
        """Tensors as large as the result that are read."""
        known = {self.result, *(operation.results[0] for operation in self.inside)}
        read = (pair for operation in self.inside for pair in operand_maps(operation))
        full = (view.value for view, index_map in read if self.space.dense_kind(index_map) == "full")
        return [value for value in dict.fromkeys(full) if value not in known and not _is_constant(value)]

    def _saved_us(self, gpu: str) -> float:
        """Microseconds that one kernel is expected to save."""
        stored, loaded = self._stored(), self._loaded()
        of_loaded, size = sum(value.bytes for value in loaded), self.result.bytes
        of_factors = sum(view.value.bytes for view in self.product.operands)
        written = again = 0
        for value, readers in stored.items():
            fused = sum(map(self._is_beside, readers))
            again += value.bytes if fused else 0
            written += value.bytes if value is not self.result and fused < len(readers) else 0
        separate = predicted_us(gpu, "stitch columns" if self.reductions else "stitch", size + of_loaded + written, 0)
        lost = 0.0
        if again:  # a kernel that reads the product's result is left, and reads these instead
            lost += predicted_us(gpu, "stitch", again, 0)
        if self.reductions:  # another kernel adds up the blocks' results
            lost += predicted_us(gpu, "stitch", 0, 0)
        work = flops(self.product)
        share = self._share_saved(stored)
        if share is not None:
            return share * (predicted_us(gpu, "product", of_factors + size, work) + separate) - lost
        bytes = of_factors + size, of_factors + of_loaded + sum(value.bytes for value in stored)
        slots = slots_of([*self.inside, *self.reductions], len(loaded), len(stored))
        return separate - lost - epilogue_us(gpu, self.space.numel, work, bytes, slots)

    def _is_beside(self, reader: Operation | None) -> bool:
        """True for an operation that a kernel behind the product could compute with the epilogue's: of the same part of
        a training step."""
        return isinstance(reader, (Map, Reduce)) and reader.part == self.call.part

    def _share_saved(self, stored: Iterable[Value]) -> float | None:
        """Share of the time of PyTorch's product and a separate kernel that one kernel saves, by the selector of
        products; None if there is no selector."""
        probability = self.product.choice(self._program(stored)).probability
        if math.isnan(probability):
            return None
        odds = min(max(probability, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
        return 1 - ((1 - odds) / odds) ** (1 / _SHARPNESS)

    def _program(self, stored: Iterable[Value]) -> Program:
        """The operations as a program that stores these values."""
        known = {self.result: p.acc()}
        operands: dict[tuple[Value, str], Expression] = {}

        def read(view: View, kind: str) -> Expression:
            if view.value in known:
                return known[view.value]
            return operands.setdefault((view.value, kind), Expression(kind, attribute=f"t{len(operands)}"))

        for operation in self.inside:
            read_values = [read(view, self.space.dense_kind(map)) for view, map in operand_maps(operation)]
            known[operation.results[0]] = operation.expression(*read_values)
        reduced = [Output(each.kind, known[each.input.value], "channel") for each in self.reductions]
        return Program(*(p.store(known[value]) for value in stored), *reduced)


def _values(operation: Operation) -> list[Value]:
    return [view.value for view in operation.operands]


def _is_constant(value: Value) -> bool:
    return isinstance(value.maker, Map) and not value.maker.inputs


def _is_copy(reader: Operation | None) -> bool:
    return isinstance(reader, Call) and reader.operator in _COPIES
