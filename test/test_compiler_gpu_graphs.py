"""Graphs of GPUs' tensors have plans. None runs here: what their kernels compute is the emulator's tests' and the GPU's
to show."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from marks import needs_aten, needs_cpu_build

from torch_reformer.compiler.analysis import fake_gpu

HERE = Path(__file__).parent
NAMES = ["resnet", "resnext", "densenet", "efficientnet", "convnext", "nfnet", "diffusion", "mixer", "gpt", "texts"]
pytestmark = [needs_aten, needs_cpu_build, pytest.mark.slow]


@functools.cache
def kinds() -> dict:
    command = [sys.executable, HERE / "gpu_graphs.py", *NAMES]
    return json.loads(subprocess.run(command, env=fake_gpu.environment(), check=True, capture_output=True).stdout)


OWN = ["flash attention", "vocabulary", "large vocabulary", "messages", "talking heads", "perceptron"]
OWN += ["read turned", "looked up twice", "cells"]


@pytest.mark.parametrize("name", [*NAMES, *OWN])
def test_each_training_step_has_plans(name):
    """No operator of them is without a step."""
    forward, backward = kinds()[name]
    assert forward and backward


@pytest.mark.parametrize("name", ["resnet", "efficientnet", "nfnet"])
def test_images_in_channels_last(name):
    """An operation next to them is no call of PyTorch's for its data type or its order of memory."""
    for each in kinds()[name]:
        assert not {f"aten::{op}" for op in ("add.Tensor", "mul.Tensor", "sub.Tensor", "where.self")} & {*each}
        assert each.get("aten::_to_copy", 0) <= 1  # of the classes' numbers


def test_comparisons_of_labels():
    """They are part of the kernels that read them."""
    for each in kinds()["equal labels"]:
        assert all(kind.startswith(("stitch", "aten::mm", "reformer::")) for kind in each)


def test_biases_of_products():
    """Programs add that which they read again in the backward, where the product is saved. Others come with
    the product."""
    forward, _ = kinds()["perceptron"]
    assert forward["aten::mm"] == 1 and forward["aten::addmm"] == 1  # nothing but a sum is made of the second
    assert kinds()["flash attention"][0]["aten::addmm"] == 1


def test_gradients_side_by_side():
    """One kernel copies the gradients of queries, keys and values, which a call gives, side by side for a product."""
    _, backward = kinds()["attention without biases"]
    assert backward["stitch"] == 1 + 2 and "aten::cat" not in backward  # the others are of the loss and a bias


def test_saved_statistics_of_rows():
    """What is computed of them is computed again by the kernel that reads them; another adds up a parameter's sums."""
    _, backward = kinds()["normalized rows"]
    assert backward["stitch"] <= 1 + 1


def test_talking_heads():
    """Programs mix heads where they lie, forward one with the softmax. Backward, the program that mixes gradients also
    sums for the weight and the bias; one of the two has the softmax's gradient."""
    forward, backward = kinds()["talking heads"]
    assert forward["aten::bmm"] == 2 and backward["aten::bmm"] == 4
    assert (
        forward["stitch"] <= 9 and backward["stitch"] <= 10
    )  # with copies of queries, keys and values, and the loss's
    assert not {"reformer::_contiguous", "aten::cat"} & {*forward, *backward}
    assert not any("160000" in kind for kind in (*forward, *backward))


@pytest.mark.parametrize("name", ["rotated", "rotated in fp32"])
def test_rotary_embeddings(name):
    """Gradients of queries, keys and values are one kernel, which writes them where products read them. Forward, two
    kernels write queries and keys; the others are the loss's."""
    forward, backward = kinds()[name]
    assert forward["stitch"] == 2 + 2 and backward["stitch"] == 2
    for each in (forward, backward):
        assert not {"aten::cat", "reformer::_contiguous", "aten::clone"} & {*each}


def test_sines_of_rotary_embeddings():
    """A kernel of their own computes them for each position, forward and backward, not one for each head and image."""
    for of_tables, of_angles in zip(kinds()["rotated in fp32"], kinds()["rotated by angles"], strict=True):
        assert of_angles == of_tables | {"stitch": of_tables["stitch"] + 1}


def test_gated_perceptron():
    """One kernel computes both halves of the gradient, each once."""
    forward, backward = kinds()["gated perceptron"]
    assert forward["stitch"] == 3 + 3 and backward["stitch"] == 1  # with casts of weights, and the loss
    assert "aten::cat" not in backward


def test_copied_heads():
    """Attention reads the projection in place. Backward, one kernel puts the gradients side by side and sums them for
    the bias, whose parts another one copies."""
    forward, backward = kinds()["copied heads"]
    assert forward["stitch"] == 1 + 2 and backward["stitch"] == 2  # forward: the copy of the input, and the loss
    for each in (forward, backward):
        assert not {"reformer::_contiguous", "aten::cat", "aten::clone", "aten::eq.Scalar"} & {*each}


def test_losses_in_chunks():
    """With four chunks, the forward has the products with padded rows, whose sums are added up in fp32. The backward
    has no product of scores."""
    forward, backward = kinds()["large vocabulary"]
    assert forward["aten::mm.dtype: 20032x2048x64"] == 1 and forward["reformer::_add_product"] == 3
    assert forward["aten::mm: 2048x20032x64"] == 4
    assert not any("200" in kind for kind in backward)


