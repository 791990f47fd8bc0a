"""Expected times of matrix products with a program in their epilogue, on Hopper, without weights for them.

Two things bind such a kernel: the bytes that it moves, and the issue slots of its program beside its multiplications.
The constants are fitted to 30 timings on an H200 (benchmarks/results/h200/product_epilogues.csv): what a program adds
to the product alone is met within 15% where it is more than 15 us.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...program import Value as Expression
from .device_model import GPUS, us_of_bytes
from .graph import Map, Reduce

_SLOTS = {  # of operations that take more than one instruction
    **{"normal_cdf": 22, "normal_pdf": 8, "erf": 20, "tanh": 10, "sigmoid": 8, "random": 16},
    **{"exp": 4, "expm1": 12, "log": 6, "log1p": 12, "log2": 6, "log10": 6, "sqrt": 6, "rsqrt": 4, "div": 6},
    **{"pow": 24, "sin": 24, "cos": 24, "atan2": 40, "fmod": 24},
}
_LEAVES = ("acc", "full", "channel", "row", "plane", "scalar", "constant", "rows", "columns", "channel_index")
_ACCESS = 2  # slots to load or to store an element of a tensor as large as the result
_REDUCED = 4  # slots to add an element to its column's reduction
_US_OF_SLOT = 0.028e-6  # an element's slot; a GPU with Hopper's 132 multiprocessors has 4 * 32 of them a cycle
_OF_ARITHMETIC = 0.66  # of the data sheet's rate, while the tensor cores multiply


def slots_of(operations: Iterable[Map | Reduce], accesses: int) -> int:
    """Issue slots an element of these operations.

    Args:
        accesses: tensors as large as the result that are loaded, and those beyond one that are stored.
    """
    total = accesses * _ACCESS
    for operation in operations:
        if isinstance(operation, Reduce):
            total += _REDUCED
            continue
        todo = [
            operation.expression(*(Expression("scalar", attribute=f"t{i}") for i, _ in enumerate(operation.inputs)))
        ]
        seen = set()
        while todo:
            value = todo.pop()
            if value not in seen:
                seen.add(value)
                total += 0 if value.op in _LEAVES else _SLOTS.get(value.op, 1)
                todo += value.operands
    return total


def epilogue_us(gpu: str, elements: int, flops: int, bytes: tuple[int, int], slots: int) -> float:
    """Microseconds by which a program lengthens a product.

    Args:
        gpu: a key of GPUS.
        elements: of the product's result.
        flops: of the product.
        bytes: that the product moves alone, and with the program.
    """
    multiply = flops / (GPUS[gpu].arithmetic * 1e6 * _OF_ARITHMETIC)
    alone = max(us_of_bytes(gpu, bytes[0]), multiply)
    return max(us_of_bytes(gpu, bytes[1]), multiply + elements * slots * _US_OF_SLOT) - alone
