"""Fake kernels: shape, layout and errors of the operators for tensors without data (torch.compile, torch.export, the
meta device). Sizes, checks and messages are those of csrc/operators/conv.cpp, strides those of
csrc/operators/tensors.cpp.

Sizes may be symbolic. A check that depends on a symbolic size becomes a guard, so the limit of 2^31 elements is checked
for known sizes only: a guard on the batch would be an error in torch.export.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..problem import TORCH_DTYPES

_LIMIT = 2**31


def _check(op: str, holds, message) -> None:
    torch._check(holds, lambda: f"reformer::{op}: {message()}")


def _check_rank(op: str, name: str, size) -> None:
    _check(op, len(size) == 4, lambda: f"{name} must have 4 dimensions, got {len(size)} ({list(size)})")


def _check_pair(op: str, name: str, values, least: int) -> None:
    _check(op, len(values) == 2, lambda: f"{name} must have 2 values (height, width), got {list(values)}")
    for value in values:
        _check(op, value >= least, lambda: f"{name} must be at least {least} and below 2^31, got {list(values)}")
        if isinstance(value, int):
            _check(op, value < _LIMIT, lambda: f"{name} must be at least {least} and below 2^31, got {list(values)}")


def _check_numel(op: str, name: str, size) -> None:
    if all(isinstance(extent, int) for extent in size):
        _check(op, min(size) >= 0, lambda: f"{name} has a negative size: {list(size)}")
        _check(
            op,
            max(math.prod(size), *size) < _LIMIT,
            lambda: f"{name} of size {list(size)} has 2^31 elements or more, which is not supported",
        )


def _check_same(op: str, first_name: str, first: Tensor, name: str, tensor: Tensor) -> None:
    _check(
        op,
        tensor.dtype == first.dtype,
        lambda: f"{name} has data type {tensor.dtype}, but {first_name} has {first.dtype}",
    )
    _check(
        op,
        tensor.device == first.device,
        lambda: f"{name} is on another device than {first_name}; move both to one device",
    )


def output_size(op: str, input, weight, stride, padding, dilation, groups) -> list:
    """Size of the output for an input and a weight of these sizes. Raises ``RuntimeError`` for inconsistent
    arguments."""
    _check_rank(op, "input", input)
    _check_rank(op, "weight", weight)
    _check_pair(op, "stride", stride, 1)
    _check_pair(op, "padding", padding, 0)
    _check_pair(op, "dilation", dilation, 1)
    _check_numel(op, "input", input)
    _check_numel(op, "weight", weight)
    _check(op, groups >= 1, lambda: f"groups must be at least 1 and below 2^31, got {groups}")
    if isinstance(groups, int):
        _check(op, groups < _LIMIT, lambda: f"groups must be at least 1 and below 2^31, got {groups}")
    _check(
        op,
        weight[0] % groups == 0,
        lambda: f"weight has {weight[0]} output channels, not divisible by groups = {groups}",
    )
    _check(op, input[1] % groups == 0, lambda: f"input has {input[1]} channels, not divisible by groups = {groups}")
    _check(
        op,
        input[1] == weight[1] * groups,
        lambda: (
            f"weight of size {list(weight)} with groups = {groups} takes {weight[1] * groups} channels, "
            f"but input of size {list(input)} has {input[1]}"
        ),
    )
    output = [input[0], weight[0]]
    for d, lines in enumerate(("rows", "columns")):
        _check(op, weight[2 + d] >= 1, lambda: f"weight of size {list(weight)} has an empty filter")
        padded, extent = input[2 + d] + 2 * padding[d], dilation[d] * (weight[2 + d] - 1) + 1
        _check(
            op,
            extent <= padded,
            lambda d=d, lines=lines, padded=padded, extent=extent: (
                f"weight of size {list(weight)} with dilation {dilation[d]} covers {extent} {lines}, "
                f"but the padded input has only {padded}"
            ),
        )
        output.append((padded - extent) // stride[d] + 1)
    _check_numel(op, "the output", output)
    return output


def _check_grad_output(op: str, expected: list, grad: Tensor) -> None:
    _check(
        op,
        grad.dim() == 4 and all(actual == size for actual, size in zip(grad.shape, expected, strict=True)),
        lambda: f"grad_output has size {list(grad.shape)}, but the geometry gives {expected}",
    )


def _result(op: str, size, first_name: str, first: Tensor, second_name: str, second: Tensor) -> Tensor:
    _check(
        op,
        first.dtype in TORCH_DTYPES.values(),
        lambda: f"{first_name} has data type {first.dtype}; float32, float64, float16 and bfloat16 are supported",
    )
    _check_same(op, first_name, first, second_name, second)
    memory_format = torch.channels_last if result_is_channels_last(first, second) else torch.contiguous_format
    return torch.empty(size, dtype=first.dtype, device=first.device, memory_format=memory_format)


def result_is_channels_last(first: Tensor, second: Tensor) -> bool:
    """True if the result is channels_last, by the rule of result_layout in csrc/operators/tensors.cpp."""
    if (first.is_cuda and first.dtype == torch.float64) or _is_empty(first) or _is_empty(second):
        return False
    return _is_channels_last(first) or _is_channels_last(second)


def _is_empty(tensor: Tensor) -> bool:
    return any(_is_known_zero(extent) for extent in tensor.shape)


def _is_known_zero(extent) -> bool:
    if isinstance(extent, int):
        return extent == 0
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # slow to import, and not needed without symbols

    return guard_or_false(extent == 0)


def _is_channels_last(tensor: Tensor) -> bool:
    """True if a non-empty tensor is channels_last, by the rule of suggested_layout in csrc/operators/tensors.cpp."""
    sizes, strides, least = tensor.shape, tensor.stride(), 0
    if strides[1] == 0:
        return False
    for d in (1, 3, 2, 0):
        if strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * sizes[d] if sizes[d] > 1 else strides[d]
    return True


def register(library: torch.library.Library) -> None:
    @torch.library.register_fake("reformer::conv2d", lib=library)
    def _(input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
        op = "conv2d"
        size = output_size(op, input.shape, weight.shape, stride, padding, dilation, groups)
        if bias is not None:
            _check(
                op,
                bias.dim() == 1 and bias.shape[0] == size[1],
                lambda: f"bias has size {list(bias.shape)}, but weight has {size[1]} output channels",
            )
            _check_same(op, "input", input, "bias", bias)
        return _result(op, size, "input", input, "weight", weight)

    @torch.library.register_fake("reformer::conv2d_input_grad", lib=library)
    def _(input_size, weight, grad_output, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
        op = "conv2d_input_grad"
        expected = output_size(op, input_size, weight.shape, stride, padding, dilation, groups)
        _check_grad_output(op, expected, grad_output)
        return _result(op, input_size, "weight", weight, "grad_output", grad_output)

    @torch.library.register_fake("reformer::_contiguous", lib=library)
    def _(tensor):
        return tensor.new_empty(tensor.shape)

    @torch.library.register_fake("reformer::_scale_", lib=library)
    def _(tensor, factor):
        return tensor

    @torch.library.register_fake("reformer::_cast_all", lib=library)
    def _(tensors, to):
        return None

    @torch.library.register_fake("reformer::_embedding_grad", lib=library)
    def _(grad, ids, rows, padding, by_frequency, base=None, tables=1):
        return grad.new_empty((rows, grad.shape[-1]))

    @torch.library.register_fake("reformer::_add_embedding_grad_", lib=library)
    def _(sum, grad, ids, padding=-1, tables=1):
        return sum

    @torch.library.register_fake("reformer::_row_numbers", lib=library)
    def _(index, rows, of, tables=1):
        return index.new_empty(index.shape, dtype=torch.int32)

    @torch.library.register_fake("reformer::_sort_rows", lib=library)
    def _(numbers, rows):
        return torch.empty_like(numbers), numbers.new_empty((rows + 1,))

    @torch.library.register_fake("reformer::_segment_sum", lib=library)
    def _(source, order, begins, base, factors):
        return source.new_empty((begins.shape[0] - 1, source.shape[1]))

    @torch.library.register_fake("reformer::conv2d_weight_grad", lib=library)
    def _(weight_size, input, grad_output, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
        op = "conv2d_weight_grad"
        expected = output_size(op, input.shape, weight_size, stride, padding, dilation, groups)
        _check_grad_output(op, expected, grad_output)
        return _result(op, weight_size, "input", input, "grad_output", grad_output)
