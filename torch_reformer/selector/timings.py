"""Timings as MIOpen's find-db text: ``key=solver:ms,workspace,algorithm;...``, one problem a line.

Databases of AMD's users and what ``python -m torch_reformer collect`` measures are files of the same form. Reading
keeps what is there, questionable rows too: :func:`summary` counts them, and whoever trains on them decides. Traps:

* Times of 0 occur; they were not measured. :attr:`Record.times` leaves them out.
* Entries stand in order of their times, so their places give the answer away. Never learn from the order.
* A record of a program behind a convolution has the program's text behind the problem's key (epilogues.py), and for
  its solvers the ways to run it; the kernel of each stands in the third field.
* A record may hold only some of the solvers that apply (MIOpen ships the four fastest): a missing one is not slow by
  so and so much, it is unknown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..problem import ConvProblem
from ..runtime.files import read_text, write_text

EPILOGUE_SIGN = "+"  # between a problem's key and the text of a program behind it


class Timing(NamedTuple):
    """One solver's measurement."""

    solver: str
    ms: float
    workspace: int  # bytes
    algorithm: str  # MIOpen's word for the family; not used for learning


class Record(NamedTuple):
    """All measurements of one problem."""

    key: str
    timings: tuple[Timing, ...]

    @property
    def problem(self) -> ConvProblem:
        """Raises ``ValueError`` if the key is no possible problem (MIOpen's databases have a few)."""
        return ConvProblem.parse(self.key.partition(EPILOGUE_SIGN)[0])

    @property
    def epilogue(self) -> str:
        """The text of the program behind it; empty if there is none."""
        return self.key.partition(EPILOGUE_SIGN)[2]

    @property
    def algorithms(self) -> dict[str, str]:
        """The third field of each; of ways to run a program, the kernel's solver."""
        return {timing.solver: timing.algorithm for timing in self.timings}

    @property
    def times(self) -> dict[str, float]:
        """Milliseconds of each solver that was measured, in no order worth knowing."""
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
    for entry in values.split(";") if values else ():  # none of whose results were right
        try:
            timings.append(_timing(entry))
        except ValueError:
            raise ValueError(
                f"{where}: an entry is solver:ms,workspace,algorithm with times and bytes from 0 up, got {entry[:80]!r}"
            ) from None
    return Record(key, tuple(timings))


def read_timings(path: str | os.PathLike) -> list[Record]:
    """Reads a find-db text file, plain, ``.xz`` or ``.bz2``, of today's form or of older MIOpen's

    Raises:
        OSError: if there is no such file.
        ValueError: for a damaged file, a malformed line or a problem that is there twice; names file and line.
    """
    records: dict[str, Record] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{os.fspath(path)}, line {number}"
        record = _record(line.strip(), where)
        if record.key in records:
            raise ValueError(f"{where}: {record.key} is there a second time")
        records[record.key] = record
    return list(records.values())


def write_timings(path: str | os.PathLike, records: Iterable[Record]) -> None:
    """Writes a find-db text file, compressed if its suffix says so, in one step. The fastest entry comes first, as
    MIOpen has it."""
    lines = []
    for key, timings in records:
        ordered = sorted(timings, key=lambda timing: timing.ms)
        lines.append(f"{key}={';'.join(f'{t.solver}:{t.ms!r},{t.workspace},{t.algorithm}' for t in ordered)}\n")
    write_text(path, "".join(lines))


@dataclass(frozen=True)
class Summary:
    """What a database holds, and what in it needs care. Numbers of records, except ``impossible``."""

    records: int
    zero_times: int  # with an entry of 0 ms
    single: int  # with one entry: nothing to choose
    int8: int
    impossible: list[str]  # one sentence for each key whose geometry can't be

    def __str__(self) -> str:
        return (
            f"{self.records} records: {self.zero_times} with times of 0, {self.single} with a single entry, "
            f"{self.int8} of INT8, {len(self.impossible)} of impossible geometry"
        )


def summary(records: Iterable[Record]) -> Summary:
    """Counts the rows that need care."""
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
