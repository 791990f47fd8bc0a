"""The operations of an epilogue program, by name: how many operands each takes, and what it computes in PyTorch's own
terms. csrc/epilogue.h lists them in the same order, which is what their numbers in a program's code are.

A value is fp32 (fp64 where the result is). What a comparison gives is 1 or 0, and select takes its second operand where
the first is not 0.
"""

from __future__ import annotations

import torch

# Leaves. An input is a tensor of the call: whole (as large as the result), or one element a channel, a row (all
# channels of a pixel) or in all. rows and columns are how many the result has: N * H * W, and channels.
INPUTS = ("full", "channel", "row", "scalar", "random")
LEAVES = ("acc", *INPUTS, "constant", "rows", "columns")

COMPUTED = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
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
_UNARY, _BINARY = 12, 10
OPERANDS = {
    **dict.fromkeys(LEAVES, 0),
    **dict.fromkeys([*COMPUTED][:_UNARY], 1),
    **dict.fromkeys([*COMPUTED][_UNARY : _UNARY + _BINARY], 2),
    **dict.fromkeys([*COMPUTED][_UNARY + _BINARY :], 3),
}
COMPARISONS = ("lt", "le", "eq", "ne")
NUMBER = {name: number for number, name in enumerate(OPERANDS)}

# Outputs: a whole tensor, or what is left of each channel, of each row or of all. "moments" are two: the mean, and the
# sum of squared differences from it.
OUTPUTS = ("store", "sum", "max", "moments")
PER = ("element", "channel", "row", "all")
