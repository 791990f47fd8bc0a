"""Check a graph. Tests do so after each pass."""

from __future__ import annotations

from .graph import Graph, Indexed, Map, View
from .layout import span
from .scan import Scan


def _sizes_read(operation: Map, view: View) -> tuple[int, ...]:
    """Sizes of a result that the operation computes of an operand."""
    if not isinstance(operation, Indexed):
        return view.layout.sizes
    maps = zip(view.layout.sizes, operation.maps, strict=True)
    return tuple(size if axis_map is None else len(axis_map.rows) for size, axis_map in maps)


def verify(graph: Graph) -> None:
    """Check a graph; tests do so after each pass.

    Raises:
        ValueError: a value is read before it is computed, a view reaches beyond its memory, an operand of a Map has
            other sizes than the result, or a result names another operation as its maker.
    """
    known = {*graph.inputs, *graph.parts}

    def check(view: View, what: str) -> None:
        if view.value not in known:
            raise ValueError(f"{what} needs {view.value} before it is computed")
        layout, memory = view.layout, view.value.memory or view.value.layout
        last = layout.offset + sum((n - 1) * s for n, s in zip(layout.sizes, layout.strides, strict=True))
        if layout.numel and (layout.offset < 0 or last >= span(memory)):
            raise ValueError(f"{what} reads {view} beyond the memory of {memory}")

    for operation in graph.operations:
        for view in operation.operands:
            check(view, operation.text())
        if isinstance(operation, (Map, Scan)):
            (result,) = operation.results
            for view in operation.operands:
                if _sizes_read(operation, view) != result.layout.sizes:
                    raise ValueError(f"{operation.text()} has operands of other sizes than {result.layout}")
        for result in operation.results:
            if result.maker is not operation:
                raise ValueError(f"{result} names another operation than {operation.text()} as its maker")
            known.add(result)
    for view in graph.output_views():
        check(view, "the result")
