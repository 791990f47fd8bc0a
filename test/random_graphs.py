"""Random small graphs as Python texts, line by line, for comparisons with eager: test_random_graphs.py.

A graph is drawn by a function `choose`, which picks one of a sequence, from hypothesis or a random generator. Each line
is run as it is drawn, so that the next knows the sizes and types there are; a line at which PyTorch raises is left out.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from random_operators import OPERATORS, conjugate, negated, overlaps
from torch import Tensor

Choose = Callable[[Sequence[Any]], Any]
MOST_ELEMENTS, MOST_DIMENSIONS = 24000, 6
SIZES = (3, 4, 1, 2, 5, 7, 8, 6, 9, 16, 0, 33, 64, 130, 600, 5000)
TYPES = ("float32", "float32", "float32", "float32", "bfloat16", "float16", "float64", "bool", "int64")
VALUES = ("normal", "normal", "normal", "whole", "special", "zeros")
LARGE = (2**24, 2**24 + 1, -(2**24) - 1, 2**48, 2**48 + 1, 2**53 + 1, 2**63 - 1, -(2**63), 2**31 - 1, -(2**31), -1, 0)
LAYOUTS = ("contiguous", "contiguous", "channels_last", "transposed", "stepped", "offset", "expanded")


@dataclass(frozen=True)
class Graph:
    """A graph's text: lines that make its arguments, lines that compute, and names of its results."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return self.text()

    def text(self, suffix: str = "") -> str:
        """The graph as Python; the suffix follows each line that computes."""
        names = ", ".join(_name(line) for line in self.arguments)
        body = "".join(f"\n    {line}{suffix.format(_name(line))}" for line in self.lines)
        return "\n".join(self.arguments) + f"\ndef graph({names}):{body}\n    return {', '.join(self.results)},"

    def made(self, cast: Callable = Tensor.to, after: Callable | None = None) -> tuple[Callable, tuple[Tensor, ...]]:
        """The function and its arguments.

        Args:
            cast: takes a tensor and the data type to which the graph casts it.
            after: called with the tensor that a line computes or changes.
        """
        namespace = _namespace(cast) | {"after": after}
        exec(self.text("; after({})" if after else ""), namespace)
        return namespace["graph"], tuple(namespace[_name(line)] for line in self.arguments)


def _name(line: str) -> str:
    """Name of the tensor that a line makes or changes."""
    return re.match(r"\w+", line)[0]


def _namespace(cast: Callable = Tensor.to) -> dict[str, Any]:
    names = {"torch": torch, "F": F, "math": math, "argument": argument, "cast": cast}
    return names | {"negated": negated, "conjugate": conjugate}


def argument(sizes: Sequence[int], dtype: torch.dtype, values: str, layout: str, has_gradient: bool) -> Tensor:
    """A tensor of known elements, in one of LAYOUTS. values: one of VALUES, or "large" for some of LARGE."""
    random = torch.Generator().manual_seed(math.prod(sizes) + len(sizes))
    numbers = torch.randn(sizes, generator=random, dtype=torch.float64)
    if values == "whole" or not dtype.is_floating_point:
        numbers = (numbers * 2).round()
    if values == "zeros":
        numbers = numbers * 0 if dtype.is_floating_point else numbers.clamp(max=0)
    if values == "special" and dtype.is_floating_point:
        for i, number in enumerate((math.nan, math.inf, -math.inf, -0.0, 0.0)):
            numbers.view(-1)[i::11] = number
    tensor = numbers.to(dtype)
    if values == "large":
        limits = torch.iinfo(dtype)
        few = torch.tensor([number for number in LARGE if limits.min <= number <= limits.max], dtype=dtype)
        tensor = few[torch.randint(len(few), sizes, generator=random)]
    elif dtype == torch.int64:
        tensor = tensor.abs()
    if layout == "channels_last" and len(sizes) in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        tensor = tensor.contiguous(memory_format=formats[len(sizes)])
    elif layout == "transposed" and len(sizes) > 1:
        tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
    elif layout == "stepped" and sizes:
        wide = torch.zeros((*sizes[:-1], 2 * sizes[-1]), dtype=dtype)
        wide[..., ::2] = tensor
        tensor = wide[..., ::2]
    elif layout == "offset" and sizes:
        wide = torch.zeros((sizes[0] + 1, *sizes[1:]), dtype=dtype)
        wide[1:] = tensor
        tensor = wide[1:]
    elif layout == "expanded" and sizes and sizes[0]:
        tensor = tensor[:1].expand(sizes)
    return tensor.requires_grad_(has_gradient and dtype.is_floating_point)