def test_messages():
    """They are read where they are looked up, be that scaled in place before; edges are sorted once a direction, and
    no kernel wraps their numbers."""
    forward, backward = kinds()["messages"]
    assert forward["reformer::_segment_sum"] == backward["reformer::_segment_sum"] == 2
    assert forward.get("reformer::_sort_rows", 0) + backward.get("reformer::_sort_rows", 0) == 2
    for each in (forward, backward):
        assert each["aten::index_select"] == 2  # numbers of rows, and weights
        assert not {"aten::where.self", "aten::add.Scalar", "aten::_assert_async.msg"} & {*each}


def test_residual_blocks():
    """A batch norm's moments come with the convolution, so forward one kernel is left of it; backward two, the first of
    them for sums. Others are the loss's."""
    forward, backward = kinds()["resnet"]
    assert forward["conv"] == backward["conv_grads"] == 8
    assert forward["stitch"] <= 8 + 6 and backward["stitch"] <= 2 * 8 + 6


def test_sums_of_parts_of_channels():
    """They are no calls, and nothing is transposed for them."""
    for each in kinds()["split attention"]:
        assert not {"aten::sum.dim_IntList", "aten::mean.dim", "aten::amax", "reformer::_contiguous"} & {*each}


def test_turned_images():
    """The norm's kernels write and read what a matrix product has in another order."""
    for each in kinds()["before a product"]:
        assert "reformer::_contiguous" not in each and each["stitch"]


def test_max_pooling():
    """Its indices are bytes, and the images around it stay in channels_last."""
    forward, backward = kinds()["resnext"]
    assert forward["reformer::_max_pool2d"] == backward["reformer::_max_pool2d_grad"] == 1
    assert not [kind for each in (forward, backward) for kind in each if kind.startswith("aten::max_pool2d")]
    assert not {"reformer::_contiguous", "aten::clone"} & {*forward, *backward}


def test_group_norm_keeps_the_order_of_images():
    """PyTorch copies them to their dimensions' own order first; here convolutions' results and gradients are read as
    they are. The backward's one copy is of what fills a part of the images."""
    forward, backward = kinds()["diffusion"]
    assert "reformer::_contiguous" not in forward and backward.get("reformer::_contiguous", 0) <= 1
    assert "aten::mean.dim" not in forward


def test_rows_of_tables_are_read_where_they_are():
    """Forward and backward."""
    forward, backward = kinds()["norm of rows"]
    assert "aten::embedding" not in forward and {*forward} <= {"stitch", "aten::div.Scalar"}
    assert "aten::embedding" not in backward and backward["reformer::_embedding_grad"] == 1


def test_rows_of_many_tables_are_read_where_they_are():
    """The kept tokens are never stored, and their gradients are added to no zeros."""
    forward, backward = kinds()["kept tokens"]
    assert forward["reformer::_row_numbers"] == 1 and "reformer::_row_numbers" not in backward
    assert backward["reformer::_embedding_grad"] == 1
    assert not {"aten::gather", "aten::index_select", "aten::scatter_add"} & {*forward, *backward}


def test_tables_of_positions():
    """Their gradients are added to no zeros and read in the order that a program sums them in; nothing is sorted."""
    forward, backward = kinds()["positions"]
    assert backward["reformer::_embedding_grad"] == 2
    assert forward["reformer::_row_numbers"] == 2 and "reformer::_row_numbers" not in backward
    assert not {"aten::index_put", "reformer::_sort_rows", "aten::index.Tensor"} & {*forward, *backward}


def test_biases_of_heads():
    """They are gathered by columns, or by a program that also writes them by heads: the only copies are the product's,
    of queries, and the one of the gradient."""
    forward, backward = kinds()["bias of Swin"]
    assert forward["aten::index_select"] == 1 and forward["reformer::_contiguous"] == 1
    of_t5, _ = kinds()["bias of T5"]
    assert "aten::index_select" not in of_t5 and of_t5["reformer::_contiguous"] == 1


def test_products_of_a_vocabulary():
    """They have some columns more, or zeros to add up, which no kernel of their own writes: who makes what is
    multiplied does. Gradients of weights are stored in the parameters' type, and so is that of the looked-up rows."""
    forward, backward = kinds()["vocabulary"]
    assert forward["aten::mm: 1024x64x1088"] == 1  # programs add the bias
    assert backward["aten::mm: 1024x1088x64"] == backward["aten::mm.dtype: 1088x1024x64"] == 1
    assert backward["aten::mm.dtype: 1024x64x64"] == 1 and backward["aten::mm.dtype"] == 4
    assert not {"aten::constant_pad_nd", "aten::cat", "reformer::_contiguous"} & {*forward, *backward}


def test_cells_are_programs():
    for each in kinds()["cells"]:
        assert not any("_thnn" in kind for kind in each)


def test_steps_of_a_loop():
    """One more takes a product of the state and a kernel for the rest, forward and backward. All have one product of
    what they are given, one for each gradient, and one gradient of the table."""
    for seven, eight in zip(kinds()["unrolled 7"], kinds()["unrolled 8"], strict=True):
        lines = [sum(count for kind, count in each.items() if ": " not in kind) for each in (seven, eight)]
        assert lines[1] - lines[0] == 2
    forward, backward = kinds()["unrolled 7"]
    assert forward["aten::addmm: 1792x64x192"] == backward["aten::mm: 1792x192x64"] == 1
    assert backward["aten::mm.dtype: 192x1792x64"] == 2 and backward["reformer::_embedding_grad"] == 1
