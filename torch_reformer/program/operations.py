"""Tables of program operations by name: number of operands and PyTorch implementation. Names, operands and numbers are
those of csrc/program/ops.def.

A value is fp32 (fp64 if the result is). Comparisons give 1 or 0; select returns its second operand where the first is
not 0.
"""

from __future__ import annotations

import math

import torch

from ..runtime import native

OPERANDS = native.operations()
NUMBER = {name: number for number, name in enumerate(OPERANDS)}

# Inputs. An input is a tensor of the call: full (as large as the result), or with one element per channel, per row (all
# channels of a spatial position), per plane (all positions of a batch element's channel) or in total. The values "rows"
# and "columns" are the result's numbers of rows (N * H * W) and of channels.
# A table is a matrix. Its index, a further input, holds for each row of the result the number of a row of the table.
# A mapped tensor is followed by tables (mapped.py).
INPUTS = ("full", "channel", "row", "plane", "scalar", "random", "table", "mapped")

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
    "expm1": torch.expm1,
    "log2": torch.log2,
    "log10": torch.log10,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "round": torch.round,
    "relu": torch.relu,
    "round_bf16": lambda a: a.to(torch.bfloat16).to(a.dtype),
    "round_fp16": lambda a: a.to(torch.float16).to(a.dtype),
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "fmod": torch.fmod,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "lt": lambda a, b: torch.lt(a, b).to(a.dtype),
    "le": lambda a, b: torch.le(a, b).to(a.dtype),
    "eq": lambda a, b: torch.eq(a, b).to(a.dtype),
    "ne": lambda a, b: torch.ne(a, b).to(a.dtype),
    "select": lambda c, a, b: torch.where(c != 0, a, b),
    "clip": lambda a, least, most: torch.where(a <= least, least, torch.where(a >= most, most, a)),
}
COMPARISONS = ("lt", "le", "eq", "ne")

# Reductions of a value over its row (dimension 1 of [N, K, H, W]); all elements of the row can use the result.
ROW_REDUCTIONS = {
    "row_sum": lambda a: a.sum(1, keepdim=True),
    "row_max": lambda a: a.amax(1, keepdim=True),
    "row_prod": lambda a: a.prod(1, keepdim=True),
}

# Running sums and products of a value along its row, up to and including each element; the reversed ones begin at the
# row's end.
ROW_SCANS = {
    "row_cumsum": lambda a: a.cumsum(1),
    "row_cumsum_reversed": lambda a: a.flip(1).cumsum(1).flip(1),
    "row_cumprod": lambda a: a.cumprod(1),
    "row_cumprod_reversed": lambda a: a.flip(1).cumprod(1).flip(1),
}
OF_ROWS = ROW_REDUCTIONS | ROW_SCANS  # operations on whole rows

# Operations and outputs whose gradient no program computes: a recomputed value may round differently and match the
# maximum nowhere, and a factor of a product may be 0.
WITHOUT_DERIVATIVE = ("row_max", "row_prod", "row_cumprod", "row_cumprod_reversed", "max", "prod")

# Outputs: a tensor as large as the result, or a reduction per channel, row, plane, over everything, or per height (all
# batch elements and horizontal positions) and channel. "moments"
# has two parts: the mean, and the sum of squared differences from the mean.
OUTPUTS = ("store", "sum", "max", "moments", "prod")
PER = ("element", "channel", "row", "plane", "all", "height")
