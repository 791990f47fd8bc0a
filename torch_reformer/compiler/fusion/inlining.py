"""Operations that kernels recompute where their results are read.

A kernel of its own would take longer for an operation on few elements (a channel vector, a number), and the result of
a cast to a wider type takes longer to read than its operand. Slow operations, such as the sines of a table of positions
that all heads and images read, are computed once."""

from __future__ import annotations

import torch

from ...runtime.sizes import about_cost
from ..ir.access import Access, composed, operand_of_view, relaid
from ..ir.graph import Graph, Indexed, Map, Operation, Random, Reduce, Value, View, is_cast
from ..ir.index_maps import BY_PLACE, IndexMap, full_map_of, operand_maps
from ..ir.issue_slots import slots_of_operation
from ..ir.kernel_limits import LITTLE, SMALL
from ..ir.layout import Layout

FEW = 16  # elements that are reduced to one, or for which one is repeated, at least, for such numbers to count as few
_SLOW = 16  # issue slots: more than it takes to read the result from a cache


def mark_few(graph: Graph) -> None:
    """Mark operations on reduced values, where few elements are left of those that were reduced, and those whose
    results are only repeated (Map.after_reduction)."""
    reduced: dict[Operation, int] = {}  # operation -> elements reduced for it
    for operation in graph.operations:
        if isinstance(operation, Reduce):
            reduced[operation] = operation.input.elements
        elif isinstance(operation, Map):
            sizes = [reduced.get(view.value.maker, 0) for view in operation.inputs]
            numel = operation.results[0].layout.numel
            most = max(sizes, default=0)
            with about_cost():
                operation.after_reduction = 0 < most >= numel * FEW and all(
                    size or view.value.layout.numel <= numel for size, view in zip(sizes, operation.inputs, strict=True)
                )
            if operation.after_reduction:
                reduced[operation] = most
    readers = graph.readers()
    for operation in reversed(graph.operations):
        if isinstance(operation, Map) and not isinstance(operation, Indexed) and operation.inputs:
            operation.after_reduction |= _is_only_repeated(operation, readers)


@about_cost()
def _is_only_repeated(operation: Map, readers: dict[Value, list[Operation | None]]) -> bool:
    """True if all that read the operation's result have many more elements, or are such operations themselves, as those
    on statistics of rows that a forward saved."""
    (result,) = operation.results
    numel, those = result.layout.numel, readers.get(result, [])
    if any(view.value.layout.numel > numel for view in operation.inputs):
        return False
    larger = [each for each in those if isinstance(each, Map) and each.results[0].layout.numel > numel]
    if _is_slow(operation) and not all(_repeats_along_rows(each, result) for each in larger):
        return False  # each element would compute its own
    return bool(those) and all(
        isinstance(each, Map)
        and (each.results[0].layout.numel >= FEW * numel or (each.after_reduction and not is_cast(each)))
        for each in those
    )


def _repeats_along_rows(reader: Map, value: Value) -> bool:
    """True if adjacent elements of the reader's result have the same element of the value."""
    views = [view.layout for view in reader.inputs if view.value is value]
    return all(layout.strides and layout.strides[-1] == 0 and layout.sizes[-1] > 1 for layout in views)


def is_small(operation: Operation | None) -> bool:
    """True if each consumer had better recompute the operation: few elements, or any number of elements of a constant,
    random numbers, a cast to a wider data type, an operation on reduced values, or elements that are chosen."""
    if not isinstance(operation, Map):
        return False
    if isinstance(operation, Indexed):
        return operation.only_chooses
    if sum(isinstance(view.value.maker, Indexed) for view in operation.inputs) > 1:
        return False  # as a concatenation: each operand would take one of the few maps that a kernel reads
    (result,) = operation.results
    with about_cost():
        has_few = result.layout.numel <= 1 or (result.layout.numel <= SMALL and not _is_slow(operation))
    if isinstance(operation, Random) or not operation.inputs or has_few:
        return True
    if operation.after_reduction:
        return True
    source = operation.inputs[0]
    return operation.name == "_to_copy" and source.value.dtype.itemsize < result.dtype.itemsize


