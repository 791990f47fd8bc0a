"""Parts of a concatenation that are computed alike from adjacent slices: the same operations compute the whole at
once."""

from __future__ import annotations

from collections.abc import Callable

from ..ir.expressions import expression_of
from ..ir.graph import Graph, Map, Typed, View
from ..ir.iteration_space import has_space
from ..ir.layout import Layout
from .pointwise import add_typed_map

_MOST = 32  # operations
Joined = Callable[[Layout, int], Layout]  # the layout of the whole, from that of the first part and the parts' distance


def computed_at_once(graph: Graph, parts: list[View], whole: Layout, joined: Joined) -> View | None:
    """The concatenation, if each part is computed by the same operations.

    Args:
        whole: layout of the result, with a dimension for the parts.
    """
    return None if _successive(parts, joined) else _Whole(graph, whole, joined).of(parts)


class _Whole:
    def __init__(self, graph: Graph, layout: Layout, joined: Joined):
        self.graph, self.layout, self.joined = graph, layout, joined
        self.known: dict[tuple, View | None] = {}

    def of(self, parts: list[View]) -> View | None:
        """All parts as one view, computed if they do not lie so; None if they are not computed alike."""
        key = tuple((part.value, part.layout) for part in parts)
        if key not in self.known:
            self.known[key] = _successive(parts, self.joined) or self._computed(parts)
        return self.known[key]

    def _computed(self, parts: list[View]) -> View | None:
        first, *others = makers = [part.value.maker for part in parts]
        if len(self.known) >= _MOST or not all(type(maker) is Map and maker.inputs for maker in makers):
            return None
        if any(not _are_alike(first, other) for other in others):
            return None
        operands = [operands_of(part) for part in parts]
        if None in operands:
            return None
        inputs = [self.of(list(views)) for views in zip(*operands, strict=True)]
        value = parts[0].value
        if None in inputs or not has_space(inputs, self.layout):
            return None
        result = add_typed_map(
            self.graph, first.name, first.expression, inputs, Typed(self.layout, value.dtype, value.device)
        )
        result.value.maker.rounds = first.rounds
        return result


def _are_alike(one: Map, other: Map) -> bool:
    """True if both compute the same expression, of operands of the same types."""
    types, others = ([view.value.dtype for view in maker.inputs] for maker in (one, other))
    if types != others or one.results[0].dtype != other.results[0].dtype or one.rounds != other.rounds:
        return False
    return expression_of(one) == expression_of(other)


def operands_of(part: View) -> list[View] | None:
    """The operands from which the maker of its value computes a part; None if it is no rectangular slice of that."""
    if (starts := starts_of(part)) is None:
        return None
    operands = []
    for view in part.value.maker.inputs:
        skipped = sum(start * stride for start, stride in zip(starts, view.layout.strides, strict=True))
        strides = tuple(a if b else 0 for a, b in zip(view.layout.strides, part.layout.strides, strict=True))
        operands.append(View(view.value, Layout(part.layout.sizes, strides, view.layout.offset + skipped)))
    return operands


def starts_of(view: View) -> list[int] | None:
    """Start index per dimension if the view is a rectangular slice of its value, whose dimensions of one element may be
    repeated, else None."""
    part, whole = view.layout, view.value.layout
    if len(part.sizes) != len(whole.sizes) or not whole.is_dense:
        return None
    starts, offset = [0] * len(part.sizes), part.offset
    for d in sorted(range(len(part.sizes)), key=lambda d: -whole.strides[d]):
        if whole.sizes[d] == 1:
            if part.sizes[d] != 1 and part.strides[d]:
                return None
            continue
        if part.strides[d] != whole.strides[d] and part.sizes[d] != 1:
            return None
        starts[d], offset = divmod(offset, whole.strides[d])
        if starts[d] + part.sizes[d] > whole.sizes[d]:
            return None
    return None if offset else starts


def _successive(parts: list[View], joined: Joined) -> View | None:
    """All parts as one view if they are slices of one tensor at equal distances."""
    first, *others = parts
    step = others[0].layout.offset - first.layout.offset
    for i, part in enumerate(others, 1):
        layout = Layout(first.layout.sizes, first.layout.strides, first.layout.offset + i * step)
        if part.value is not first.value or part.layout != layout or step < 0:
            return None
    return View(first.value, joined(first.layout, step))
