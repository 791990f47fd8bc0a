"""Expected times of attention by each kernel, forward and backward (attention_costs.json), fitted to timings
(benchmarks/fit_attention_costs.py).

A kernel's time is a start, plus terms for bytes, for the arithmetic of its products, and for the scores' exponentials,
of which small heads have more an operation. Kernels compute whole tiles of scores, so lengths are rounded up; causal
attention skips the tiles above the diagonal. Attention that is written out takes products and kernels of programs."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple

from .device_model import GPUS, Gpu, predicted_us

TABLE = Path(__file__).parent / "attention_costs.json"
WRITTEN = "products"  # key of the products of attention that is written out
MASKS = ("none", "causal", "mask", "bias", "bias_grad")  # "mask" is boolean
_ALIGNED = 8  # keys, in attention that is written out
MOST_KEYS = 1024  # likewise: scores of more would take much memory
_NARROW, _WIDE = 2, 4  # bytes of a number
_SCORES = 1e6  # scores in a unit of their term
_LARGE_HEAD = 128  # larger heads take other code, which is slower
_MULTIPROCESSORS = 132  # of Hopper, the only GPUs with times
_LEAST_GAIN = 0.9  # of the time by the kernel that PyTorch prefers, for another to be chosen


class Attention(NamedTuple):
    """A call of 16-bit attention. groups: queries' heads for each head of keys and values. mask: one of MASKS.
    is_shared: the mask or bias is one of all batch elements."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    head_size: int
    mask: str = "none"
    dropout: bool = False
    is_shared: bool = True

    @property
    def scores(self) -> int:
        return self.batch * self.heads * self.queries * self.keys

    @property
    def mask_bytes(self) -> int:
        width = {"none": 0, "causal": 0, "mask": 1}.get(self.mask, _NARROW)
        return width * self.scores // (self.batch if self.is_shared else 1)

    @property
    def of_queries(self) -> int:
        """Bytes of the queries; the result has as many."""
        return _NARROW * self.batch * self.heads * self.queries * self.head_size

    @property
    def of_keys(self) -> int:
        """Bytes of the keys; the values have as many."""
        return _NARROW * self.batch * (self.heads // self.groups) * self.keys * self.head_size


def kind_of(kernel: str, is_backward: bool, mask: str) -> str:
    """Key of the table. One kernel serves several masks, but those of a bias' gradient are another kind."""
    direction = "backward" if is_backward else "forward"
    kinds = {"none": "plain", "causal": "plain", "mask": "masked", "bias": "masked"}
    if kernel == WRITTEN:
        return f"{kernel} {direction}"
    return f"{kernel} {direction} {kinds.get(mask, 'bias_grad' if is_backward else 'masked')}"


def terms(case: Attention, kernel: str, is_backward: bool, gpu: Gpu) -> tuple[float, ...]:
    """The quantities that the table's factors multiply: 1, microseconds by the data sheet of bytes, of products, and
    again of products if heads are large, and millions of scores, in all and with dropout."""
    tile = 1 if kernel == WRITTEN else 64 if kernel == "efficient" and case.head_size <= 64 else 128
    queries, keys = (-(-size // tile) * tile for size in (case.queries, case.keys))
    scores = case.batch * case.heads * queries * keys
    if case.mask == "causal" and kernel != WRITTEN:
        scores = round(scores * (1 + tile / queries) / 2)
    bytes, products = 2 * case.of_queries + 2 * case.of_keys, 2
    if is_backward:
        bytes, products = 2 * bytes, 5
        bytes += _NARROW * case.scores if case.mask == "bias_grad" else 0
    if kernel == WRITTEN:
        scores = case.batch * case.heads * queries * (-(-keys // _ALIGNED) * _ALIGNED)
        products = 4 if is_backward else 2
        bytes += scores * (_WIDE + (3 if is_backward else 1) * _NARROW)
    else:
        bytes += case.mask_bytes
    if kernel == "efficient" and is_backward:  # a block computes gradients of some keys
        scores = round(scores * max(1, _MULTIPROCESSORS / max(1, case.batch * case.heads * (keys // tile))))
    us = 2 * products * scores * case.head_size / (gpu.arithmetic * 1e6)
    millions = scores / _SCORES
    large = us * (case.head_size > _LARGE_HEAD)
    return 1, bytes / (gpu.bandwidth * 1e3), us, large, millions, millions * case.dropout


@functools.cache
def table() -> dict[str, list[float]]:
    """Factors of the terms, by kind_of()."""
    return json.loads(TABLE.read_text())


def expected_us_of(case: Attention, kernel: str, gpu: Gpu, is_backward: bool) -> float | None:
    """Expected microseconds of the kernel alone, forward or backward; None if it is not known to take the case."""
    factors = table().get(kind_of(kernel, is_backward, case.mask))
    if factors is None:
        return None
    return sum(a * b for a, b in zip(factors, terms(case, kernel, is_backward, gpu), strict=True))


def expected_us(case: Attention, kernel: str, gpu: str, with_backward: bool) -> float:
    """Expected microseconds, of the backward too if asked for; infinite for a kernel that is not known to take it."""
    total = 0.0
    for is_backward in (False, True) if with_backward else (False,):
        us = expected_us_of(case, kernel, GPUS[gpu], is_backward)
        if us is None:
            return math.inf
        total += us
        if kernel == WRITTEN:
            total += _us_of_programs(case, gpu, is_backward)
        if kernel == "efficient" and case.groups > 1:  # it takes repeated keys and values only
            total += 2 * predicted_us(gpu, "stitch", (1 + case.groups) * case.of_keys, 0)
    if case.mask == "bias_grad" and with_backward and kernel != WRITTEN:  # its sum over what shares the bias
        total += predicted_us(gpu, "stitch columns", _NARROW * case.scores, 0)
    return total


def kernels(case: Attention, gpu: str, with_backward: bool) -> list[str]:
    """Kernels that are known to take the case, the one that is expected to take the least time first. PyTorch's own
    choice stays the first if others gain little."""
    may_write = case.groups == 1 and case.keys <= MOST_KEYS
    names = ["cudnn", "flash", "efficient", *([WRITTEN] if may_write else [])]
    times = {kernel: expected_us(case, kernel, gpu, with_backward) for kernel in names}
    times["efficient" if times["cudnn"] == math.inf else "cudnn"] *= _LEAST_GAIN
    return [kernel for kernel in sorted(times, key=times.__getitem__) if times[kernel] < math.inf]


def is_gain(case: Attention, gpu: str, with_backward: bool) -> bool:
    """True if a kernel is expected to take less time than a user's products and softmax, which take about as long as
    those of attention that is written out, or longer if rows of their scores are not aligned."""
    first = kernels(case, gpu, with_backward)[0]
    most = 1 / _LEAST_GAIN if case.keys % _ALIGNED else _LEAST_GAIN
    return expected_us(case, first, gpu, with_backward) <= most * expected_us(case, WRITTEN, gpu, with_backward)


def _us_of_programs(case: Attention, gpu: str, is_backward: bool) -> float:
    """Microseconds of the kernels between the products, and of those that copy operands and results by heads."""
    softmax = case.scores * (_WIDE + (2 if is_backward else 1) * _NARROW) + case.mask_bytes
    kind = "stitch rows columns" if is_backward and case.mask == "bias_grad" else "stitch rows"
    copied = [case.of_queries] * 2 + [case.of_keys] * 2  # forward: queries, keys, values, result; backward: gradients
    return predicted_us(gpu, kind, softmax, 0) + sum(predicted_us(gpu, "stitch", 2 * each, 0) for each in copied)
