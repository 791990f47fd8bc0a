"""Index maps, iteration spaces and placements of operands (ir/iteration_space.py)."""

import pytest
import torch

from torch_reformer.compiler.ir.digits import with_strides
from torch_reformer.compiler.ir.index_maps import index_map_of, inverse, without
from torch_reformer.compiler.ir.iteration_space import IterationSpace, find_space, fits
from torch_reformer.compiler.ir.layout import Layout

NHWC = Layout((2, 3, 4, 5), (60, 1, 15, 3))


@pytest.mark.parametrize(
    ("strides", "index_map"),
    [
        ((60, 1, 15, 3), ((1, 120),)),
        ((0, 1, 0, 0), ((1, 3),)),
        ((20, 0, 5, 1), ((3, 40),)),
        ((3, 1, 0, 0), ((1, 3), (60, 2))),
        ((0, 0, 0, 0), ()),
        ((60, 20, 5, 1), ((1, 3, 20), (3, 20, 1), (60, 2, 60))),
        ((0, 2, 0, 0), ((1, 3, 2), (3, 40, 0))),
        ((160, 1, 40, 8), ((1, 3, 1), (3, 40, 8))),
        ((3, 1, 6, 30), ((1, 3, 1), (3, 5, 30), (15, 4, 6), (60, 2, 3))),
    ],
)
def test_digits(strides, index_map):
    """Element i of the result reads the operand's element (i // inner) % count, or the one at that times a stride."""
    assert index_map_of(NHWC, Layout(NHWC.sizes, strides)) == index_map
    values = torch.arange(1000)
    operand = torch.as_strided(values, NHWC.sizes, strides)
    in_memory = operand.permute(0, 2, 3, 1).flatten()
    for each in (index_map, with_strides(index_map, 120)):
        expected, scale = torch.zeros(120, dtype=torch.int64), 1
        for inner, count, *stride in each:
            expected += (values[:120] // inner) % count * (stride[0] if stride else scale)
            scale *= count
        assert torch.equal(in_memory, expected)


def test_inverse_digits():
    assert inverse(((1, 3, 1), (3, 5, 24), (15, 4, 6), (60, 2, 3))) == ((1, 3, 1), (3, 2, 60), (6, 4, 15), (24, 5, 3))
    for not_each_once in (((1, 3, 1), (3, 40, 8)), ((1, 3, 1), (3, 40, 0)), ((1, 3, 2), (3, 40, 6))):
        assert inverse(not_each_once) is None


def test_spaces():
    channel, row, plane = ((1, 3),), ((3, 40),), ((1, 3), (60, 2))
    assert find_space(120, {channel, row}, {channel}) == IterationSpace(1, 3, 40, 1, True)
    assert find_space(120, {row}, {row}) == IterationSpace(1, 3, 40, 1, True)
    assert find_space(2**20, {((2**16, 16),)}, {((2**16, 16),)}) == IterationSpace(
        1, 16, 2**16, 1, False
    )  # few and long
    assert find_space(120, {((20, 3),)}, {((20, 3),)}) == IterationSpace(2, 3, 20, 1, False)
    assert find_space(120, {channel, ((1, 5),)}, set()) is None
    assert without(NHWC, (0, 2, 3)) == channel and without(NHWC, (1,)) == row and without(NHWC, (2, 3)) == plane
    space = IterationSpace(2, 3, 4, 5, True)
    # Columns beside rows: of an image, and of a position in all images.
    images, positions = IterationSpace(1, 3, 2, 20, True, True), IterationSpace(2, 3, 20, 1, True, True)
    assert find_space(120, {channel}, {row, plane}) == images and images.height_map == plane
    assert find_space(120, {channel}, {row, ((1, 60),), channel}) == positions and positions.height_map == ((1, 60),)
    assert find_space(120, set(), {row, plane, ((1, 60),)}) is None and not fits(images, set(), {plane})
    assert fits(space, {channel, row}, {channel, row}) and not fits(space, set(), {row}, whole_rows=False)
    assert [space.kind(each) for each in (((1, 120),), channel, row, (), ((1, 5),))] == [
        *("full", "channel", "row", "scalar", None),
    ]


def test_placements():
    """Rows of 8 channels, of 2 images of 6 x 5 spatial positions."""
    space = IterationSpace(1, 8, 60, 1, True)
    part, transposed = ((1, 8, 1), (8, 60, 20)), ((1, 8, 1), (8, 30, 16), (240, 2, 8))
    planes = (1, 8), (240, 2)
    assert space.placement(part) == Layout((1, 1, 1, 60, 8), (0, 0, 0, 20, 1))
    assert space.placement(transposed) == Layout((1, 1, 2, 30, 8), (0, 0, 8, 16, 1))
    assert space.placement(planes) == Layout((1, 1, 2, 30, 8), (0, 0, 8, 0, 1))
    assert space.placement(((240, 2),)) == Layout((1, 1, 1, 2, 30), (0, 0, 0, 1, 0))  # a number for each image
    assert [space.kind(each) for each in (part, transposed, planes, ((240, 2),))] == ["full", "full", "full", "row"]
    assert not any(space.is_strided(each) for each in (((1, 8),), ((8, 60),), ((1, 480),), ()))
    wide = IterationSpace(1, 16, 30, 1, True)
    of_heads = ((1, 8, 1), (8, 2, 240), (16, 30, 8))
    assert wide.placement(of_heads) == Layout((1, 1, 30, 2, 8), (0, 0, 8, 240, 1))
    for unread in (((1, 8, 2), (8, 60, 16)), ((1, 4, 1), (4, 120, 8)), ((1, 3, 1), (3, 160, 4))):
        assert space.kind(unread) is None
    assert find_space(480, {transposed, ((1, 480),)}, {((1, 8),)}) == space
    assert find_space(480, {of_heads}, set()) == wide
    assert not fits(space, {part}, (), whole_rows=False)  # behind a convolution
