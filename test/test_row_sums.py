"""Row sums without operands that are known late (early_row_sum)."""

import itertools

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
DEPTHS = {"log softmax": 2, "one of them": 1, "difference": 1}


def depth(value):
    """Number of successive row reductions."""
    depths = {}
    for each in in_order([value]):
        before = max((depths[id(operand)] for operand in each.operands), default=0)
        depths[id(each)] = before + (each.op in ROW_REDUCTIONS)
    return depths[id(value)]


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
    """The sums themselves need fewer row reductions; terms and factors outside of them may be late."""
    early, seen = early_row_sum(VALUES[name]), []
    todo = [early]
    while todo:
        value = todo.pop()
        if value.op == "row_sum" and value is not TOTAL:
            seen.append(depth(value))
        elif value not in (MAX, LOG, TOTAL):
            todo += value.operands
    assert max(seen) == DEPTHS.get(name, depth(program.row_sum(VALUES[name])))


def fp32_sums(value, x, **tensors):
    """The plain sum and the early one."""
    both = program.row_sum(value), early_row_sum(value)
    return [interpret(Program(program.store(each, per="row")), x.shape, x.dtype, tensors, x)[0] for each in both]


@pytest.mark.parametrize("name", ["log softmax", "difference", "chosen", "squares"])
def test_what_all_have_in_common_costs_no_digits(name):
    torch.manual_seed(0)
    x = torch.randn(64, 500, 1, 1) + 1e4
    tensors = {"y": torch.randn(x.shape), "label": torch.randint(0, 500, (64, 1, 1)).float()}
    exact = interpret(
        Program(program.store(program.row_sum(VALUES[name]), per="row")),
        *(x.shape, torch.float64, {key: each.double() for key, each in tensors.items()}, x.double()),
    )[0]
    plain, early = ((actual.double() - exact).norm() for actual in fp32_sums(VALUES[name], x, **tensors))
    assert early <= 2 * plain + 1e-6 * exact.norm()


def test_infinite_and_large_rows():
    """Sums that overflow fp32 or are infinite stay so if the late operand is applied after the sum."""
    x = torch.full((3, 50, 1, 1), 3e38)
    x[1] = torch.randn(50, 1, 1)
    x[1, 3] = torch.inf
    scaled = X / program.row_max(program.maximum(X, -X))
    times = program.select(X < 0, 0, X) * MAX
    for value in (X - MAX, scaled, times):
        torch.testing.assert_close(*fp32_sums(value, x), equal_nan=True)


def test_factors_stay_where_they_are():
    """0 and infinity make some elements NaN, but not their sum."""
    x = torch.tensor([[1.0, 0.0, -1.0, 2.0], [0.0, 0.0, -1.0, -3.0], [torch.inf, 1.0, 2.0, 3.0]]).view(3, 4, 1, 1)
    is_positive, positive = X > 0, program.select(X > 0, X, 0)
    most, total = program.row_max(X), program.row_sum(X - program.row_sum(X))
    chosen = program.select(is_positive, X / most, 0), program.select(is_positive, 0, X * (1 / most))
    for value in (
        *chosen,
        X / total,
        (X - MAX) / total,
        program.exp(X - MAX) * program.log(positive * TOTAL),
        X / most,
    ):
        torch.testing.assert_close(*fp32_sums(value, x), equal_nan=True)


SPECIAL = torch.tensor([0.0, 1.0, 2.0, -1.0, -0.5] * 4 + [torch.inf, -torch.inf, torch.nan])
LATE = [LABEL, MAX, program.row_max(Y), program.row_sum(X), program.row_sum(program.select(X > 0, X, 0)) - MAX]
RESTS = [X, -Y, X * Y, X - MAX, program.select(IS_LABEL, X, 0)]
CONDITIONS = [IS_LABEL, X > 0, Y < MAX, program.channel_index() < 2]
STEPS = {
    "plus": lambda rest, late: rest + late,
    "minus": lambda rest, late: rest - late,
    "less": lambda rest, late: late - rest,
    "times": lambda rest, late: late * rest,
    "by": lambda rest, late: rest / program.row_max(late),  # a power of 2: all results are exact
    "both": lambda rest, late: (rest - late) * late,
}


@pytest.mark.parametrize("step", STEPS)
def test_special_values(step):
    """Every rest and every late operand, among the elements that each condition chooses."""
    torch.manual_seed(0)
    x, y = SPECIAL[torch.randint(len(SPECIAL), (2, 100, 4, 1, 1))]
    label = SPECIAL[torch.randint(len(SPECIAL), (100, 1, 1))]
    for rest, late in itertools.product(RESTS, LATE):
        value = STEPS[step](rest, late)
        chosen = [program.select(condition, value, 0) for condition in CONDITIONS]
        others = [program.select(each, 0, value) for each in CONDITIONS]
        for each in (value, -value, *chosen, *others):
            plain, early = fp32_sums(each, x, y=y, label=label)
            torch.testing.assert_close(plain, early, rtol=0, atol=0, equal_nan=True)


def test_large_rows_of_which_some_are_added():
    """Rows that are wholly masked by the least number, for example."""
    x = torch.full((2, 50, 1, 1), torch.finfo(torch.float32).min)
    x[1, :9] = torch.randn(9, 1, 1)
    for value in (program.select(X < 9, X - LOG, 0), program.select(program.channel_index() < 5, X - LOG, 0)):
        torch.testing.assert_close(*fp32_sums(value, x))


def test_nothing_is_taken_from_rows_that_choose_none():
    x = torch.randn(4, 17, 1, 1)
    x[2] = torch.nan
    for value in (VALUES["one of them"], VALUES["difference"]):
        _, early = fp32_sums(value, x, label=torch.tensor([3.0, 5.0, -1.0, 16.0]).view(4, 1, 1))
        assert early[2] == 0 and early.isfinite().all()
