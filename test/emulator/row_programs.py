"""Programs with row reductions whose results the rest of the program uses, on the tensors of test_stitch.py."""

import torch

from torch_reformer import program
from torch_reformer.program import Program

ACC, FULL, CHANNEL, ROW = program.acc(), program.full("full"), program.channel("channel"), program.row("row")


def mean(value):
    return program.row_sum(value) / program.columns()


def softmax():
    above = program.exp(ACC - program.row_max(ACC))
    return Program(program.store(above / program.row_sum(above)))


def layer_norm():
    """Layer norm of a sum, with a weight and a bias per channel; the sum, the mean and the factor are stored."""
    value = ACC + FULL
    middle = mean(value)
    factor = program.rsqrt(mean((value - middle) * (value - middle)) + 1e-5)
    return Program(
        program.store((value - middle) * factor * CHANNEL + CHANNEL),
        program.store(value),
        program.store(middle, torch.float32, "row"),
        program.store(factor, None, "row"),
    )


def layer_norm_backward():
    """Derivative of layer norm, with sums per row, per column and of everything; acc is the gradient."""
    normal = (FULL - ROW) * program.scalar("scalar")
    grad = ACC * CHANNEL
    result = grad - mean(grad) - normal * mean(grad * normal)
    return Program(
        program.store(result * 0.5), program.sum(ACC * normal), program.sum(ACC), program.sum(result * result, "all")
    )


def everything():
    """Three stages, the first with two row reductions; a mask, random numbers, moments and a channel vector."""
    first, largest = program.row_sum(ACC * 0.25), program.row_max(FULL - ACC)
    second = program.row_sum(program.select(ACC < first, largest, FULL))
    third = program.row_max(ACC * CHANNEL - second)
    return Program(
        program.store(third + program.select(program.random("key") < 0.5, ACC, second)),
        program.store(ACC > first, torch.bool),
        program.store(third * ROW, torch.float16, "row"),
        program.store(program.channel("channel") * 2, torch.float32, "channel"),
        program.moments(ACC - first),
        program.max(ACC * second, "all"),
    )


def classes():
    """A classification loss and its gradient; the row's number selects one of its channels, or none."""
    named = program.equal(program.channel_index(), program.select(ROW < 0, 5, program.select(ROW < 0.5, 30, -1)))
    above = ACC - program.row_max(ACC)
    total = program.row_sum(program.exp(above))
    chosen = program.row_sum(program.select(named, above, 0)) + program.row_sum(program.select(ROW < 1, ACC, 0))
    return Program(
        program.store(program.exp(above) / total - named),
        program.store(program.log(total) - chosen, torch.float32, "row"),
    )


def running():
    """Running sums in three stages, beside reductions and of each other, in both directions; a mean over the elements
    so far, and column sums of one."""
    first, back = program.row_cumsum(ACC), program.row_cumsum(FULL * ROW, reversed=True)
    largest = program.row_max(first - back)
    second = program.row_cumsum(program.select(first < largest, back, CHANNEL), reversed=True)
    return Program(
        program.store(first / (program.channel_index() + 1)),
        program.store(second - program.row_sum(first) / program.columns(), torch.float32),
        program.store(largest / program.columns(), torch.float32, "row"),
        program.sum(first / program.columns()),
    )


def products():
    """Running products in both directions, and products over rows, columns and everything."""
    small = 1 + 0.01 * ACC
    return Program(
        program.store(program.row_cumprod(small) + program.row_cumprod(2 - small, reversed=True), torch.float32),
        program.store(program.row_prod(small), torch.float32, "row"),
        program.prod(small),
        program.prod(1 + 1e-3 * ACC / program.columns(), "all"),
    )


def positions():
    """Places of the elements that a mask keeps, as whole numbers."""
    mask = program.select(FULL < 0.25, 1, 0)
    return Program(program.store(program.row_cumsum(mask) * mask + 1, torch.int64))


OF_REGISTERS = {each.__name__: each() for each in (running, products, positions)}
PROGRAMS = {each.__name__: each() for each in (softmax, layer_norm, layer_norm_backward, everything, classes)}
PROGRAMS |= OF_REGISTERS
