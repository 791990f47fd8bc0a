"""Times PyTorch's kernels of attention on a GPU, forward and backward, over a grid of shapes: head sizes, lengths,
masks, biases with and without a gradient, dropout and grouped queries. The compiler's table of costs is fitted to the
times (fit_attention_costs.py). Attention that is written out has times of its products alone: the kernel between them
is one of the compiler's, and its costs are known (fit_plan_costs.py).

A step is recorded in a CUDA graph, so that launches take no time. Queries, keys, values and the result's gradient have
the heads within rows, as products give them. Kernels that do not support a case, or give a bias no gradient, have no
row. Cases that are not reached in the given seconds have none either; they are in an order that covers the grid early.

    python benchmarks/attention_kernels.py --seconds 95 --csv benchmarks/results/h200/attention_kernels.csv
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from results import Row, write_csv
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_reformer.tuning.workload import device_name, usable_device

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
PRODUCTS = "products"  # those of attention that is written out
MASKS = ("none", "causal", "mask", "bias", "bias_grad")  # "mask" is boolean
_ROWS, _FEW_ROWS = 16384, 2048  # queries of all batch elements, about, in steps of small models, and of small batches
_COLUMNS = 512  # of all heads
_REPEATS = 5  # steps in a CUDA graph


class Case(NamedTuple):
    """Shapes and options of a call. groups: queries' heads for each head of keys and values."""

    head_size: int
    queries: int
    keys: int
    mask: str = "none"
    dropout: float = 0.0
    groups: int = 1
    rows: int = _ROWS

    @property
    def heads(self) -> int:
        return max(_COLUMNS // self.head_size, self.groups)

    @property
    def batch(self) -> int:
        return max(1, self.rows // self.queries)

    def __str__(self) -> str:
        """Name, from which fit_attention_costs.py reads the case."""
        shape = f"b{self.batch} h{self.heads} g{self.groups} d{self.head_size} q{self.queries} k{self.keys}"
        return f"{shape} {self.mask} p{self.dropout:g}"


def case_of(name: str) -> Case:
    """The case of this name."""
    batch, _, groups, head_size, queries, keys, mask, dropout = name.split()
    rows = int(batch[1:]) * int(queries[1:])
    return Case(int(head_size[1:]), int(queries[1:]), int(keys[1:]), mask, float(dropout[1:]), int(groups[1:]), rows)


def grid() -> list[Case]:
    """All cases: every length for head size 64, four for the others; some with dropout, groups, fewer keys, queries of
    small windows or of a class token, or few rows, which tell the start of a call from the time of its bytes."""
    lengths, few = (16, 49, 64, 128, 197, 256, 512, 1024, 2048, 4096), (49, 128, 512, 2048)
    cases = [Case(64, length, length, mask) for length, mask in product(lengths, MASKS)]
    cases += [Case(size, length, length, mask) for size, length, mask in product((32, 128, 96, 256), few, MASKS)]
    cases += [Case(64, length, length, mask, 0.1) for length, mask in product((64, 128, 512, 2048), MASKS)]
    masks = ("none", "causal")
    cases += [Case(size, n, n, mask, 0.0, 4) for size, n, mask in product((64, 128), (128, 512, 2048), masks)]
    cases += [Case(64, queries, 49) for queries in (196, 784, 3136)]  # pyramid vision transformers
    cases += [Case(size, n, n, mask, rows=_FEW_ROWS) for size, n, mask in product((32, 64), (49, 128, 512), MASKS)]
    cases += [Case(size, 16, keys) for size, keys in product((32, 96), (16, 64, 256))]
    cases += [Case(size, 1, keys, rows=64) for size, keys in product((32, 64), (197, 401, 1024))]
    Random(0).shuffle(cases)
    return cases


def attention(case: Case, device: torch.device) -> tuple[Callable[[], Tensor], list[Tensor], Tensor]:
    """Function that computes attention, its operands that need gradients, and a gradient of its result."""
    torch.manual_seed(0)
    narrow = {"dtype": torch.bfloat16, "device": device}

    def operand(length: int, heads: int) -> Tensor:
        return torch.randn(case.batch, length, heads, case.head_size, **narrow).transpose(1, 2)

    heads_of_keys = case.heads // case.groups
    operands = [operand(case.queries, case.heads), *(operand(case.keys, heads_of_keys) for _ in "kv")]
    grad = operand(case.queries, case.heads)
    sizes = (case.batch, case.heads, case.queries, case.keys)
    mask = None
    if case.mask == "mask":  # of padding, which differs by batch element
        ends = torch.randint(case.keys // 2, case.keys + 1, (case.batch, 1, 1, 1), device=device)
        mask = (torch.arange(case.keys, device=device) < ends).expand(-1, -1, case.queries, -1).contiguous()
    elif case.mask.startswith("bias"):  # equal for all batch elements, as of relative positions
        padded = -(-case.keys // 8) * 8  # kernels read rows that begin at multiples of 16 bytes
        mask = torch.randn(1, *sizes[1:3], padded, **narrow)[..., : case.keys].expand(sizes)
    for each in operands:
        each.requires_grad_()
    if case.mask == "bias_grad":
        operands.append(mask.requires_grad_())  # its gradient is not summed over the batch here
    options = {"dropout_p": case.dropout, "is_causal": case.mask == "causal", "enable_gqa": case.groups > 1}
    query, key, value = operands[:3]
    return lambda: F.scaled_dot_product_attention(query, key, value, mask, **options), operands, grad


def products(case: Case, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
    """The products of attention that is written out, forward and backward: the scores are in fp32. Queries, keys and
    values are copied to heads in front before, which the kernels that compute them can do."""
    narrow = {"dtype": torch.bfloat16, "device": device}
    count = case.batch * case.heads
    # With rows at multiples of 16 bytes: products are slow otherwise. The columns behind are blocked by the mask.
    keys = -(-case.keys // 8) * 8
    query, grad = (torch.randn(count, case.queries, case.head_size, **narrow) for _ in "qg")
    key, value = (torch.randn(count, keys, case.head_size, **narrow) for _ in "kv")
    weights = torch.rand(count, case.queries, keys, **narrow)

    def forward() -> None:
        torch.bmm(query, key.mT, out_dtype=torch.float32)
        torch.bmm(weights, value)

    def backward() -> None:
        torch.bmm(weights.mT, grad)
        torch.bmm(grad, value.mT, out_dtype=torch.float32)
        torch.bmm(weights, key)
        torch.bmm(weights.mT, query)

    return forward, backward


def us(step: Callable[[], None]) -> list[float]:
    """Microseconds of a step: three times, from replays of a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(_REPEATS):
                step()
        graph.replay()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        for mark in marks[1:]:
            graph.replay()
            mark.record()
        stream.synchronize()
    return [a.elapsed_time(b) * 1e3 / _REPEATS for a, b in zip(marks, marks[1:], strict=False)]


def times(case: Case, kernel: str, device: torch.device) -> dict[str, list[float]]:
    """Microseconds of forward and backward by metric. Raises RuntimeError if the kernel does not support the case."""
    if kernel == PRODUCTS:
        forward, backward = products(case, device)
        return {"forward_us": us(forward), "backward_us": us(backward)}
    function, operands, grad = attention(case, device)
    with sdpa_kernel(KERNELS[kernel]):

        def both() -> None:
            found = torch.autograd.grad(function(), operands, grad, allow_unused=True)
            if any(each is None for each in found):
                raise RuntimeError("an operand has no gradient")

        with torch.no_grad():
            forward = us(function)
        step = us(both)
    once = statistics.median(forward)
    return {"forward_us": forward, "backward_us": [each - once for each in step]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=95)
    options = parser.parse_args()
    device = usable_device(options.device)
    warnings.filterwarnings("ignore")  # each kernel says why it does not support a case
    rows: list[Row] = []
    start = time.monotonic()
    names = (*KERNELS, PRODUCTS)
    print(f"| case, us forward + backward | {' | '.join(names)} |")
    print("|---" * (len(names) + 1) + "|")
    for case in grid():
        if time.monotonic() - start > options.seconds:
            print("no time is left")
            break
        cells = []
        for kernel in names:
            try:
                found = times(case, kernel, device)
            except RuntimeError as why:
                cells.append("-")
                if "out of memory" in str(why):
                    torch.cuda.empty_cache()
                continue
            cells.append(" + ".join(f"{statistics.median(each):.1f}" for each in found.values()))
            rows += [
                Row.of("attention_kernels", str(case), kernel, metric, values, device_name(device))
                for metric, values in found.items()
            ]
        print(f"| {case} | {' | '.join(cells)} |", flush=True)
        write_csv(options.csv, rows)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
