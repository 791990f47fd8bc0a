"""Sums over rows, with what is known later than the rest taken out."""

import pytest
import torch

from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.interpreter import interpret
from torch_reformer.program.operations import ROW_REDUCTIONS
from torch_reformer.program.row_sums import early_row_sum
from torch_reformer.program.values import in_order

X, Y, LABEL = program.acc(), program.full("y"), program.row("label")
MAX = program.row_max(X)
TOTAL = program.row_sum(program.exp(X - MAX))
LOG = MAX + program.log(TOTAL)
IS_LABEL = program.equal(program.channel_index(), LABEL)
VALUES = {
    "log softmax": X - MAX - program.log(TOTAL),
    "from": LOG - X * Y,
    "scaled": -(Y * program.exp(X - MAX) / TOTAL),
    "times": TOTAL * (X * Y),
    "one of them": program.select(IS_LABEL, X - LOG, 0),
    "all but one": program.select(IS_LABEL, 0, X - LOG),
    "difference": program.select(IS_LABEL, 3 * LOG - X, 0),
    "plain": X * Y + LABEL,
    "squares": (X - MAX) * (X - MAX),
    "chosen late": program.select(X < LOG, X - LOG, 0),
    "smoothed": LABEL + program.select(IS_LABEL, LABEL * 2, 0),
    "chosen": program.select(IS_LABEL, X, Y - LOG),
}
DEPTHS = {"log softmax": 1, "from": 1, "scaled": 2, "times": 1, "one of them": 1, "all but one": 1, "difference": 1}


def depth(value):
    """Row reductions that follow each other."""
    found = {}
    for each in in_order([value]):
        before = max((found[id(operand)] for operand in each.operands), default=0)
        found[id(each)] = before + (each.op in ROW_REDUCTIONS)
    return found[id(value)]


@pytest.mark.parametrize("name", VALUES)
def test_is_the_same_sum(name):
    torch.manual_seed(0)
    size = 3, 17, 4, 5
    tensors = {"y": torch.randn(size, dtype=torch.float64), "label": torch.randint(0, 17, (3, 4, 5)).double()}
    x = torch.randn(size, dtype=torch.float64)
    results = []
    for value in (program.row_sum(VALUES[name]), early_row_sum(VALUES[name])):
        results += interpret(Program(program.store(value, per="row")), size, x.dtype, tensors, x)
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", VALUES)
def test_is_known_earlier(name):
    """The sums themselves: what is added to them or multiplied may be late."""
    found, seen = early_row_sum(VALUES[name]), []
    todo = [found]
    while todo:
        value = todo.pop()
        if value.op == "row_sum" and value is not TOTAL:
            seen.append(depth(value))
        elif value not in (MAX, LOG, TOTAL):
            todo += value.operands
    assert max(seen) == DEPTHS.get(name, depth(program.row_sum(VALUES[name])))
