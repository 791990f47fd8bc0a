"""How many chunks a loss's rows are computed in (chunk_losses.py): as many as keep products efficient and cost little
time. Each chunk reads the weight again, and reads and writes the sum of the weight's gradients. In return, the backward
scales these instead of the gradient of the scores. Chunks that save little of a step's memory are not worth it. With a
memory budget, time does not count, and chunks may have half as many rows."""

from __future__ import annotations

import itertools
import math

from torch.fx import GraphModule, Node

from ..ir.device_model import flops_of_operator, predicted_us
from ..ir.fx_utils import base_of, bytes_of, followers, size_of
from .memory_budget import current_budget, us_of_node
from .row_chunks import PRODUCTS, Rows

LEAST_ROWS = 2048  # of a chunk, as products of fewer rows are slower. With a memory budget half as many.
_MOST = 16
_LONGER = 0.03  # share of a step's time that chunks may take in addition
_LEAST_SAVED = 0.2  # share of a step's memory that chunks save at least
_GPU = "sm_90"  # on every device, so that all processes make the same plans
_ALIGNED = 256  # rows


def chunk_bounds(joint: GraphModule, product: Node, rows: Rows) -> list[tuple[int, int]]:
    """Where each chunk begins and ends, in groups of rows; one pair if chunks do not pay."""
    groups, count = math.gcd(*rows.sizes()), product.meta["val"].shape[0]
    if current_budget() < 1:
        chunks = min(_MOST, groups, 2 * count // LEAST_ROWS)
    else:
        chunks = min(_MOST, groups, count // LEAST_ROWS, _most_in_time(joint, product, rows))
        if 2 * bytes_of(product) * (chunks - 1) < _LEAST_SAVED * chunks * _bytes_of_step(joint, product):
            chunks = 1
    if chunks < 2:
        return [(0, groups)]
    size, aligned = -(-groups // chunks), max(1, _ALIGNED * groups // count)
    if size > 4 * aligned:
        size = -(-size // aligned) * aligned
    return list(itertools.pairwise([*range(0, groups, size), groups]))


def _most_in_time(joint: GraphModule, product: Node, rows: Rows) -> int:
    """The most chunks that take hardly more time."""
    multiplied = [node for node in (*rows.dims, *rows.summed) if node.target in PRODUCTS]
    sums = sum(4 * size_of(node) for node in rows.summed)
    read = sum(bytes_of(each) for node in multiplied for each in node.all_input_nodes if each not in rows)
    of_chunk = sum(_us_of_bytes("product", 0) for _ in multiplied) + _us_of_bytes("product", read + 2 * sums)
    saved = _us_of_bytes("reformer::_scale_", 2 * bytes_of(product)) - _us_of_bytes("reformer::_scale_", 2 * sums)
    return 1 + int((_LONGER * _us_of_step(joint) + saved) / of_chunk)


def _us_of_bytes(kind: str, bytes: int) -> float:
    return predicted_us(_GPU, kind, bytes, 0)


def _us_of_step(joint: GraphModule) -> float:
    """Expected microseconds of a step's products, convolutions and attention."""
    return sum(us_of_node(node, _GPU) for node in joint.graph.nodes if flops_of_operator(node.target))


def _bytes_of_step(joint: GraphModule, product: Node) -> int:
    """Bytes of a step's inputs and of what its backward reads of the forward, with the scores and their gradient."""
    inputs = joint.graph.find_nodes(op="placeholder")
    backward = followers(joint, [node for node in inputs if "tangents" in str(node.target)])
    read = [each for node in backward for each in node.all_input_nodes if each not in backward]
    kept = dict.fromkeys([*inputs, *map(base_of, read)])
    return 2 * bytes_of(product) + sum(map(bytes_of, kept))
