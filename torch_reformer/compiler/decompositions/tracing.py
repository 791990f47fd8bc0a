"""Operators that are replaced before autograd sees them, while AOTAutograd traces a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from ..ir.fx_utils import NEAREST, UPSAMPLINGS, gradient_of
from .attention import attention
from .circular_pad import is_indexed, padded

aten = torch.ops.aten

_KEEPS_FORMAT = (
    aten.upsample_bilinear2d,
    aten.upsample_trilinear3d,
)  # their gradients are in channels_last if they get such
_KEYS = DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd


@contextmanager
def tracing() -> Iterator[None]:
    """Context in which AOTAutograd traces graphs for this compiler: upsamplings and their gradients are one operator
    each, circular pads are reads by an index, and attention's kernel is chosen.

    PyTorch registers kernels in Python for autograd's dispatch key, which only tracing calls. They read each result's
    neighbours by index, so that a gradient adds up to 16 times to elements given by an index: on a GPU in atomic steps,
    in no fixed order. Other code that traces at the same time meets the same operators.
    """
    replaced = {operator: operator.py_kernels.copy() for operator in _instead}
    for operator, kernels in _instead.items():
        for key in _KEYS:
            operator.py_kernels.pop(key, None)
        operator.py_kernels.update(kernels | operator.py_kernels)
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in replaced.items():
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def _of_sizes(packet) -> Callable[..., Tensor]:
    """The overload that takes scale factors, by the one that takes the result's size. PyTorch's own would make a
    symbolic size a number."""

    def nearest(input: Tensor, output_size, scale_factors) -> Tensor:
        size = upsample_compute_output_size(input.size(), output_size, scale_factors)
        if input.size(0) == 0:  # PyTorch's fake operator raises
            spatial = [*range(2, input.dim())]
            return input.sum(spatial, keepdim=True).expand(*input.shape[:2], *size).contiguous()
        return packet.default(input, size, *(scale_factors or [None] * len(size)))

    def linear(input: Tensor, output_size, align_corners: bool, scale_factors) -> Tensor:
        size = upsample_compute_output_size(input.size(), output_size, scale_factors)
        return packet.default(input, size, align_corners, *(scale_factors or [None] * len(size)))

    return nearest if packet in NEAREST else linear


def _gradient(packet) -> Callable[..., Tensor]:
    """The fake gradient of an upsampling, which PyTorch has for sizes that are numbers only."""

    def gradient(grad_output: Tensor, output_size, input_size, *options) -> Tensor:
        format = suggest_memory_format(grad_output) if packet in _KEEPS_FORMAT else torch.contiguous_format
        return grad_output.new_empty(input_size).to(memory_format=format)

    return gradient


def _circular_pad(input: Tensor, pad: Sequence[int]) -> Tensor:
    if is_indexed(input, pad):
        return padded(input, pad)
    return aten._pad_circular.default._op_dk(DispatchKey.CompositeImplicitAutograd, input, pad)


def _attention(*args, **kwargs) -> Tensor:
    own = functools.partial(aten.scaled_dot_product_attention.default._op_dk, DispatchKey.CompositeImplicitAutograd)
    return attention(own, *args, **kwargs)


_instead: dict[OpOverload, dict[DispatchKey, Callable[..., Tensor]]] = {}
for packet in UPSAMPLINGS:
    _instead[packet.default] = {}
    _instead[packet.vec] = dict.fromkeys(_KEYS, _of_sizes(packet))
    _instead[gradient_of(packet)] = {DispatchKey.Meta: _gradient(packet)}
_instead[aten._pad_circular.default] = dict.fromkeys(_KEYS, _circular_pad)
_instead[aten.scaled_dot_product_attention.default] = dict.fromkeys(_KEYS, _attention)
