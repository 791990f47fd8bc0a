"""A bias that is added to a matrix product joins it on GPUs, whose kernels add it for nothing. PyTorch's linear layer
inputs it apart where its input's rows are not adjacent."""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Map, Value, View
from ..ir.layout import Layout

aten = torch.ops.aten


def fold_biases(graph: Graph) -> None:
    uses: dict[Value, int] = {}
    for view in (*(view for each in graph.operations for view in each.operands), *graph.output_views()):
        uses[view.value] = uses.get(view.value, 0) + 1
    places = {each: place for place, each in enumerate(graph.operations)}
    instead: dict[Value, View] = {}
    for operation in graph.operations:
        found = _product_and_bias(operation)
        if found is None:
            continue
        product, bias = found
        maker = bias.value.maker
        made_later = maker is not None and places[maker] > places[product.value.maker]
        if uses[product.value] > 1 or made_later:
            continue
        call = product.value.maker
        call.operator, call.args = aten.addmm.default, (bias, *call.args)
        instead[operation.results[0]] = product

    def folded(view: View) -> View:
        source = instead.get(view.value)
        return view if source is None else View(source.value, view.layout)

    gone = set(instead)
    graph.operations = [each for each in graph.operations if not gone & {result for result in each.results}]
    for operation in graph.operations:
        operation.change_operands(folded)
    graph.outputs = [folded(each) if isinstance(each, View) else each for each in graph.outputs]


def _product_and_bias(operation) -> tuple[View, View] | None:
    """What it adds, if that is a whole matrix product and a vector of its columns."""
    if not isinstance(operation, Map) or operation.name != "add" or len(operation.inputs) != 2:
        return None
    (result,) = operation.results
    for product, bias in (operation.inputs, operation.inputs[::-1]):
        call, own = product.value.maker, bias.layout
        if not isinstance(call, Call) or call.operator is not aten.mm.default or result.device.type == "cpu":
            continue
        columns = product.value.layout.sizes[1]
        same = {result.dtype, product.value.dtype, bias.value.dtype} == {result.dtype}
        is_vector = own.sizes[-1:] == (columns,) and own.strides[-1] == 1 and not any(own.strides[:-1])
        # The product's columns are the last dimension.
        is_full = (
            product.is_full
            and product.layout.strides[-1] == 1
            and product.value.layout.strides[1] == 1
            and product.layout.matches(result.layout)
            and product.value.layout.is_dense
        )
        if same and is_vector and is_full and result.layout.is_dense:
            return product, View(bias.value, Layout((columns,), (1,), own.offset))
    return None
