"""Programs whose tensors have padded rows, so that each row begins at a vector's alignment, whatever its width."""

import torch
from placements import placed, written_like
from test_stitch import CHANNEL, FORMATS, FULL, acc_for, tensors_for

from torch_reformer import program
from torch_reformer.program import Program

ACC, ROW = program.acc(), program.row("row")


def in_longer_rows(size):
    """Matrix whose rows begin at cache lines."""
    n, c, h, w = size
    return torch.empty(n, h, w, c + 64 - c % 64)[..., :c]


def call(tested, size, dtype, dense=()):
    """acc, the program's tensors by name, and memory for its results by number.

    Full-size tensors have padded rows, except acc and those named in `dense`.
    """
    longer, everything = in_longer_rows(size), tensors_for(size, dtype, "nhwc")
    tensors = {name: everything[name] for name in tested.inputs}
    for name, tensor in tensors.items():
        if tensor.dim() == 4:
            is_dense = name in dense
            tensors[name] = tensor.contiguous(memory_format=FORMATS["nhwc"]) if is_dense else placed(tensor, longer)
    outputs = enumerate(tested.outputs)
    into = {i: written_like(longer, output.dtype or dtype) for i, output in outputs if output.is_by_element}
    return acc_for(size, dtype, "nhwc"), tensors, into


def maps(acc):
    """An element-wise program with a value of each kind. Without acc, which is dense, all rows are aligned."""
    value = FULL * CHANNEL + program.full("half") - ROW + (ACC if acc else 0)
    return Program(
        program.store(program.select(program.full("mask"), value, program.channel_index())),
        program.store(value > 0, torch.bool),
        program.moments(value),
        program.max(value * ROW),
        program.sum(value, "all"),
        program.moments(value, "all"),
        program.store(CHANNEL * 2, torch.float32, "channel"),
    )


def labels(label=FULL):
    """Binary cross entropy with its gradient and the bias gradient."""
    score = program.full("half") + CHANNEL
    loss = program.relu(score) - score * label + program.log1p(program.exp(-abs(score)))
    grad = (program.sigmoid(score) - label) * program.scalar("scalar")
    return Program(program.store(grad, torch.bfloat16), program.sum(grad), program.sum(loss, "all"))


def softmax():
    above = program.exp(FULL - program.row_max(FULL))
    return Program(program.store(above / program.row_sum(above)))


def layer_norm():
    middle = program.row_sum(FULL) / program.columns()
    squares = program.row_sum((FULL - middle) * (FULL - middle)) / program.columns()
    return Program(
        program.store((FULL - middle) * program.rsqrt(squares + 1e-5) * CHANNEL), program.store(middle, None, "row")
    )


def sums_beside():
    """The gradient of a norm, with sums over channels and over everything."""
    normal = (FULL - ROW) * program.scalar("scalar")
    grad = program.full("half") * CHANNEL
    result = grad - normal * (program.row_sum(grad * normal) / program.columns())
    return Program(program.store(result), program.sum(FULL * normal), program.sum(result * result, "all"))


def classes():
    """A classification loss and its gradient; the last column is a class, too."""
    last = program.columns() - 1
    named = program.equal(program.channel_index(), program.select(ROW < 0, last, 5))
    above = FULL - program.row_max(FULL)
    total = program.row_sum(program.exp(above))
    chosen = program.row_sum(program.select(named, above, 0))
    return Program(
        program.store(program.exp(above) / total - named),
        program.store(program.log(total) - chosen, torch.float32, "row"),
    )


OF_ROWS = {each.__name__: each() for each in (softmax, layer_norm, sums_beside, classes)}
