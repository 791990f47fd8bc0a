"""Fold bias additions into matrix products on GPUs, whose kernels add a bias at no cost.

PyTorch's linear layer adds the bias separately if the rows of its input are not adjacent.
"""

from __future__ import annotations

import torch

from ..ir.graph import Call, Graph, Map, Operation, Value, View
from ..ir.layout import Layout

aten = torch.ops.aten


def fold_biases(graph: Graph) -> None:
    """Turn products whose only reader adds a bias into aten.addmm."""
    uses = graph.uses()
    places = {operation: place for place, operation in enumerate(graph.operations)}
    instead: dict[Value, View] = {}
    for operation in graph.operations:
        product_and_bias = _product_and_bias(operation)
        if product_and_bias is None:
            continue
        product, bias = product_and_bias
        maker = bias.value.maker
        made_later = maker is not None and places[maker] > places[product.value.maker]
        if uses[product.value] > 1 or made_later:
            continue
        call = product.value.maker
        call.operator, call.args = aten.addmm.default, (bias, *call.args)
        instead[operation.results[0]] = product
    graph.substitute(instead)


def _product_and_bias(operation: Operation) -> tuple[View, View] | None:
    """Operands of an addition, if they are a full-size matrix product on a GPU and a vector with an element per column;
    else None."""
    if not isinstance(operation, Map) or operation.name != "add" or len(operation.inputs) != 2:
        return None
    (result,) = operation.results
    for product, bias in (operation.inputs, operation.inputs[::-1]):
        call, layout = product.value.maker, bias.layout
        if not isinstance(call, Call) or call.operator is not aten.mm.default or result.device.type == "cpu":
            continue
        columns = product.value.layout.sizes[1]
        same = {result.dtype, product.value.dtype, bias.value.dtype} == {result.dtype}
        is_vector = layout.sizes[-1:] == (columns,) and layout.strides[-1] == 1 and not any(layout.strides[:-1])
        # The product's columns are the last dimension of the sum.
        is_full = (
            product.is_full
            and product.layout.strides[-1] == 1
            and product.value.layout.strides[1] == 1
            and product.layout.matches(result.layout)
            and product.value.layout.is_dense
        )
        if same and is_vector and is_full and result.layout.is_dense:
            return product, View(bias.value, Layout((columns,), (1,), layout.offset))
    return None
