"""Epilogue programs: what surrounds a kernel, written once, fused into it, forward and backward.

>>> from torch_reformer import program
>>> z = program.acc() + program.channel("bias") + program.full("residual")
>>> print(program.Program(program.store(program.relu(z))))
%0 = acc
%1 = channel bias
%2 = add %0 %1
%3 = full residual
%4 = add %2 %3
%5 = relu %4
store %5
<BLANKLINE>

docs/programs.md teaches the form.
"""

from .activations import ACTIVATIONS, activation, gelu, gelu_tanh, hardsigmoid, hardswish, leaky_relu, relu6, silu
from .program import Output, Program, max, moments, store, sum
from .values import (
    Value,
    acc,
    channel,
    channel_index,
    clip,
    columns,
    equal,
    erf,
    exp,
    full,
    index_of,
    log,
    log1p,
    maximum,
    minimum,
    normal_cdf,
    normal_pdf,
    plane,
    random,
    relu,
    round_bf16,
    round_fp16,
    row,
    row_max,
    row_sum,
    rows,
    rsqrt,
    scalar,
    select,
    sigmoid,
    sqrt,
    table,
    tanh,
)

__all__ = [
    "ACTIVATIONS",
    "Output",
    "Program",
    "Value",
    "acc",
    "activation",
    "channel",
    "channel_index",
    "clip",
    "columns",
    "equal",
    "erf",
    "exp",
    "full",
    "index_of",
    "gelu",
    "gelu_tanh",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log",
    "log1p",
    "max",
    "maximum",
    "minimum",
    "moments",
    "normal_cdf",
    "normal_pdf",
    "plane",
    "random",
    "relu",
    "relu6",
    "round_bf16",
    "round_fp16",
    "row",
    "row_max",
    "row_sum",
    "rows",
    "rsqrt",
    "scalar",
    "select",
    "sigmoid",
    "silu",
    "sqrt",
    "table",
    "store",
    "sum",
    "tanh",
]
