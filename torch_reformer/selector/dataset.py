"""Records of timings as tensors to learn from, and a split into folds that puts all siblings of a problem in one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problem import ConvProblem
from ..runtime import config, native
from . import epilogues
from .timings import EPILOGUE_SIGN, Record

FOLDS = 20


def geometry_group(problem: ConvProblem) -> tuple:
    """What a problem shares with its siblings: the geometry, whichever side is the input, without batch, direction,
    data type and layout. Siblings are so alike that a split between them would test memory."""
    p = problem
    sides = sorted([(p.c, p.h, p.w), (p.k, p.out_h, p.out_w)])
    filter = (p.r, p.s, p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.groups)
    return *sides, filter


def fold_of(problem: ConvProblem) -> int:
    """One of FOLDS parts, the same for all siblings, in every database and on every machine."""
    digest = hashlib.blake2b(repr(geometry_group(problem)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % FOLDS


def architecture(device: str) -> str:
    """What weights are made for, given a device or an architecture: all CPUs alike (instruction set and threads are
    features), each GPU by itself. ``ValueError`` for what is neither."""
    if device == "cpu":
        return device
    device = native.device(device)
    return "cpu" if device.startswith("cpu-") else device


IMPOSSIBLE = "of impossible geometry"


def useless(record: Record, least: int = 2) -> str | None:
    """Why nothing can be learnt from a record; None if something can."""
    if len(record.times) < least:
        return f"with fewer than {least} times above 0"
    try:
        _ = record.problem
    except ValueError:
        return IMPOSSIBLE
    return None


def decided(records: Iterable[Record]) -> str:
    """What a selector of these records decides (``native.DECIDES``).

    Raises:
        ValueError: if some are of programs behind convolutions, and others are not.
    """
    found = {EPILOGUE_SIGN in record.key for record in records}
    if len(found) > 1:
        raise ValueError(
            "some of these records are of programs behind convolutions, others are not: two selectors learn from them"
        )
    return native.DECIDES[True in found]


@dataclass
class Dataset:
    """``n`` problems with the times of at most ``e`` solvers each."""

    keys: list[str]  # as the database has them
    problems: list[ConvProblem]
    rows: Tensor  # [n, token, term] of the embedding matrix, int32
    weights: Tensor  # [n, token, term]
    entries: Tensor  # [n, e] index of a candidate, or -1
    log_ratio: Tensor  # [n, e] log(time / the record's best time); 0 where there is no entry
    best_ms: Tensor  # [n] the record's best time
    device: Tensor  # [n] index of the architecture
    fold: Tensor  # [n]
    candidates: list[str]
    architectures: list[str]
    left_out: Counter[str]  # how many records of the databases, by the reason
    decides: str = "kernels"  # what a selector that learns from it does (native.DECIDES)

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def valid(self) -> Tensor:
        """[n, e]: whether there is an entry."""
        return self.entries >= 0

    def select(self, which: Tensor) -> Dataset:
        """The problems with these indices."""
        tensors = {name: getattr(self, name)[which] for name in _TENSORS}
        keys, problems = ([some[i] for i in which.tolist()] for some in (self.keys, self.problems))
        return dataclasses.replace(self, keys=keys, problems=problems, **tensors)

    def known_to(self, candidates: Sequence[str]) -> Dataset:
        """The same with these candidates first, and then those of this data that are not among them."""
        names = [*candidates, *(name for name in self.candidates if name not in candidates)]
        place = torch.tensor([*(names.index(name) for name in self.candidates), -1])  # the last is that of no entry
        return dataclasses.replace(self, entries=place[self.entries], candidates=names)

    def of(self, architecture: str) -> tuple[Dataset, Tensor]:
        """The problems of one architecture with the candidates that were timed on it, and those candidates' places
        among all."""
        mine = self.select((self.device == self.architectures.index(architecture)).nonzero()[:, 0])
        columns = mine.entries[mine.valid].unique()
        place = torch.full((len(self.candidates) + 1,), -1)  # the last is that of -1, no entry
        place[columns] = torch.arange(len(columns))
        names = [self.candidates[column] for column in columns.tolist()]
        return dataclasses.replace(mine, entries=place[mine.entries], candidates=names), columns

    def to(self, device: torch.device) -> Dataset:
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in _TENSORS})


_TENSORS = ("rows", "weights", "entries", "log_ratio", "best_ms", "device", "fold")


def sequence(problems: Sequence[ConvProblem], device: str) -> tuple[Tensor, Tensor]:
    """Rows and weights ``[problem, token, term]`` by the native library's definition of the features."""
    return native.features((problem.native() for problem in problems), device)


