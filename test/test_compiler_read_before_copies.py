"""Attention reads what a copy copied (joint_graph/read_before_copies.py). test_compiler_gpu_graphs.py has plans."""

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_reformer.compiler.ir.before_copy import in_operand
from torch_reformer.compiler.ir.fake_tensors import layout_of
from torch_reformer.compiler.joint_graph import read_before_copies as module


def _some_view(tensor, choose: random.Random):
    """A view of the tensor by one to three operators."""
    for _ in range(choose.randint(1, 3)):
        dim = choose.randrange(tensor.dim())
        size = tensor.shape[dim]
        kind = choose.choice(["permute", "select", "slice", "split", "merge"])
        if kind == "permute":
            tensor = tensor.permute(choose.sample(range(tensor.dim()), tensor.dim()))
        elif kind == "select" and tensor.dim() > 2:
            tensor = tensor.select(dim, choose.randrange(size))
        elif kind == "slice" and size > 2:
            tensor = tensor.narrow(dim, 1, size - 2)
        elif kind == "split" and size % 2 == 0:
            tensor = tensor.unflatten(dim, (2, size // 2))
        elif kind == "merge" and dim and tensor.stride(dim - 1) == size * tensor.stride(dim):
            tensor = tensor.flatten(dim - 1, dim)
    return tensor


def test_elements_before_a_copy():
    """If a layout is found, it has the elements of the view of the copy."""
    choose, found = random.Random(0), 0
    for _ in range(1000):
        base = torch.arange(720).view(choose.choice([(6, 10, 12), (4, 3, 2, 30), (8, 90)]))
        source = _some_view(base, choose)
        copy = source.contiguous() if not source.is_contiguous() else source.clone()
        view = _some_view(copy, choose)
        axes = [[run] for run in zip(view.shape, view.stride(), strict=True)]
        places = in_operand(layout_of(copy), layout_of(source, source.storage_offset()), view.storage_offset(), axes)
        if places is None or any(len(axis) > 1 for axis in places[1]):
            continue
        found += 1
        strides = [axis[0][1] if axis else 0 for axis in places[1]]
        assert torch.equal(base.as_strided(view.shape, strides, places[0]), view)
    assert found > 300


def copied(source):
    return source.clone(memory_format=torch.contiguous_format)[0]


CASES = {
    "permuted": (lambda x: copied((x * 2).permute(2, 0, 1, 3)), True),
    "of an input": (lambda x: copied(x.permute(2, 0, 1, 3)), False),
    "apart": (lambda x: copied((x * 2).permute(2, 0, 3, 1)), False),
    "unaligned": (lambda x: copied((x * 2)[..., 4:12].permute(2, 0, 1, 3)), False),
    "repeated": (lambda x: copied((x * 2)[:, :, :, None].expand(8, 32, 3, 4, 16).permute(2, 0, 1, 3, 4)), False),
    "one head": (lambda x: copied((x * 2)[:, :1].permute(2, 0, 1, 3)), True),
    "computed": (lambda x: ((x * 2).permute(2, 0, 1, 3) + 1)[0], False),
}


@pytest.mark.parametrize("name", CASES)
def test_operands(name):
    """Only aligned heads are read in place, and no inputs, which may be written to."""
    operand, is_read = CASES[name]
    with FakeTensorMode():
        graph = make_fx(operand)(torch.empty(8, 32, 3, 16, dtype=torch.bfloat16))
        (output,) = graph.graph.find_nodes(op="output")
        layout = module._layout_before_copy(output.args[0])
    assert (layout is not None) == is_read
