"""Timings in MIOpen's find-db text: ``key=solver:ms,workspace,algorithm;...``, one problem per line.

Databases of AMD's users and those measured by ``python -m torch_reformer collect`` have the same form. Reading keeps
everything, including questionable rows: :func:`summary` counts them, and the training code decides about them.
Pitfalls:

* Times of 0 occur; they were not measured. :attr:`Record.times` leaves them out.
* Entries are sorted by time, so their positions reveal the answer. Never learn from the order.
* In the record of a program after a convolution, the problem's key is followed by the program's text (epilogues.py),
  and the ways to run it take the place of solvers; the kernel of each is in the third field.
* A record may contain only some of the solvers that apply (MIOpen ships the four fastest): the time of a missing one is
  unknown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..problem import ConvProblem
from ..runtime.files import read_text, write_text

EPILOGUE_SIGN = "+"  # between a problem's key and the text of the program after it


class Timing(NamedTuple):
    """Measurement of one solver."""

    solver: str
    ms: float
    workspace: int  # bytes
    algorithm: str  # MIOpen's name of the family; not used for learning


class Record(NamedTuple):
    """All measurements of one problem."""

    key: str
    timings: tuple[Timing, ...]

    @property
    def problem(self) -> ConvProblem:
        """Problem of the key. Raises ``ValueError`` if it is impossible (MIOpen's databases have a few such keys)."""
        return ConvProblem.parse(self.key.partition(EPILOGUE_SIGN)[0])

    @property
    def epilogue(self) -> str:
        """Text of the program after the convolution; empty if there is none."""
        return self.key.partition(EPILOGUE_SIGN)[2]

    @property
    def algorithms(self) -> dict[str, str]:
        """Third field by solver; for ways to run a program, the kernel's solver."""
        return {timing.solver: timing.algorithm for timing in self.timings}

    @property
    def times(self) -> dict[str, float]:
        """Milliseconds of each solver that was measured; the order means nothing."""
        return {timing.solver: timing.ms for timing in self.timings if timing.ms > 0}


def _timing(entry: str) -> Timing:
    head, _, tail = entry.partition(":")
    fields = tail.split(",")
    if len(fields) > 3:  # older MIOpen: algorithm:solver,ms,workspace,kernel-cache key
        algorithm, (solver, ms, workspace) = head, fields[:3]
    else:
        solver, (ms, workspace, algorithm) = head, fields
    timing = Timing(solver, float(ms), int(workspace), algorithm)
    if not solver or not math.isfinite(timing.ms) or timing.ms < 0 or timing.workspace < 0:
        raise ValueError
    return timing


def _record(line: str, where: str) -> Record:
    key, equals, values = line.partition("=")
    if not key or not equals:
        raise ValueError(f"{where}: a find-db line is key=solver:ms,workspace,algorithm;..., got {line[:80]!r}")
    timings = []
    for entry in values.split(";") if values else ():  # empty if no solver's results were right
        try:
            timings.append(_timing(entry))
        except ValueError:
            raise ValueError(
                f"{where}: an entry is solver:ms,workspace,algorithm with times and bytes from 0 up, got {entry[:80]!r}"
            ) from None
    return Record(key, tuple(timings))


def read_timings(path: str | os.PathLike) -> list[Record]:
    """Read a find-db text file, plain, ``.xz`` or ``.bz2``, of today's form or of older MIOpen's.

    Raises:
        OSError: if there is no such file.
        ValueError: for a damaged file, a malformed line or a duplicate problem, with the file and the line's number.
    """
    records: dict[str, Record] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{os.fspath(path)}, line {number}"
        record = _record(line.strip(), where)
        if record.key in records:
            raise ValueError(f"{where}: {record.key} occurs twice")
        records[record.key] = record
    return list(records.values())


def write_timings(path: str | os.PathLike, records: Iterable[Record]) -> None:
    """Write a find-db text file atomically, compressed if its suffix says so. The fastest entry comes first, as in
    MIOpen."""
    lines = []
    for key, timings in records:
        ordered = sorted(timings, key=lambda timing: timing.ms)
        lines.append(f"{key}={';'.join(f'{t.solver}:{t.ms!r},{t.workspace},{t.algorithm}' for t in ordered)}\n")
    write_text(path, "".join(lines))


@dataclass(frozen=True)
class Summary:
    """Content of a database, and what in it needs care: numbers of records, except ``impossible``."""

    records: int
    zero_times: int  # with an entry of 0 ms
    single: int  # with one entry, so that there is no choice
    int8: int
    impossible: list[str]  # one message for each key with an impossible geometry

    def __str__(self) -> str:
        return (
            f"{self.records} records: {self.zero_times} with times of 0, {self.single} with a single entry, "
            f"{self.int8} of INT8, {len(self.impossible)} of impossible geometry"
        )


def summary(records: Iterable[Record]) -> Summary:
    """Count the records, and those that need care."""
    count = zero_times = single = int8 = 0
    impossible = []
    for record in records:
        count += 1
        zero_times += any(timing.ms == 0 for timing in record.timings)
        single += len(record.timings) == 1
        try:
            int8 += record.problem.dtype == "INT8"
        except ValueError as error:
            impossible.append(str(error))
    return Summary(count, zero_times, single, int8, impossible)
