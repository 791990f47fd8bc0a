"""Programs that gather rows of tables."""

import pytest
import torch
from look_ups import ROWS, looked_up, looking_up, plain

import torch_reformer
from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative
from torch_reformer.program.interpreter import interpret
from torch_reformer.program.program import decode


def check(name, size, index, pitch, device="cpu", dtype=torch.float32):
    tested = looking_up()[name]
    acc, tensors = (
        {key: each.to(device) for key, each in given.items()} if isinstance(given, dict) else given.to(device)
        for given in looked_up(tested, size, dtype, index, pitch)
    )
    results = torch_reformer.stitch(acc, tested, tensors)
    wide = {key: each.double() if each.is_floating_point() else each for key, each in plain(tensors, size).items()}
    rounding = 1e-4 if dtype == torch.float32 else 2.0**-7
    for result, exact in zip(results, interpret(tested, size, torch.float64, wide, acc.double()), strict=True):
        torch.testing.assert_close(result.double(), exact.double(), rtol=rounding, atol=rounding)


SIZES = [(2, 24, 3, 5), (3, 7, 2, 2), (2, 1100, 2, 3), (1, 2, 1, 1), (2, 8, 0, 3)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", looking_up())
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_on_a_cpu(name, size, index):
    if 0 in size and name == "tables":
        pytest.skip("nothing has no moments")
    for pitch in (0, 3):
        check(name, size, index, pitch)


def test_other_layouts_are_pytorchs():
    """Rows are gathered in the layout in which their elements are adjacent; other layouts are left to PyTorch."""
    tested, size = looking_up()["tables"], (2, 24, 3, 5)
    acc, tensors = looked_up(tested, size, torch.float32)
    tensors = plain(tensors, size)
    for ours, theirs in zip(
        torch_reformer.stitch(acc.contiguous(), tested, tensors),
        torch_reformer.stitch(acc, tested, tensors),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_gradients():
    size, tables = (2, 24, 3, 5), [*ROWS]
    tested = Program(program.store(program.table("words") * program.table("places") * program.acc()))
    acc, tensors = looked_up(tested, size, torch.float64)
    tensors = plain(tensors, size)
    given = [acc.requires_grad_(), *(tensors[name].requires_grad_() for name in tables)]
    actual = torch.autograd.grad(torch_reformer.stitch(acc, tested, tensors).square().sum(), given)
    (expected,) = interpret(tested, size, torch.float64, tensors, acc)
    for ours, theirs in zip(actual, torch.autograd.grad(expected.square().sum(), given), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_no_table():
    tested, size = looking_up()["tables"], (2, 24, 3, 5)
    acc, tensors = looked_up(tested, size, torch.float32)
    with pytest.raises(RuntimeError, match=r"tensors\[0\] \(table\) has size \[11, 23\], but rows have 24 elements"):
        torch_reformer.stitch(acc, tested, tensors | {"words": tensors["words"][:, 1:]})
    with pytest.raises(RuntimeError, match=r"tensors\[1\] \(index\) has data type"):
        torch_reformer.stitch(acc, tested, tensors | {"words_index": tensors["words_index"].float()})
    with pytest.raises(IndexError, match="index out of range"):
        torch_reformer.stitch(acc, tested, tensors | {"words_index": tensors["words_index"] + 11})


def test_code():
    tested = looking_up()["tables"]
    assert decode(tested.code).code == tested.code
    assert [*tested.inputs.items()][:2] == [("words", "table"), (program.index_of("words"), "index")]
    code = list(tested.code)
    code[3], code[4] = code[4], code[3]  # the index before the table
    with pytest.raises(RuntimeError, match="index"):
        torch.ops.reformer.stitch(torch.empty(1, 2, 1, 1), [], code)
    with pytest.raises(ValueError, match="is both full and index"):
        Program(program.store(program.full("a_index") + program.table("a")))
    with pytest.raises(ValueError, match="is a table, and no program computes its gradient"):
        derivative(Program(program.store(program.table("a") * 2)), ("a",), None, True)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES[:4], (2, 20480, 2, 3)], ids=str)
@pytest.mark.parametrize("name", looking_up())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu(dtype, name, size):
    for index, pitch in ((torch.int64, 0), (torch.int32, 8), (torch.int64, 3)):
        check(name, size, index, pitch, "cuda", dtype)
