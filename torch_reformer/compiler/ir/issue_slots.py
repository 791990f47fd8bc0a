"""How many instructions of a GPU an element-wise operation takes for each of its elements."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from ...program import Value as Expression
from .graph import Map, Random

# Slots of a random number: half of those that are computed are not used, and branches select them. T5's 12 products of
# 8192 x 512 x 2048 with dropout took 1.03 ms (h200/population-whole_step.csv).
_RANDOM = 70
_SLOTS = {  # of operations that take more than one instruction
    **{"normal_cdf": 9, "normal_pdf": 3, "erf": 20, "tanh": 7, "sigmoid": 4},
    **{"exp": 2, "expm1": 12, "log": 6, "log1p": 12, "log2": 6, "log10": 6, "sqrt": 6, "rsqrt": 4, "div": 6},
    **{"pow": 24, "sin": 24, "cos": 24, "atan2": 40, "fmod": 24},
}
_LEAVES = ("acc", "full", "channel", "row", "plane", "scalar", "constant", "rows", "columns", "channel_index")
_known: WeakKeyDictionary[Map, int] = WeakKeyDictionary()  # the planner asks some 10,000 times


def slots_of_operation(operation: Map) -> int:
    """Issue slots of an element of the operation's result, as on Hopper."""
    if (slots := _known.get(operation)) is None:
        numbers = (Expression("scalar", attribute=f"t{i}") for i, _ in enumerate(operation.inputs))
        slots = _RANDOM if isinstance(operation, Random) else slots_of_values([operation.expression(*numbers)])
        _known[operation] = slots
    return slots


def slots_of_values(values: Iterable[Expression]) -> int:
    """Issue slots to compute these values of one element, and what they need, once each."""
    todo, seen, total = list(values), set(), 0
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            total += 0 if value.op in _LEAVES else _SLOTS.get(value.op, 1)
            todo += value.operands
    return total
