"""Reference interpreter: run a program as separate PyTorch operations. Tests compare with it, and second derivatives
are taken of it."""

from __future__ import annotations

import torch
from torch import Tensor

from .digits import DigitOf, digit_of
from .mapped import read_mapped
from .operations import COMPUTED, OF_ROWS
from .program import Output, Program
from .values import Value, index_of

# Dimensions of [N, K, H, W] that each reduction removes.
_OVER = {"channel": (0, 2, 3), "row": (1,), "plane": (2, 3), "all": (0, 1, 2, 3), "height": (0, 3)}


def computed_type(dtype: torch.dtype) -> torch.dtype:
    """Data type in which a program computes, given the result's data type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def interpret(
    program: Program, size, dtype: torch.dtype, tensors: dict[str, Tensor], acc: Tensor | None = None
) -> list[Tensor]:
    """Run a program with PyTorch operations.

    Args:
        size: the result's size ``[N, K, H, W]``.
        dtype: the result's data type.
        tensors: the program's inputs by name.
        acc: the tensor that ``acc`` stands for, if the program reads it.

    Returns:
        the outputs in the program's order.
    """
    wide = computed_type(dtype)
    some = next((tensor for tensor in [acc, *tensors.values()] if tensor is not None), None)
    device = torch.device("cpu") if some is None else some.device
    values: list[Tensor] = []
    for node in program.nodes:
        if node.op == "acc":
            value = acc.to(wide)
        elif node.op == "table":
            looked_up = torch.nn.functional.embedding(tensors[index_of(node.name)], _tensor(node, tensors))
            value = looked_up.to(wide).permute(0, 3, 1, 2)
        elif node.op == "mapped":
            value = read_mapped(node.attribute, tensors, size, wide)
        elif node.is_input:
            value = _input(node.op, _tensor(node, tensors), size, wide)
        elif node.op in ("constant", "rows", "columns"):
            number = {"constant": node.attribute, "rows": size[0] * size[2] * size[3], "columns": size[1]}[node.op]
            value = torch.tensor(number, dtype=wide, device=device)
        elif node.op == "channel_index":
            value = torch.arange(size[1], dtype=wide, device=device).view(1, -1, 1, 1)
        else:
            operands = [values[program.number(operand)] for operand in node.operands]
            if node.op in OF_ROWS:
                value = OF_ROWS[node.op](operands[0].expand(size))
            else:
                value = COMPUTED[node.op](*operands)
        values.append(value)
    results = []
    for output in program.outputs:
        value = values[program.number(output.value)]
        if output.kind == "store" and output.per == "channel":
            value = value.reshape(-1).expand(size[1])
        elif output.kind == "store" and output.per == "row":
            value = value.expand(size[0], 1, *size[2:]).squeeze(1)
        elif output.kind == "store" and output.per == "plane":
            value = value.expand(*size[:2], 1, 1).reshape(size[:2])
        else:
            value = value.expand(size)
        results.append(_output(output, value, dtype))
    return results


def _tensor(node: Value, tensors: dict[str, Tensor]) -> Tensor:
    """The tensor that an input reads, or the digit of its numbers."""
    tensor = tensors[node.name]
    return digit_of(tensor, node.attribute.number) if isinstance(node.attribute, DigitOf) else tensor


def _input(kind: str, tensor: Tensor, size, wide: torch.dtype) -> Tensor:
    if kind == "random":
        return uniform(tensor, size).to(wide)
    if kind == "channel":
        return tensor.to(wide).view(1, -1, 1, 1)
    if kind == "row":
        return tensor.to(wide).unsqueeze(1)
    if kind == "plane":
        return tensor.to(wide)[:, :, None, None]
    return tensor.to(wide).view(()) if kind == "scalar" else tensor.to(wide)


def _output(output: Output, value: Tensor, dtype: torch.dtype) -> Tensor:
    if output.kind == "store":
        if output.dtype == torch.bool:
            return value != 0
        return value.to(output.dtype or dtype)
    over = _OVER[output.per]
    if output.per == "height":
        value = value.transpose(1, 2)
    if output.kind == "sum":
        return value.sum(over).to(output.dtype or value.dtype)
    if output.kind == "max":
        return value.amax(over).to(output.dtype or value.dtype)
    if output.kind == "prod":
        for dim in sorted(over, reverse=True):
            value = value.prod(dim)
        return value.to(output.dtype or value.dtype)
    mean = value.mean(over, keepdim=True)
    return torch.stack([mean.squeeze(over), (value - mean).square().sum(over)])


def uniform(key: Tensor, size) -> Tensor:
    """Uniform fp32 numbers in [0, 1), with 23 bits each, from Philox-4x32-7 for a result of this size; see
    :func:`random`."""
    n, k, h, w = size
    place = torch.arange(n * h * w * k, device=key.device).view(n, h, w, k).permute(0, 3, 1, 2)
    low, mask = 0xFFFFFFFF, 0xFFFFFFFF
    counter = [place // 4 & mask, place // 4 >> 32, torch.zeros_like(place), torch.zeros_like(place)]
    bits = key.reshape(())
    keys = [bits & low, bits >> 32 & low]
    for _ in range(7):
        first, second = (_product(counter[0], 0xD2511F53), _product(counter[2], 0xCD9E8D57))
        counter = [second[0] ^ counter[1] ^ keys[0], second[1], first[0] ^ counter[3] ^ keys[1], first[1]]
        keys = [keys[0] + 0x9E3779B9 & mask, keys[1] + 0xBB67AE85 & mask]
    chosen = torch.stack(counter).gather(0, (place % 4).unsqueeze(0)).squeeze(0)
    return (chosen >> 9).float() * 2.0**-23


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the product of two 32-bit numbers."""
    mid = (a & 0xFFFF) * b
    high = (a >> 16) * b + (mid >> 16)
    return high >> 16 & 0xFFFFFFFF, (high & 0xFFFF) << 16 | mid & 0xFFFF
