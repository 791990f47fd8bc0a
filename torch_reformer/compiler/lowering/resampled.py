"""Rules of pools and upsamplings, and of their gradients: a map for each spatial axis, had by asking PyTorch's own
operators for unit vectors along one axis. A gradient's maps are the transposed ones, so it adds in a fixed order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ir.axis_map import AxisMap
from ..ir.fake_tensors import real_tensors, typed
from ..ir.graph import Graph, View
from .indexed import Maps, indexed

aten = torch.ops.aten
MOST_PROBED = 1 << 21  # elements of a matrix


def _probed(operator: Callable[[Tensor], Tensor], size: int) -> AxisMap:
    """The map of a linear operator of fp64 tensors [unit vectors, size]."""
    with real_tensors(), torch.no_grad():
        columns = operator(torch.eye(size, dtype=torch.float64)).tolist()
    rows: list[list[tuple[int, float]]] = [[] for _ in columns[0]]
    for place, column in enumerate(columns):
        for i, weight in enumerate(column):
            if weight:
                rows[i].append((place, weight))
    return AxisMap.of(size, map(tuple, rows))


@functools.lru_cache(256)
def _of_upsampling(name: str, rank: int, size: int, result: int, options: tuple, scale: float | None) -> AxisMap:
    """The map of one axis of an upsampling of this rank. The other axes have two elements: for one element PyTorch's
    antialiased operator is wrong on CPUs."""
    operator, others = getattr(aten, name).default, [2] * (rank - 1)

    def run(units: Tensor) -> Tensor:
        image = units.view(size, 1, size, *[1] * (rank - 1)).expand(-1, -1, -1, *others).contiguous()
        return operator(image, [result, *others], *options, scale, *[None] * (rank - 1)).reshape(size, result, -1)[
            ..., 0
        ]

    return _probed(run, size)


def _upsampling(name: str, rank: int, has_option: bool) -> tuple[Callable, Callable]:
    """Rules of an upsampling and of its gradient. has_option: it can align corners."""

    def maps(sizes: Sequence[int], results: Sequence[int], options: tuple) -> Maps | None:
        first, scales = len(sizes) - rank, options[has_option:] + (None,) * rank
        axes = list(zip(range(first, len(sizes)), sizes[first:], results, scales, strict=False))
        if any(size * result > MOST_PROBED for _, size, result, _ in axes):
            return None
        return {d: _of_upsampling(name, rank, size, result, options[:has_option], scale)
                for d, size, result, scale in axes}  # fmt: skip

    def forward(graph: Graph, value: Tensor, view: View, size: Sequence[int], *options) -> View | None:
        found = maps(view.layout.sizes, size, options)
        return None if found is None else indexed(graph, name, typed(value), view, found)

    def backward(graph: Graph, value: Tensor, grad: View, size, input_size: Sequence[int], *options) -> View | None:
        found = maps(tuple(input_size), size, options)
        return None if found is None else _gradient(graph, name, value, grad, found)

    return forward, backward


def _gradient(graph: Graph, name: str, value: Tensor, grad: View, maps: Maps) -> View | None:
    transposed = {d: axis_map.transposed() for d, axis_map in maps.items()}
    return indexed(graph, f"{name}_backward", typed(value), grad, transposed)


@functools.lru_cache(256)
def _of_pool(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, counts_padding: bool) -> AxisMap:
    """The map of one axis of an average pool."""
    options = kernel, stride, padding, ceil_mode, counts_padding
    return _probed(lambda units: F.avg_pool1d(units.unsqueeze(1), *options).squeeze(1), size)


def _pool(rank: int) -> tuple[Callable, Callable]:
    """Rules of an average pool and of its gradient."""

    def maps(sizes, kernel, stride=(), padding=0, ceil_mode=False, counts_padding=True, divisor=None) -> Maps | None:
        def each(numbers) -> list[int]:
            numbers = [numbers] if isinstance(numbers, int) else list(numbers)
            return numbers * rank if len(numbers) == 1 else numbers

        first = len(sizes) - rank
        if any(size > MOST_PROBED // size for size in sizes[first:]):
            return None
        axes = zip(sizes[first:], each(kernel), each(stride or kernel), each(padding), strict=True)
        found = [_of_pool(*axis, bool(ceil_mode), bool(counts_padding)) for axis in axes]
        if divisor is not None:
            found = [
                AxisMap.of(one.size, (tuple((place, 1.0) for place, _ in row) for row in one.rows)) for one in found
            ]
            found[0] = found[0].times(1 / divisor)
        return {first + d: axis_map for d, axis_map in enumerate(found)}

    def forward(graph: Graph, value: Tensor, view: View, *options, **named) -> View | None:
        found = maps(view.layout.sizes, *options, **named)
        return None if found is None else indexed(graph, "avg_pool", typed(value), view, found)

    def backward(graph: Graph, value: Tensor, grad: View, view: View, *options) -> View | None:
        found = maps(view.layout.sizes, *options)
        return None if found is None else _gradient(graph, "avg_pool", value, grad, found)

    return forward, backward


@functools.lru_cache(256)
def _of_adaptive_pool(size: int, result: int) -> AxisMap:
    """The map of one axis of an adaptive average pool."""
    return _probed(lambda units: F.adaptive_avg_pool1d(units.unsqueeze(1), result).squeeze(1), size)


def _adaptive_pool(rank: int) -> tuple[Callable, Callable]:
    """Rules of an adaptive average pool and of its gradient."""

    def maps(sizes: Sequence[int], results: Sequence[int]) -> Maps | None:
        first = len(sizes) - rank
        if any(size * result > MOST_PROBED for size, result in zip(sizes[first:], results, strict=True)):
            return None
        return {first + d: _of_adaptive_pool(sizes[first + d], results[d]) for d in range(rank)}

    def forward(graph: Graph, value: Tensor, view: View, size: Sequence[int]) -> View | None:
        found = maps(view.layout.sizes, value.shape[-rank:])
        return None if found is None else indexed(graph, "adaptive_avg_pool", typed(value), view, found)

    def backward(graph: Graph, value: Tensor, grad: View, view: View) -> View | None:
        found = maps(view.layout.sizes, grad.layout.sizes[-rank:])
        return None if found is None else _gradient(graph, "adaptive_avg_pool", value, grad, found)

    return forward, backward


_UPSAMPLINGS = {"upsample_nearest{}d": (1, 2, 3), "_upsample_nearest_exact{}d": (1, 2, 3), "upsample_linear{}d": (1,)}
_UPSAMPLINGS |= dict.fromkeys(("upsample_bilinear{}d", "upsample_bicubic{}d"), (2,))
_UPSAMPLINGS |= dict.fromkeys(("_upsample_bilinear{}d_aa", "_upsample_bicubic{}d_aa"), (2,))
_UPSAMPLINGS |= {"upsample_trilinear{}d": (3,)}

RULES: dict = {}


def _add(name: str, rules: tuple[Callable, Callable]) -> None:
    for suffix, rule in zip(("", "_backward"), rules, strict=True):
        if (operator := getattr(aten, name + suffix, None)) is not None:
            RULES[operator.default] = rule


for _name, _ranks in _UPSAMPLINGS.items():
    for _rank in _ranks:
        _add(_name.format(_rank), _upsampling(_name.format(_rank), _rank, "nearest" not in _name))
for _rank in (2, 3):
    _add(f"avg_pool{_rank}d", _pool(_rank))
    _add(f"_adaptive_avg_pool{_rank}d", _adaptive_pool(_rank))