def _is_slow(operation: Map) -> bool:
    return not isinstance(operation, (Indexed, Random)) and slots_of_operation(operation) > _SLOW


def is_little(operation: Operation | None) -> bool:
    """True if another kernel, of as few elements, had better recompute the operation than read its result by another
    index map: that takes less time than a kernel that stores the result."""
    if not isinstance(operation, Map) or isinstance(operation, (Indexed, Random)):
        return False
    with about_cost():
        return operation.results[0].layout.numel <= LITTLE


def inlined(view: View, index_map: IndexMap, group: IndexMap) -> list[tuple[View, IndexMap]] | None:
    """Operands of a small operation, with index maps, for a program that recomputes its result where it is read.

    Args:
        view: the small operation's result, or a part of it, as it is read.
        index_map: the index map by which the group reads it.
        group: the group's full index map.

    Returns:
        None if a program can't compute the operation there.
    """
    operation = view.value.maker
    layout = view.value.layout
    if not (is_small(operation) or is_little(operation)) or not layout.is_dense:
        return None
    if operation.results[0].dtype != torch.float64 and any(v.value.dtype == torch.float64 for v in operation.inputs):
        return None  # such as a mask, whose readers may compute in fp32
    if isinstance(index_map, Access) and not _is_read_through(operation, index_map):
        return None
    if isinstance(operation, Indexed):
        return _reread(operation, view, index_map, group)
    if not operation.inputs:
        return []
    full_map, is_whole = full_map_of(layout.numel), not view.layout.offset and view.elements == layout.numel
    if isinstance(index_map, Access):
        return _through_cast(operation, view, index_map) if is_whole else None
    if isinstance(operation, Random) and not (is_whole and index_map == group == full_map):
        return None
    operands = []
    for operand, operand_map in operand_maps(operation):
        if not operand_map or operand_map == BY_PLACE:
            operands.append((operand, operand_map))
        elif is_whole and operand_map == full_map:
            operands.append((operand, index_map))
        elif is_whole and index_map == full_map:
            operands.append((operand, operand_map))
        else:
            numel = group[0][1] if group else 1
            with about_cost():
                # A large kernel would read its operands by a more complicated map, and could not transpose any more.
                costs_more = is_whole and numel > LITTLE
            if costs_more:
                return None
            part = operand_of_view(operand, operand_map, view, index_map, numel)
            if part is None:
                return None
            operands.append(part)
    return operands


def _reread(operation: Indexed, view: View, index_map: IndexMap, group: IndexMap) -> list[tuple[View, IndexMap]] | None:
    """The operand of an operation, with its index map, where a view of the result is read by ``index_map``."""
    if index_map == BY_PLACE:
        return None
    ((source, access),) = operand_maps(operation)
    numel = group[0][1] if group else 1
    found = composed(access, view.value.layout, index_map, view.layout.offset, numel)
    if found is None:
        return None
    access, offset = found
    layout = source.layout
    return [(View(source.value, Layout(layout.sizes, layout.strides, layout.offset + offset)), access)]


def _is_read_through(operation: Map, access: Access) -> bool:
    """True if an access may read the operand of an operation instead of its result. Elements from nowhere, and sums,
    are those of the operand then, so it has to be an exact cast."""
    if not is_cast(operation) or operation.results[0].layout.numel == 1:
        return False
    source, result = operation.inputs[0].value.dtype, operation.results[0].dtype
    is_exact = result.is_floating_point and source.itemsize < result.itemsize
    return is_exact and (access.only_chooses or not operation.rounds)


def _through_cast(operation: Map, view: View, access: Access) -> list[tuple[View, IndexMap]] | None:
    """The operand of a cast, with its access, where an access reads the result. A broadcast operand would be read from
    nowhere, too."""
    ((operand, operand_map),) = operand_maps(operation)
    if operand_map == full_map_of(view.value.layout.numel):
        return [(operand, access)]
    if operand.elements != view.value.layout.numel:
        return None
    found = relaid(access, view.layout, view.value.layout, operand.layout)
    return None if found is None else [(View(operand.value, found[1]), found[0])]
