"""Programs that gather rows of tables, and tensors for them, for tests."""

from __future__ import annotations

import torch
from test_stitch import acc_for, tensors_for
from torch import Tensor

from torch_reformer import program
from torch_reformer.program import Program

ROWS = {"words": 11, "places": 5}  # of the tables


def looking_up() -> dict[str, Program]:
    """A program that reduces gathered rows, a derivative, and an element-wise one."""
    words, places, acc = program.table("words"), program.table("places"), program.acc()
    value = words + places
    difference = value - program.row_sum(value) / program.columns()
    variance = program.row_sum(difference * difference) / program.columns()
    factor = program.rsqrt(variance + 1e-5)
    dropped = program.select(program.random("key") < 0.5, 0, difference * factor * program.channel("channel"))
    grad = words * acc - program.row_sum(words * acc)
    return {
        "norm_of_tables": Program(program.store(dropped), program.store(factor, torch.float32, "row")),
        "derivative_of_table": Program(program.store(grad), program.sum(acc * words), program.sum(acc)),
        "tables": Program(program.store(program.relu(value) * 2 + acc), program.moments(value)),
    }


def looked_up(tested: Program, size, dtype, index=torch.int64, pitch: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """acc and the program's inputs, in channels_last order.

    Each image has the same indices of places.

    Args:
        pitch: number of elements between a table's rows.
    """
    n, k, h, w = size
    everything, generator = tensors_for(size, dtype, "nhwc"), torch.Generator().manual_seed(0)
    for table, rows in ROWS.items():
        everything[table] = torch.randn(rows, k + pitch, generator=generator).to(dtype)[:, :k]
        everything[program.index_of(table)] = torch.randint(rows, (n, h, w), generator=generator).to(index)
    everything["places_index"] = everything["places_index"][:1].expand(n, h, w)[None, None]
    return acc_for(size, dtype, "nhwc"), {name: everything[name] for name in tested.inputs}


def plain(tensors: dict[str, Tensor], size) -> dict[str, Tensor]:
    """The tensors in the shapes that the plain interpreter takes."""
    n, _, h, w = size
    return {name: tensor.reshape(n, h, w) if tensor.dim() > 4 else tensor for name, tensor in tensors.items()}