def _ways(record: Record, device: str) -> epilogues.Ways | str:
    """Those of a program behind a convolution; or why nothing can be learnt from the record."""
    try:
        found = epilogues.ways(record.problem, device, record.epilogue)
    except ValueError:
        return "of programs that are not known"
    if found is None:
        return "of programs that no ranked kernel runs"
    return found if found.kernels == record.algorithms else "of other kernels than the weights choose now"


def _usable(records: Iterable[Record], device: str, least: int, left_out: Counter[str]) -> tuple[list[Record], list]:
    """Those of one device that something can be learnt from, and their ways, if they are of epilogues."""
    used, ways = [], []
    for record in records:
        why, found = useless(record, least), None
        if not why and EPILOGUE_SIGN in record.key:
            found = _ways(record, device)
            why = found if isinstance(found, str) else None
        if why:
            left_out[why] += 1
        else:
            used.append(record)
            ways.append(found)
    return used, ways


def make_dataset(databases: Iterable[tuple[str, Sequence[Record]]], least: int = 2) -> Dataset:
    """What can be learnt from databases, each given with its device's name.

    Left out are keys of impossible geometry, times of 0, and records with fewer than ``least`` times. Candidates and
    architectures are in the order of their names.
    """
    left_out: Counter[str] = Counter()
    of_device: dict[str, list[Record]] = {}
    for device, records in databases:
        of_device.setdefault(device, []).extend(records)
    decides = decided(record for records in of_device.values() for record in records)
    with config.config(**vars(config.Settings())):  # by the package's own rules, whatever the user has set
        usable = {device: _usable(records, device, least, left_out) for device, records in of_device.items()}
    used = {device: records for device, (records, _) in usable.items() if records}
    if not used:
        why = "".join(f"; {count} {reason}" for reason, count in left_out.items())
        raise ValueError(f"no record of these databases has a possible problem and {least} times above 0{why}")
    in_order = [record for records in used.values() for record in records]
    problems, all_times = [record.problem for record in in_order], [record.times for record in in_order]
    names = sorted({solver for times in all_times for solver in times})
    index = {name: i for i, name in enumerate(names)}
    entries = torch.full((len(all_times), max(map(len, all_times))), -1)
    log_ratio = torch.zeros(entries.shape)
    for row, times in enumerate(all_times):
        # By name: an order by time would give the answer away.
        solvers = sorted(times)
        ms = torch.tensor([times[solver] for solver in solvers])
        entries[row, : len(solvers)] = torch.tensor([index[solver] for solver in solvers])
        log_ratio[row, : len(solvers)] = (ms / ms.min()).log()
    if decides == "kernels":
        sequences = [sequence([record.problem for record in records], device) for device, records in used.items()]
    else:
        ways = [usable[device][1] for device in used]
        sequences = [(torch.stack([w.rows for w in some]), torch.stack([w.weights for w in some])) for some in ways]
    architectures = sorted(set(map(architecture, used)))
    counts = [(architectures.index(architecture(device)), len(records)) for device, records in used.items()]
    return Dataset(
        keys=[record.key for record in in_order],
        problems=problems,
        rows=torch.cat([rows for rows, _ in sequences]),
        weights=torch.cat([weights for _, weights in sequences]),
        entries=entries,
        log_ratio=log_ratio,
        best_ms=torch.tensor([min(times.values()) for times in all_times]),
        device=torch.cat([torch.full((count,), number) for number, count in counts]),
        fold=torch.tensor([fold_of(problem) for problem in problems]),
        candidates=names,
        architectures=architectures,
        left_out=left_out,
        decides=decides,
    )
