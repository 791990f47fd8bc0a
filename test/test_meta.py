"""The meta device: sizes, data types and layouts without data, through operators, modules and the compiler."""

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten

import torch_reformer
from torch_reformer import nn, program
from torch_reformer.program import Program

PROGRAM = Program(program.store(program.acc() * program.channel("c")), program.sum(program.acc()))
CALLS = {
    "conv2d": (torch_reformer.conv2d, (2, 4, 8, 8), (6, 4, 3, 3), (6,)),
    "conv2d_act": (torch_reformer.conv2d_act, (2, 4, 8, 8), (6, 4, 3, 3), (6,)),
    "batch_norm": (
        lambda x, w: torch_reformer.conv2d_batch_norm_act(x, w, None, None, None, training=True),
        *((2, 4, 8, 8), (6, 4, 3, 3)),
    ),
    "linear_act": (lambda x, w: torch_reformer.linear_act(x, w, dropout=0.1), (2, 3, 4), (5, 4)),
    "stitch": (lambda x, c: torch_reformer.stitch(x, PROGRAM, {"c": c})[0], (2, 4, 8, 8), (4,)),
}


def results(function, sizes, device):
    """The result and all gradients."""
    leaves = [torch.randn(size, device=device, requires_grad=True) for size in sizes]
    result = function(*leaves)
    return [result, *torch.autograd.grad(result.sum(), leaves)]


def described(tensors):
    return [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]


@pytest.mark.parametrize("function, sizes", [(value[0], value[1:]) for value in CALLS.values()], ids=CALLS)
def test_operators(function, sizes):
    found = results(function, sizes, "meta")
    assert all(result.is_meta for result in found)
    assert described(found) == described(results(function, sizes, "cpu"))


@pytest.mark.parametrize("module", [nn.Conv2d, nn.Conv2dAct, nn.Conv2dBatchNormAct])
def test_modules(module):
    made = module(4, 6, 3, device="meta")
    assert made(torch.randn(2, 4, 8, 8, device="meta")).shape == (2, 6, 6, 6)


@needs_aten
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3, device="meta")).relu(),
        lambda x: torch.softmax(x.sin() * 2, -1),
        lambda x: torch.ones(3, device="meta") * 2,
    ],
    ids=["convolution", "element-wise", "nothing given"],
)
def test_backend_leaves_it_to_pytorch(function):
    torch._dynamo.reset()
    x = torch.randn(2, 4, 8, 8, device="meta")
    with pytest.warns(UserWarning, match="a tensor is on the device meta, and plans run on cpu and cuda"):
        result = torch.compile(function, backend="reformer")(x)
    assert result.is_meta and described([result]) == described([function(x)])


@needs_aten
def test_backend_on_two_devices():
    torch._dynamo.reset()

    def function(x):
        return x * 2, torch.ones(3, device="meta") * 2

    with pytest.warns(UserWarning, match="a tensor is on the device meta"):
        doubled, other = torch.compile(function, backend="reformer")(x := torch.randn(3))
    assert torch.equal(doubled, x * 2) and other.is_meta
