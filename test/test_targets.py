"""Programs that store rows to targets: places that a table has."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.mapped import Targets
from torch_reformer.program.program import decode
from torch_reformer.runtime import plan as plans

# Rows of three elements: the first to the second place, the second nowhere, the third to the first and to the last
# place, and zeros between.
NUMBERS = [[3, -1], [-1, -1], [0, 9], [-2 - 6, -1]]
DOUBLED = program.store(program.acc() * 2)
TESTED = Program(replace(DOUBLED, targets=Targets("t")))


def table(numbers: list[list[int]]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32).view(1, 1, 1, len(numbers), -1)


def rows(count: int = 4, columns: int = 3) -> Tensor:
    """A tensor of so many rows in channels_last."""
    values = torch.arange(count * columns, dtype=torch.float32).view(1, count, 1, columns) + 1
    return values.permute(0, 3, 1, 2)


def stored(tested: Program, acc: Tensor, numbers: Tensor, into: Tensor) -> None:
    steps = plans.Plan(3)
    steps.stitch(tested.code, 0, [1], [2])
    plans.run(steps.give(), [acc, numbers, into])


def view(memory: Tensor) -> Tensor:
    """Where a program stores rows: their columns, and each line at the place that its targets say."""
    return memory.as_strided((1, 1, 1, 4, 3), (0, 0, 0, 0, 1))


def test_stores():
    acc, memory = rows(), torch.full([15], 7.0)
    stored(TESTED, acc, table(NUMBERS), view(memory))
    expected = [14.0, 16, 18, 2, 4, 6, 0, 0, 0, 14, 16, 18, 7, 7, 7]
    assert memory.tolist() == expected


def test_code():
    assert str(decode(TESTED.code)) == str(TESTED).replace(" t ", " t0 ")
    assert decode(TESTED.code).outputs[0].targets == Targets("t0")
    aligned = Program(replace(DOUBLED, targets=Targets("t", 8)), DOUBLED)
    assert [output.targets for output in decode(aligned.code).outputs] == [Targets("t0", 8), None]


def test_no_gradient():
    assert not TESTED.outputs[0].has_derivative
    assert DOUBLED.has_derivative


def test_errors():
    acc, numbers, into = rows(), table(NUMBERS), view(torch.zeros(15))
    with pytest.raises(RuntimeError, match="output 0 has targets, but no placement"):
        stored(TESTED, acc, numbers, rows())
    with pytest.raises(RuntimeError, match=r"tensors\[0\] \(targets\) has size"):
        stored(TESTED, acc, numbers[..., :3, :].contiguous(), into)
    with pytest.raises(RuntimeError, match="has data type Long"):
        stored(TESTED, acc, numbers.long(), into)
    with pytest.raises(RuntimeError, match="has targets, but nothing to write to"):
        torch.ops.reformer.stitch(acc, [numbers], TESTED.code)
    with pytest.raises(RuntimeError, match="can't be read by lines|no map of the lines"):
        stored(TESTED, acc.contiguous(), numbers, into)


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (-1, 1, "an input of another kind"),
        (-1, 5 << 16, "an alignment of too many elements"),
        (-5, 1, "targets of something else than elements"),
    ],
    ids=["input", "alignment", "reduction"],
)
def test_malformed(place, number, message):
    code = list(TESTED.code)
    code[place] = number
    with pytest.raises(RuntimeError, match=message):
        torch.ops.reformer.stitch(rows(), [table(NUMBERS)], code)
