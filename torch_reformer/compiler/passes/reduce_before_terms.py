"""Sum other dimensions before the terms of a sum of few: the mean of an image over its positions, of the sum of two
halves of its channels, is the sum of the halves' means. The sums over positions then come with the kernel that computes
the image."""

from __future__ import annotations

from ..ir.graph import Graph, Map, Operation, Reduce, Typed, Value, View, is_removable_cast
from ..ir.iteration_space import has_space
from ..ir.layout import Layout
from ..ir.terms import MOST_TERMS, SUM_OF_TERMS, box_of, count_of, has_kernel, part_of, squeezed, sum_of, terms


def reduce_before_terms(graph: Graph) -> None:
    """Exchange sums of sums of terms that nothing else reads, and whose terms are not written in place."""
    readers, written = graph.readers(), {value for operation in graph.operations for value in operation.writes}
    before, graph.operations = graph.operations, []
    for operation in before:
        stacked = _stacked(operation, readers)
        if stacked is None or stacked.value in written:
            graph.operations.append(operation)
            continue
        (result,), over = operation.results, tuple(d + 1 for d in operation.over)
        sizes = (stacked.layout.sizes[0], *result.layout.sizes)
        kept = [d for d in range(len(stacked.layout.sizes)) if d not in over]
        layout = Layout(sizes, tuple(stacked.layout.strides[d] for d in kept)).packed
        offsets = [view.layout.offset for view in terms(View(stacked.value, layout), (0,))]
        layouts = [Layout(sizes[1:], layout.strides[1:], offset) for offset in offsets]
        if not has_space([View(stacked.value, each) for each in layouts], result.layout):
            graph.operations.append(operation)
            continue
        (parts,) = graph.add(Reduce("sum", stacked, over), [Typed(layout, result.dtype, result.device)])
        total = Map([View(parts, each) for each in layouts], SUM_OF_TERMS, sum_of)
        total.results, total.node, result.maker = [result], operation.node, total
        graph.operations.append(total)


def _stacked(operation: Operation, readers: dict[Value, list[Operation | None]]) -> View | None:
    """The terms of the sum that the operation sums further, as a view with a dimension for the terms before the others.
    None if one kernel does not sum the others of these."""
    if not isinstance(operation, Reduce) or operation.kind != "sum":
        return None
    view = operation.input
    while is_removable_cast(view.value.maker) and _is_only_reader(view, readers):
        (cast,) = view.value.maker.inputs
        if not cast.layout.matches(view.value.layout):
            return None
        view = View(cast.value, view.layout)
    summed = _terms_of(view.value.maker)
    if summed is None or not _is_only_reader(view, readers):
        return None
    box = box_of(view.layout, view.value.layout)
    if box is None or box.extents != view.value.layout.sizes:
        return None
    first, second, *_ = layouts = [part_of(term, view.layout.sizes, box).layout for term in summed]
    step = second.offset - first.offset
    if [layout.offset - first.offset for layout in layouts] != [i * step for i in range(len(layouts))]:
        return None
    stacked = Layout((len(layouts), *first.sizes), (step, *first.strides), first.offset)
    whole = View(summed[0].value, stacked)
    return whole if whole.is_full and has_kernel(stacked, tuple(d + 1 for d in operation.over)) else None


def _terms_of(maker: Operation | None) -> list[View] | None:
    """The terms of a sum of few, as views with the sum's dimensions; None for other operations."""
    if isinstance(maker, Map):
        return list(maker.inputs) if maker.name == SUM_OF_TERMS else None
    if not isinstance(maker, Reduce) or maker.kind != "sum":
        return None
    if not 2 <= count_of(maker.input.layout, maker.over) <= MOST_TERMS:
        return None
    return [View(term.value, squeezed(term.layout, maker.over)) for term in terms(maker.input, maker.over)]


def _is_only_reader(view: View, readers: dict[Value, list[Operation | None]]) -> bool:
    """True if the value is read once, and has no element that is not read."""
    return view.is_full and len(readers[view.value]) == 1
