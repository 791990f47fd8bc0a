"""Check that a plan can be made of a fusion."""

from __future__ import annotations

from collections.abc import Iterable

from .greedy import Fusion
from .schedule import Cyclic, needed_in_memory, reads_of, schedule


def verify(fusion: Fusion, traced: Iterable[int] | None = None) -> None:
    """Check that every value that is read is made, stored results can be traced, and the groups have an order.

    Args:
        traced: numbers of the groups whose results are traced; by default all.

    Raises:
        ValueError: no plan can be made of the fusion; the message says why.
    """
    numbers = (*fusion.groups, *fusion.extern_calls)
    _verify_makers(fusion, numbers)
    _verify_inputs(fusion, numbers, fusion.groups if traced is None else traced)
    try:
        schedule(fusion)
    except Cyclic:
        raise ValueError("groups need each other") from None


def _verify_makers(fusion: Fusion, numbers: tuple[int, ...]) -> None:
    """Check that groups or calls make all values that are read."""
    made = {operation.results[0] for group in fusion.groups.values() for operation in group.members}
    made |= {part.value for group in fusion.groups.values() for part in group.parts.values()}
    made |= {result for call in fusion.extern_calls.values() for result in call.results}
    read = [view for number in numbers for view in reads_of(fusion, number)]
    for view in (*read, *fusion.graph.output_views()):
        if view.value.maker is not None and view.value not in made:
            raise ValueError(f"no group makes {view.value}")


def _verify_inputs(fusion: Fusion, numbers: tuple[int, ...], traced: Iterable[int]) -> None:
    """Trace what these groups store; FusionGroup.traced raises where a group lacks an input."""
    needed = needed_in_memory(fusion, numbers)
    for group in map(fusion.groups.__getitem__, traced):
        stored = needed | group.destinations.keys() | group.reused.keys()
        for operation in group.operations:
            if operation.results[0] in stored:
                group.traced(operation)
