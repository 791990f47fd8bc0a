"""Programs that read tensors through maps of their axes."""

import pytest
import torch
from mapped import expected, operands, reading, ways

from torch_reformer import program
from torch_reformer.program import Program
from torch_reformer.program.derivative import derivative
from torch_reformer.program.interpreter import interpret
from torch_reformer.program.program import decode

SIZES = {"small": (2, 3, 4, 5), "one row": (1, 1, 7, 16), "wide": (2, 5, 3, 640)}


@pytest.mark.parametrize("way", ways(3, 4))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_reads(dtype, size, way, device):
    if device == "cuda" and dtype == torch.float64:
        pytest.skip("results in fp64 are never in channels_last on a GPU")
    leaf, tensors, acc, exact = case(way, SIZES[size], dtype)
    for tested in reading(leaf).values():
        chosen = [
            tensors[name].to(device) if tensors[name].dim() == 2 else on(tensors[name], device) for name in tested.names
        ]
        results = torch.ops.reformer.stitch(acc.to(device), chosen, tested.code)
        wide = interpret(with_full(tested), acc.shape, torch.float64, {"full": exact}, acc.double())
        for result, one in zip(results, wide, strict=True):
            eps = torch.finfo(result.dtype).eps if result.dtype == torch.bfloat16 else 3e-6
            torch.testing.assert_close(
                result.double().cpu(), one.to(result.dtype).double(), rtol=eps, atol=2e-5, equal_nan=True
            )


def with_full(tested: Program) -> Program:
    """The program with a tensor in place of what it reads through maps."""
    leaf = next(node for node in tested.nodes if node.op == "mapped")
    return next(
        other
        for other in reading(program.full("full")).values()
        if str(other) == str(tested).replace(f"mapped {leaf.attribute}", "full full")
    )


def on(view, device):
    """The view and its memory on the device."""
    memory = view.as_strided((view.untyped_storage().nbytes() // view.itemsize,), (1,), 0).to(device)
    return memory.as_strided(view.shape, view.stride(), view.storage_offset())


def case(name, size, dtype):
    """A leaf, its tensors, acc in channels_last, and what the leaf reads."""
    n, h, w, c = size
    way, generator = ways(h, w)[name], torch.Generator().manual_seed(0)
    source = torch.randn(size, generator=generator).to(dtype)
    source = source.permute(0, 3, 1, 2) if way.columns else source
    source = source if way.by_lines else source.contiguous()
    source[0, 0, 0, 0], source[-1, -1, -1, -1] = torch.nan, torch.inf
    leaf, tensors, sizes = operands(source, way)
    acc = torch.randn(sizes, generator=generator).to(dtype).contiguous(memory_format=torch.channels_last)
    if acc.is_contiguous():  # of one column or position
        acc = acc.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    return leaf, tensors, acc, expected(source, way)


@pytest.mark.parametrize("way", ways(3, 4))
def test_interpreter_and_code(way):
    leaf, tensors, acc, exact = case(way, (2, 3, 4, 5), torch.float32)
    tested = Program(program.store(leaf))
    assert str(decode(tested.code)) == str(tested).replace(" t ", " t0 ")
    (result,) = torch.ops.reformer._stitch_unfused(acc, [tensors[name] for name in tested.names], tested.code)
    torch.testing.assert_close(result.double(), exact, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_wrong_maps():
    leaf, tensors, acc, _ = case("roll", (2, 3, 4, 5), torch.float32)
    tested = Program(program.store(leaf))

    def run(code=tested.code, memory_format=torch.channels_last, **changed):
        chosen = {**tensors, **changed}
        return torch.ops.reformer.stitch(acc.contiguous(memory_format=memory_format), [*chosen.values()], code)

    with pytest.raises(RuntimeError, match=r"tensors\[1\] \(places\) has size"):
        run(t_map0=tensors["t_map0"][:, :1])
    with pytest.raises(RuntimeError, match="has data type Long"):
        run(t_map0=tensors["t_map0"].long())
    with pytest.raises(RuntimeError, match="can't be read by lines of the result"):
        run(memory_format=torch.contiguous_format)
    with pytest.raises(RuntimeError, match="does not fit its maps"):
        run(t_map0=torch.zeros(5, 1, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="those that come from nowhere are 0"):
        bad = program.Value("mapped", attribute=leaf.attribute._replace(nowhere=1.0, maps=("weighted", "places")))
        run(Program(program.store(bad)).code, t_map0=tensors["t_map0"].repeat(1, 1, 1, 1, 2))
    with pytest.raises(RuntimeError, match="a mapped tensor without maps"):
        run((1, *tested.code[1:4], *tested.code[6:]))


def test_gradients():
    leaf, tensors, acc, exact = case("roll", (2, 3, 4, 5), torch.float32)
    tested = Program(program.store(leaf * program.acc()))
    acc.requires_grad_()
    (result,) = torch.ops.reformer.stitch(acc, [tensors[name] for name in tested.names], tested.code)
    result.sum().backward()  # by PyTorch's own operations
    torch.testing.assert_close(acc.grad.double(), exact, equal_nan=True)
    with pytest.raises(ValueError, match="is a mapped, and no program computes its gradient"):
        derivative(tested, ("t",))
