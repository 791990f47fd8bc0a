"""Lists of problems as files and as text, in the forms that ``--problems`` and ``explain`` accept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..problem import DIRECTIONS, ConvProblem
from ..runtime.files import read_text
from . import epilogues
from .miopen_driver import is_driver_line, parse_driver_line
from .timings import EPILOGUE_SIGN


class Task(NamedTuple):
    """Problem, and the text of a program after its convolution (epilogues.py); empty if there is none. str() is the key
    of its record."""

    problem: ConvProblem
    epilogue: str = ""

    def __str__(self) -> str:
        return f"{self.problem}{EPILOGUE_SIGN}{self.epilogue}" if self.epilogue else str(self.problem)


# Members of a JSON line with their defaults (None: required). Names are ConvProblem's, except for the dilation.
_JSON_MEMBERS = {
    **dict.fromkeys(("c", "h", "w", "k", "r", "s")),
    **dict.fromkeys(("pad_h", "pad_w"), 0),
    **dict.fromkeys(("n", "stride_h", "stride_w", "dil_h", "dil_w", "groups"), 1),
}


def _from_json(line: str) -> list[ConvProblem]:
    try:
        members = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not a JSON object: {error}") from None
    values: dict[str, Any] = {}
    for name, default in _JSON_MEMBERS.items():
        value = members.get(name, default)
        if type(value) is not int:
            raise ValueError(
                f"{name} must be a whole number, got {value!r}" if name in members else f"{name} is missing"
            )
        values[name.replace("dil_", "dilation_")] = value
    return [ConvProblem(**values, direction=direction) for direction in DIRECTIONS]


def parse_problems(line: str) -> list[ConvProblem]:
    """Problems described by one line, which is one of

    * a find-db key, also of a matrix product (``gemm-12608-3072-768-tn-BF16``), or a line of a find-db with such a key,
    * a ``MIOpenDriver conv...`` command line (``-F`` says which directions),
    * a JSON object with members c, h, w, k, r, s and optionally n, pad_h, pad_w, stride_h, stride_w, dil_h, dil_w,
      groups; other members are ignored. It stands for all three directions, in FP32 and NCHW; n is 1 by default.

    Raises:
        ValueError: if the line is malformed.
    """
    line = line.strip()
    if line.startswith("{"):
        problems = _from_json(line)
    elif is_driver_line(line):
        problems = parse_driver_line(line)
    else:
        return [ConvProblem.parse(line.partition("=")[0])]
    for problem in problems:
        str(problem)  # raises if the problem is impossible
    return problems


def parse_tasks(line: str) -> list[Task]:
    """Tasks described by one line, like :func:`parse_problems`; a key may be followed by + and an epilogue's text."""
    key, sign, epilogue = line.strip().partition("=")[0].partition(EPILOGUE_SIGN)
    if line.strip().startswith("{") or is_driver_line(line) or not sign:
        return [Task(problem) for problem in parse_problems(line)]
    problem = ConvProblem.parse(key)
    epilogues.check(problem)
    epilogues.program_of(epilogue)  # raises for an unknown step
    return [Task(problem, epilogue)]


def _variants(problem: ConvProblem, batch, dtype, directions, layouts) -> Iterator[ConvProblem]:
    changes = {name: value for name, value in (("n", batch), ("dtype", dtype)) if value is not None}
    if problem.is_product:  # its rows are its batch, and it is of no other layout
        changes.pop("n", None)
        layouts = None
    for direction in directions or [problem.direction]:
        bias = problem.bias and direction == "F"
        for layout in layouts or [problem.layout]:
            variant = problem.replace(direction=direction, layout=layout, bias=bias, **changes)
            str(variant)  # raises if the problem is impossible
            yield variant


def read_problems(
    path: str | os.PathLike,
    batch: int | None = None,
    dtype: str | None = None,
    directions: Sequence[str] | None = None,
    layouts: Sequence[str] | None = None,
) -> list[ConvProblem]:
    """Distinct problems of a file, without the programs after them; arguments and errors as for :func:`read_tasks`."""
    return list(dict.fromkeys(task.problem for task in read_tasks(path, batch, dtype, directions, layouts)))


def read_tasks(
    path: str | os.PathLike,
    batch: int | None = None,
    dtype: str | None = None,
    directions: Sequence[str] | None = None,
    layouts: Sequence[str] | None = None,
) -> list[Task]:
    """Distinct tasks of a file, in its order. Each line is parsed by :func:`parse_tasks`; empty lines and lines that
    begin with ``#`` are skipped; ``.xz`` and ``.bz2`` files are decompressed.

    Args:
        batch, dtype: replace the values in the file.
        directions, layouts: each problem is taken in all of these, instead of the one in the file; a problem with an
            epilogue is always forward.

    Raises:
        OSError: if there is no such file.
        ValueError: for a malformed line, with the file and the line's number.
    """
    tasks: dict[Task, None] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            for problem, epilogue in parse_tasks(line):
                variants = _variants(problem, batch, dtype, ["F"] if epilogue else directions, layouts)
                tasks.update((Task(variant, epilogue), None) for variant in variants)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}, line {number}: {error}") from None
    return list(tasks)
