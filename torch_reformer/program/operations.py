"""The operations of a program, by name: how many operands each takes, and what it computes in PyTorch's own terms.
Names, operands and numbers are those of csrc/program/ops.def.

A value is fp32 (fp64 where the result is). What a comparison gives is 1 or 0, and select takes its second operand where
the first is not 0.
"""

from __future__ import annotations

import math

import torch

from ..runtime import native

OPERANDS = native.operations()
NUMBER = {name: number for number, name in enumerate(OPERANDS)}

# Leaves. An input is a tensor of the call: whole (as large as the result), or one element a channel, a row (all
# channels of a pixel), a plane (all pixels of an image's channel) or in all. rows and columns are how many the result
# has: N * H * W, and channels.
# A table is a matrix, and its index, an input besides, has the number of one of its rows for each row of the result.
INPUTS = ("full", "channel", "row", "plane", "scalar", "random", "table")

COMPUTED = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "normal_cdf": lambda a: 0.5 * (1 + torch.erf(a * math.sqrt(0.5))),
    "normal_pdf": lambda a: torch.exp(-0.5 * a * a) / math.sqrt(2 * math.pi),
    "relu": torch.relu,
    "round_bf16": lambda a: a.to(torch.bfloat16).to(a.dtype),
    "round_fp16": lambda a: a.to(torch.float16).to(a.dtype),
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lt": lambda a, b: torch.lt(a, b).to(a.dtype),
    "le": lambda a, b: torch.le(a, b).to(a.dtype),
    "eq": lambda a, b: torch.eq(a, b).to(a.dtype),
    "ne": lambda a, b: torch.ne(a, b).to(a.dtype),
    "select": lambda c, a, b: torch.where(c != 0, a, b),
    "clip": lambda a, least, most: torch.where(a <= least, least, torch.where(a >= most, most, a)),
}
COMPARISONS = ("lt", "le", "eq", "ne")

# Reductions of a value over its row, which all of the row knows: over dimension 1 of [N, K, H, W].
ROW_REDUCTIONS = {
    "row_sum": lambda a: a.sum(1, keepdim=True),
    "row_max": lambda a: a.amax(1, keepdim=True),
}

# Outputs: a whole tensor, or what is left of each channel, of each row, of each plane or of all. "moments" are two:
# the mean, and the sum of squared differences from it.
OUTPUTS = ("store", "sum", "max", "moments")
PER = ("element", "channel", "row", "plane", "all")
