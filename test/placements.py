"""Strided and transposed tensors (not in a program result's channels_last order), for tests."""

from __future__ import annotations

import math

import torch
from test_stitch import acc_for, tensors_for
from torch import Tensor

from torch_reformer import program
from torch_reformer.program import Program


def _permuted(size, order) -> Tensor:
    """[images, height, width, channels] of a tensor whose memory has these dimensions in another order."""
    n, c, h, w = size
    memory = torch.empty([(n, h, w, c)[d] for d in order])
    return memory.permute([order.index(d) for d in range(4)])


def _heads(size) -> Tensor:
    """Channels of several heads that are not adjacent, as in attention's results."""
    n, c, h, w = size
    return torch.empty(n, c // 8, h, w, 8).permute(0, 2, 3, 1, 4)


def _wide(size, before: int, after: int) -> Tensor:
    n, c, h, w = size
    return torch.empty(n, h, w, before + c + after)[..., before : before + c]


def _apart(size) -> Tensor:
    n, c, h, w = size
    before = int(w > 1)  # adjacent positions stay adjacent in memory
    return torch.empty(n, c, h, w + before)[..., before:].permute(0, 2, 3, 1)


def _packed(size, count: int) -> Tensor:
    """So many adjacent channels of a position, beside those of the next position."""
    n, c, h, w = size
    count = math.gcd(c, count)
    return torch.empty(n, c // count, h, w, count).permute(0, 2, 3, 1, 4)


def _of_packed(size) -> Tensor:
    n, c, h, w = size
    count = math.gcd(c, 2)
    return torch.empty(n, c // count, h, w + 1, count)[..., 1:, :].permute(0, 2, 3, 1, 4)


def _twice(channels_first: Tensor) -> Tensor:
    return channels_first.permute(0, 2, 3, 1)[:, :, :, None].expand(-1, -1, -1, 2, -1)


# Functions of a program result's sizes that return a tensor of these sizes, elements in order, with any strides.
PLACES = {
    "aligned part": lambda size: _wide(size, 8, 8),
    "part": lambda size: _wide(size, 8, 3),
    "images within rows": lambda size: _permuted(size, (1, 0, 2, 3)),
    "all rows": lambda size: _permuted(size, (2, 1, 0, 3)),
    "heads": _heads,
}
# Transposed ones: adjacent along lines, not along columns.
TURNED = {
    "turned": lambda size: _permuted(size, (0, 3, 1, 2)),
    "all turned": lambda size: _permuted(size, (3, 0, 1, 2)),
    "part of turned": lambda size: torch.empty(size[0], size[1] + 3, *size[2:])[:, 2:-1].permute(0, 2, 3, 1),
    "turned, in parts": _apart,
    "pairs turned": lambda size: _packed(size, 2),
    "fours turned": lambda size: _packed(size, 4),
    "part of pairs turned": _of_packed,
    "turned, unaligned": lambda size: torch.empty(math.prod(size) + 1)[1:].view(size).permute(0, 2, 3, 1),
}
# Transposed ones whose channels repeat; for inputs only.
TURNED_TWICE = {
    "turned, twice": lambda size: _twice(torch.empty(size[0], size[1] // 2, *size[2:])),
    "pairs turned, all equal": lambda size: torch.empty(size[0], *size[2:], 1, 2).expand(-1, -1, -1, size[1] // 2, -1),
    "part of turned, twice": lambda size: _twice(torch.empty(size[0], size[1] // 2 + 3, *size[2:])[:, 2:-1]),
}
REPEATED = {
    "an image": lambda size: torch.empty(1, size[2], size[3], size[1]).expand(size[0], -1, -1, -1),
    "channels of images": lambda size: torch.empty(size[0], 1, 1, size[1]).expand(-1, size[2], size[3], -1),
}


def with_five_dimensions(tensor: Tensor) -> Tensor:
    return tensor[(None,) * max(0, 5 - tensor.dim())]


def written_like(place: Tensor, dtype) -> Tensor:
    """Memory for a tensor with such strides, filled with NaN."""
    there = torch.empty(place.untyped_storage().nbytes() // 4, dtype=dtype).fill_(math.nan)
    return with_five_dimensions(there.as_strided(place.shape, place.stride(), place.storage_offset()))


def in_sizes(tensor: Tensor, size) -> Tensor:
    """The tensor's elements as a channels_last tensor of four dimensions."""
    n, c, h, w = size
    return tensor.reshape(n, h, w, c).permute(0, 3, 1, 2)


def placed(tensor: Tensor, place: Tensor) -> Tensor:
    """The tensor's elements with the strides of `place`; where these repeat elements, the first one counts."""
    there = written_like(place, tensor.dtype)
    elements = tensor.permute(0, 2, 3, 1).reshape(there.shape)
    for d in range(there.dim()):
        if there.stride(d) == 0:
            elements = elements.narrow(d, 0, 1)
            there = there.narrow(d, 0, 1)
    there.copy_(elements)
    return there.expand(with_five_dimensions(place).shape)


def on(tensor: Tensor, device: str) -> Tensor:
    """A copy on a device, with equal strides."""
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0).to(device)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def placed_programs() -> list[Program]:
    acc, full, row, channel = program.acc(), program.full("full"), program.row("row"), program.channel("channel")
    of_row = program.row_sum(full * acc) + row
    value = acc * channel + full * 2 - row
    return [
        Program(program.store(full - of_row / 64), program.store(of_row, torch.float32, "row"), program.sum(full)),
        Program(program.store(value + program.full("half")), program.moments(value)),
        Program(program.store(program.select(program.full("mask"), value, 0.0) + 1)),
    ]


def placed_tensors(tested: Program, size, dtype, way: str) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """acc and the program's inputs, once dense and once strided.

    The full-size input is strided in this way, other inputs repeat elements, and images share their row values.
    """
    acc, everything = acc_for(size, dtype, "nhwc"), tensors_for(size, dtype, "nhwc")
    places = {
        "full": {**PLACES, **TURNED, **TURNED_TWICE}[way],
        "half": REPEATED["an image"],
        "mask": REPEATED["channels of images"],
    }
    there, dense = [], []
    for name in tested.inputs:
        tensor = everything[name]
        if name in places:
            there.append(placed(tensor, places[name](size)))
            dense.append(in_sizes(there[-1], size).contiguous(memory_format=torch.channels_last))
        elif name == "row":
            n, _, h, w = size
            there.append(tensor[:, :1, :1].expand(n, h, w)[None, None])
            dense.append(there[-1].reshape(n, h, w).contiguous())
        else:
            there.append(tensor)
            dense.append(tensor)
    return acc, dense, there
