"""Elements of a tensor in the memory of another one with equal sizes (ir/other_memory.py)."""

import math

import pytest
import torch

from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.ir.other_memory import layout_in

VIEWS = {
    "all": lambda x: x,
    "other dimensions first": lambda x: x.movedim(-1, 0),
    "two dimensions as one": lambda x: x.flatten(0, 1),
    "a part": lambda x: x[-2:, :, -2:],
    "repeated": lambda x: x[..., None].expand(*x.shape, 3),
}


def layout_of(tensor):
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())


# A dimension of one element has the stride of another dimension in one memory, and one of its own in the other.
@pytest.mark.parametrize("sizes", [(4, 3, 5), (4, 1, 5), (1, 4, 5), (4, 5, 1)], ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_layouts(name, sizes):
    copy = torch.arange(math.prod(sizes)).reshape(sizes)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        storage = torch.empty([sizes[d] for d in order], dtype=copy.dtype)
        other = storage.permute([order.index(d) for d in range(3)])
        other.copy_(copy)
        view = VIEWS[name](copy)
        found = layout_in(layout_of(view), layout_of(copy), layout_of(other))
        if found is None:
            assert name == "two dimensions as one" and order != (0, 1, 2)
        else:
            assert torch.equal(storage.flatten().as_strided(found.sizes, found.strides, found.offset), view)