class Drawing:
    """A graph as it is drawn: what operators (random_operators.py) choose from.

    Attributes:
        tensors: all tensors by name; those of eager.
    """

    def __init__(self, choose: Choose):
        self.choose = choose
        self.arguments: list[str] = []
        self.lines: list[str] = []
        self.tensors: dict[str, Tensor] = {}
        self.namespace = _namespace()
        self.operators = choose(OPERATORS)

    def integer(self, least: int, most: int) -> int:
        """A whole number; the first is the simplest."""
        return self.choose(range(least, most + 1)) if least < most else least

    def is_true(self) -> bool:
        return self.choose((False, True))

    def dim(self, name: str) -> int:
        return self.integer(0, self.tensors[name].dim() - 1)

    def dims(self, name: str, least: int = 1) -> tuple[int, ...]:
        """Some dimensions, each once."""
        chosen = [d for d in range(self.tensors[name].dim()) if self.is_true()]
        return tuple(chosen) if len(chosen) >= least else (self.dim(name),)

    def tensor(self, accepts: Callable[[Tensor], bool] = lambda tensor: True) -> str | None:
        """Name of a tensor, of the last most often; None if there is none."""
        names = [name for name, tensor in self.tensors.items() if accepts(tensor)][::-1]
        return self.choose([*names[:2], *names]) if names else None

    def other(self, name: str) -> str:
        """Name of a tensor that can be an operand beside another: of the same type, and often of the same sizes."""
        tensor = self.tensors[name]
        return self.tensor(lambda other: other.dtype == tensor.dtype and _broadcasts(other, tensor)) or name

    def sizes(self, rank: int) -> tuple[int, ...]:
        sizes: list[int] = []
        for _ in range(rank):
            size = self.choose(SIZES)
            sizes.append(size if math.prod((*sizes, size)) <= MOST_ELEMENTS // 4 else 1)
        return tuple(sizes)

    def add_argument(self) -> None:
        sizes = self.sizes(self.choose((3, 2, 4, 1, 4, 5, 0)))
        kind, values, layout = self.choose(TYPES), self.choose(VALUES), self.choose(LAYOUTS)
        self.given(sizes, kind, values, layout, self.choose((True, True, False)))

    def given(self, sizes: Sequence[int], kind: str, values="normal", layout="contiguous", has_gradient=True) -> str:
        """Name of a new argument."""
        name = f"x{len(self.arguments)}"
        line = f"{name} = argument({tuple(sizes)}, torch.{kind}, {values!r}, {layout!r}, {has_gradient})"
        exec(line, self.namespace)
        self.arguments.append(line)
        self.tensors[name] = self.namespace[name]
        return name

    def add_line(self) -> bool:
        """Draw one line; False if there is none, or PyTorch raises."""
        name = self.tensor()
        text = self.choose(self.operators)(self, name) if name else None
        if text is None:
            return False
        result = f"t{len(self.lines)}"
        is_statement = text.startswith("!")
        line = text[1:] if is_statement else f"{result} = {text}"
        try:
            exec(line, self.namespace)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
            return False
        if not is_statement:
            if not self._is_small(self.namespace[result]):
                return False
            self.tensors[result] = self.namespace[result]
        self.lines.append(line)
        return True

    def _is_small(self, tensor: Tensor) -> bool:
        is_number = isinstance(tensor, Tensor) and not tensor.is_complex()
        return is_number and tensor.numel() <= MOST_ELEMENTS and tensor.dim() <= MOST_DIMENSIONS


def _broadcasts(one: Tensor, other: Tensor) -> bool:
    pairs = zip(one.shape[::-1], other.shape[::-1], strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def draw_graph(choose: Choose) -> Graph:
    """A graph of one to eight lines, or fewer where PyTorch raises."""
    drawing = Drawing(choose)
    for _ in range(drawing.integer(1, 3)):
        drawing.add_argument()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(drawing.integer(1, 8)):
            any(drawing.add_line() for _ in range(3))
    made = [name for name in drawing.tensors if name.startswith("t")]
    names = [name for name, tensor in drawing.tensors.items() if not overlaps(tensor)]
    results = [drawing.choose(names) for _ in range(drawing.integer(0, 2)) if names]
    last = [name for name in made if name in names][-1:] or [*drawing.tensors][:1]
    return Graph(tuple(drawing.arguments), tuple(drawing.lines), tuple(dict.fromkeys([*last, *results])))
