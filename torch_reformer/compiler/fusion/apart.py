"""Why a kernel reads from memory what another one computes, instead of being one kernel with it."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.graph import Reduce, Value
from .greedy import Fusion
from .group import FusionGroup
from .horizontal import common_space, needs_all_of
from .schedule import reads_of


class Apart(NamedTuple):
    """maker: number of the group or call that writes the bytes; reason: the end of a sentence that begins with the
    reader ("it ...")."""

    maker: int
    bytes: int
    reason: str


def apart(fusion: Fusion, number: int) -> Apart | None:
    """The largest tensor that a group or call reads of another one, and why these two are apart; None if it reads
    inputs of the graph only."""
    read: dict[int, list[Value]] = {}
    for view in reads_of(fusion, number):
        maker = fusion.group_that_makes(view.value)
        if maker is not None and maker != number:
            read.setdefault(maker, []).append(view.value)
    if not read:
        return None
    bytes, maker = max((value.bytes, maker) for maker, values in read.items() for value in values)
    return Apart(maker, bytes, _reason(fusion, number, maker, read[maker]))


def _reason(fusion: Fusion, number: int, maker: int, values: list[Value]) -> str:
    reader, writer = fusion.groups.get(number), fusion.groups.get(maker)
    if reader is None:
        return "is a call, which reads its operands from memory"
    if writer is None:
        return "needs the result of a call, which is in memory"
    if reader.anchor:
        return "begins with a convolution or product, which reads its operands from memory"
    if any(isinstance(value.maker, Reduce) and value.maker not in writer.per_row for value in values):
        return "needs a reduction over many rows, too, which is known when that kernel has ended"
    if any(value.maker in writer.per_row for value in values) and reader.rows != writer.rows:
        return "needs a reduction of rows, too, and has other rows"
    if needs_all_of(reader, writer):
        return "needs other elements of that result than the one at its own position"
    return _limit(reader, writer)


def _limit(reader: FusionGroup, writer: FusionGroup) -> str:
    if reader.numel != writer.numel:
        return f"has {reader.numel} elements, that kernel has {writer.numel}"
    if common_space(writer, reader) is None:
        return "has other rows or reductions than that kernel, or both have more operands than one kernel takes"
    return "needs results of that kernel through a third one, too, or is cheaper apart"
