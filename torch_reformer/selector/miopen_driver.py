"""Parser of ``MIOpenDriver conv ...`` command lines, the form in which AMD's users and MIOpen's logs write
convolutions."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import NoReturn

from ..problem import ConvProblem

_DTYPES = {"conv": "FP32", "convfp16": "FP16", "convbfp16": "BF16", "convint8": "INT8"}
_DIRECTION_BITS = {"F": 1, "B": 2, "W": 4}

# ConvProblem's member: MIOpen's flags and default
_SIZES = {
    "n": ("-n", "--batchsize", 100),
    "c": ("-c", "--in_channels", 3),
    "h": ("-H", "--in_h", 32),
    "w": ("-W", "--in_w", 32),
    "k": ("-k", "--out_channels", 32),
    "r": ("-y", "--fil_h", 3),
    "s": ("-x", "--fil_w", 3),
    "pad_h": ("-p", "--pad_h", 0),
    "pad_w": ("-q", "--pad_w", 0),
    "stride_h": ("-u", "--conv_stride_h", 1),
    "stride_w": ("-v", "--conv_stride_w", 1),
    "dilation_h": ("-l", "--dilation_h", 1),
    "dilation_w": ("-j", "--dilation_w", 1),
    "groups": ("-g", "--group_count", 1),
}

# Further options that determine the problem: only these values describe a plain two-dimensional convolution.
_ONLY = {
    "mode": ("-m", "--mode", "conv"),
    "padding mode": ("-z", "--pad_mode", "default"),
    "number of dimensions": ("-_", "--spatial_dim", "2"),
    "vectorization": ("-Z", "--tensor_vect", "0"),
}

# Options that say how MIOpen should run or check the problem, and members of three-dimensional problems.
_IGNORED = """-r --pad_val -i --iter -V --verify -C --verification_cache -t --time -w --wall -s --search -P --printconv
-o --dump_output -d --in_data -e --weights -a --in_bias -D --dout_data -S --solution -G --gpualloc -L --vector_length
-X --trans_output_pad_w -Y --trans_output_pad_h""".split()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for member, (short, long, default) in _SIZES.items():
        parser.add_argument(short, long, dest=member, type=int, default=default)
    for what, (short, long, default) in _ONLY.items():
        parser.add_argument(short, long, dest=what, default=default)
    for short, long in zip(_IGNORED[::2], _IGNORED[1::2], strict=True):
        parser.add_argument(short, long, dest="ignored")
    parser.add_argument("-F", "--forw", type=int, choices=range(8), default=0)
    parser.add_argument("-b", "--bias", type=int, choices=(0, 1), default=0)
    parser.add_argument("-I", "--in_layout")
    parser.add_argument("-f", "--fil_layout")
    parser.add_argument("-O", "--out_layout")
    return parser


def is_driver_line(line: str) -> bool:
    return "MIOpenDriver" in line


def parse_driver_line(line: str) -> list[ConvProblem]:
    """Problems of one command line, one for each direction that ``-F`` asks for (0, the default: all three).

    Text before ``MIOpenDriver`` (a path, a log's prefix) is skipped. Options that say how to run or check the problem
    are ignored.

    Raises:
        ValueError: for anything but a plain two-dimensional convolution.
    """
    base, *arguments = shlex.split(re.sub(r"^.*?MIOpenDriver", "", line, count=1)) or [""]
    if base not in _DTYPES:
        raise ValueError(f"MIOpenDriver is called for {base!r}, not for one of {', '.join(_DTYPES)}")
    values = vars(_parser().parse_args(arguments))
    for what, (_, long, only) in _ONLY.items():
        if values[what] != only:
            raise ValueError(f"the {what} ({long}) is {values[what]}; only {only} is supported")
    layouts = {values[name] for name in ("in_layout", "fil_layout", "out_layout")} - {None} or {"NCHW"}
    if len(layouts) > 1:
        raise ValueError(f"input, filter and output must have one layout, got {' and '.join(sorted(layouts))}")
    problem = ConvProblem(**{member: values[member] for member in _SIZES}, dtype=_DTYPES[base], layout=layouts.pop())
    mask = values["forw"] or 7
    return [
        problem.replace(direction=direction, bias=bool(values["bias"]) and direction == "F")
        for direction, bit in _DIRECTION_BITS.items()
        if mask & bit
    ]
