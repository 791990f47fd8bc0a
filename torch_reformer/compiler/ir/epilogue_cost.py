"""Expected times of matrix products with a program in their epilogue, on Hopper, without weights for them.

Two things bind such a kernel: the bytes that it moves, and the issue slots of its program beside its multiplications.
The constants are fitted to 48 timings on an H200 (benchmarks/results/h200/product_epilogues.csv): where a program adds
more than 15 us to the product alone, that is met within 36%, in the median within 5%.
"""

from __future__ import annotations

from collections.abc import Iterable

from .device_model import GPUS, us_of_bytes
from .graph import Map, Reduce
from .issue_slots import slots_of_operation

_LOAD, _STORE = 7.5, 6.5  # slots for an element of a tensor as large as the result; a load's are those of waiting
_REDUCED = 5  # slots to add an element to its column's reduction
_HIDDEN = 1 / 160  # slots that a step of the product's depth leaves free
_US_OF_SLOT = 0.043e-6  # an element's slot, three cycles of a multiprocessor's quarter (an H200 has 4 * 132) for 32
_OF_ARITHMETIC = 0.88  # of the data sheet's rate, while the tensor cores multiply


def slots_of(operations: Iterable[Map | Reduce], loaded: int, stored: int) -> float:
    """Issue slots an element of these operations.

    Args:
        loaded, stored: tensors as large as the result; one is stored without a program, too.
    """
    total: float = loaded * _LOAD + (stored - 1) * _STORE
    for operation in operations:
        total += _REDUCED if isinstance(operation, Reduce) else slots_of_operation(operation)
    return total


def epilogue_us(gpu: str, elements: int, flops: int, bytes: tuple[int, int], slots: float) -> float:
    """Microseconds by which a program lengthens a product.

    Args:
        gpu: a key of GPUS.
        elements: of the product's result.
        flops: of the product.
        bytes: that the product moves alone, and with the program.
    """
    multiply = flops / (GPUS[gpu].arithmetic * 1e6 * _OF_ARITHMETIC)
    alone = max(us_of_bytes(gpu, bytes[0]), multiply)
    serial = max(slots - flops / elements / 2 * _HIDDEN, 0)
    return max(us_of_bytes(gpu, bytes[1]), multiply + elements * serial * _US_OF_SLOT) - alone
