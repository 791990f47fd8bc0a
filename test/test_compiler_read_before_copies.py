"""Attention reads what a copy copied (joint_graph/read_before_copies.py). test_compiler_gpu_graphs.py has plans."""

import random

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_reformer.compiler.ir.before_copy import in_operand
from torch_reformer.compiler.ir.fake_tensors import layout_of
from torch_reformer.compiler.joint_graph import read_before_copies as module

BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


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


def attended(parts):
    """Attention of queries, keys and values with the dimensions part, batch, row, head and column."""
    copy = parts.clone(memory_format=torch.contiguous_format)
    return ATTENTION(*(copy[i % len(copy)].transpose(1, 2) for i in range(3)))[0]


def parts_of(projection, columns=16):
    return projection.view(4, 24, 3, -1, columns).permute(2, 0, 1, 3, 4)


def returned(x):
    y = x * 2
    return y, attended(parts_of(y))


def read_twice(x):
    copy = parts_of(x * 2).clone(memory_format=torch.contiguous_format)
    return ATTENTION(*(copy[i].transpose(1, 2) for i in range(3)))[0], copy + 1


def gradients(x):
    """The copy is the gradient of attention's result."""
    q, k, v = parts_of(x * 3).transpose(2, 3)
    result, logs = ATTENTION(q, k, v)
    copy = parts_of(x * 2).clone(memory_format=torch.contiguous_format)
    return BACKWARD(copy[0].transpose(1, 2), q, k, v, result, logs, 0.0, False)[0]


def rotated(x):
    return torch.view_as_real(torch.view_as_complex(x.view(4, 24, 48, 2)) * 1j).flatten(-2)


CASES = {
    "all": (lambda x: attended(parts_of(x * 2)), True),
    "one head": (lambda x: attended(parts_of(x * 2, 32)), True),
    "half": (lambda x: attended(parts_of((x * 2).repeat(1, 1, 2), 32)[..., 1:, :]), True),
    "a fourth": (lambda x: attended(parts_of((x * 2).repeat(1, 1, 4), 32)[..., 1:2, :]), False),  # all would be kept
    "of an input": (lambda x: attended(parts_of(x)), False),  # which may be written to, as a result may be
    "returned": (returned, False),
    "read twice": (read_twice, False),
    "gradients": (gradients, False),
    "rotated": (lambda x: attended(parts_of(rotated(x))), False),  # a result of complex numbers
    "columns apart": (lambda x: attended(parts_of(x * 2, 8).transpose(-1, -2)), False),
    "unaligned": (lambda x: attended(parts_of(x * 2)[..., 2:14]), False),
    "repeated": (lambda x: attended(parts_of(x * 2, 32).expand(3, 4, 24, 2, 32)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_operands(name, monkeypatch):
    """Attention reads all of its operands in place, with the same result, or none. On CPUs, in the place of GPUs'
    kernels."""
    monkeypatch.setattr(module, "KERNELS", {ATTENTION: ("flash", False), BACKWARD: ("flash", True)})
    function, is_read = CASES[name]
    x = torch.randn(4, 24, 96)
    graph = make_fx(function, tracing_mode="fake")(x)
    expected = graph(x)
    module.read_before_copies(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert bool(copies) != is_read
    assert bool(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default)) == is_read
    torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)
