"""Timing records as tensors for training, and a split into folds with all siblings of a problem in one fold."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problem import PRODUCT, ConvProblem
from ..runtime import config, native
from . import epilogues
from .timings import EPILOGUE_SIGN, Record

FOLDS = 20


def geometry_group(problem: ConvProblem) -> tuple:
    """Key that a problem shares with its siblings: its geometry without batch, direction, data type and layout, and
    regardless of which side is the input. Siblings are so similar that a split between them would test memorisation."""
    p = problem
    if p.is_product:  # the rows are a batch; a transposed weight is another depth, so other kernels win
        return PRODUCT, p.c, p.k
    sides = sorted([(p.c, p.h, p.w), (p.k, p.out_h, p.out_w)])
    filter = (p.r, p.s, p.pad_h, p.pad_w, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.groups)
    return *sides, filter


def fold_of(problem: ConvProblem) -> int:
    """Number of the fold (below FOLDS) that a problem belongs to; the same for all siblings, in every database and on
    every machine."""
    digest = hashlib.blake2b(repr(geometry_group(problem)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % FOLDS


def architecture(device: str) -> str:
    """Architecture that weights are trained for, given a device or an architecture. All CPUs share one (instruction set
    and threads are features); each GPU architecture has its own. Raises ``ValueError`` if the text is neither."""
    if device == "cpu":
        return device
    device = native.device(device)
    return "cpu" if device.startswith("cpu-") else device.partition(":")[0]


IMPOSSIBLE = "of impossible geometry"


def useless(record: Record, least: int = 2) -> str | None:
    """Reason why nothing can be learned from a record; None if something can."""
    if len(record.times) < least:
        return f"with fewer than {least} times above 0"
    try:
        _ = record.problem
    except ValueError:
        return IMPOSSIBLE
    return None


def decided(records: Iterable[Record]) -> str:
    """Kind of decision that a selector learns from these records (``native.DECIDES``).

    Raises:
        ValueError: if some are of matrix products or of programs after convolutions, and others are not.
    """
    kinds = {_kind(record) for record in records}
    if len(kinds) > 1:
        raise ValueError(
            "some of these records are of programs after convolutions or of matrix products, others are not: train a "
            "selector on each kind"
        )
    return kinds.pop() if kinds else native.DECIDES[0]


def _kind(record: Record) -> str:
    if record.key.startswith(PRODUCT):
        return "products"
    return "epilogues" if EPILOGUE_SIGN in record.key else "kernels"


@dataclass
class Dataset:
    """``n`` problems with the times of at most ``e`` solvers each."""

    keys: list[str]  # as in the database
    problems: list[ConvProblem]
    rows: Tensor  # [n, token, term] row of the embedding matrix, int32
    weights: Tensor  # [n, token, term]
    entries: Tensor  # [n, e] index of a candidate, or -1
    log_ratio: Tensor  # [n, e] log(time / the record's best time); 0 where there is no entry
    best_ms: Tensor  # [n] the record's best time
    device: Tensor  # [n] index of the architecture
    fold: Tensor  # [n]
    candidates: list[str]
    architectures: list[str]
    left_out: Counter[str]  # number of records left out of the databases, by reason
    decides: str = "kernels"  # decision that a selector learns from this dataset (native.DECIDES)

    def __len__(self) -> int:
        return len(self.problems)

    @property
    def valid(self) -> Tensor:
        """[n, e]: True if there is an entry."""
        return self.entries >= 0

    def select(self, which: Tensor) -> Dataset:
        """Dataset of the problems with these indices."""
        tensors = {name: getattr(self, name)[which] for name in _TENSORS}
        keys, problems = ([some[i] for i in which.tolist()] for some in (self.keys, self.problems))
        return dataclasses.replace(self, keys=keys, problems=problems, **tensors)

    def known_to(self, candidates: Sequence[str]) -> Dataset:
        """Dataset whose candidates begin with these; this dataset's other candidates follow."""
        names = [*candidates, *(name for name in self.candidates if name not in candidates)]
        # the last element maps -1, no entry
        place = torch.tensor([*(names.index(name) for name in self.candidates), -1])
        return dataclasses.replace(self, entries=place[self.entries], candidates=names)

    def of(self, architecture: str) -> tuple[Dataset, Tensor]:
        """Problems of one architecture with the candidates that were timed on it, and the indices of these candidates
        among all."""
        mine = self.select((self.device == self.architectures.index(architecture)).nonzero()[:, 0])
        columns = mine.entries[mine.valid].unique()
        place = torch.full((len(self.candidates) + 1,), -1)  # the last element maps -1, no entry
        place[columns] = torch.arange(len(columns))
        names = [self.candidates[column] for column in columns.tolist()]
        return dataclasses.replace(mine, entries=place[mine.entries], candidates=names), columns

    def to(self, device: torch.device) -> Dataset:
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in _TENSORS})


_TENSORS = ("rows", "weights", "entries", "log_ratio", "best_ms", "device", "fold")


def sequence(problems: Sequence[ConvProblem], device: str) -> tuple[Tensor, Tensor]:
    """Features of problems as rows and weights ``[problem, token, term]``, computed by the native library."""
    return native.features((problem.native() for problem in problems), device)


Terms = tuple[Tensor, Tensor]  # rows and weights


def _terms(record: Record, device: str) -> Terms | str | None:
    """Features of the record's program and of what it follows, or the reason why nothing can be learned from the
    record. None for a convolution without a program, whose features are computed for many at once."""
    if _kind(record) == "kernels":
        return None
    try:
        if record.problem.is_product:
            code = epilogues.program_of(record.epilogue).code if record.epilogue else ()
            return native.product_features(record.problem.native(), device, code)
        ways = epilogues.ways(record.problem, device, record.epilogue)
    except ValueError:
        return "of programs that are not known"
    if ways is None:
        return "of programs that no ranked kernel runs"
    if ways.kernels != record.algorithms:
        return "of other kernels than the weights choose now"
    return ways.rows, ways.weights


def _usable(records: Iterable[Record], device: str, least: int, left_out: Counter[str]) -> tuple[list[Record], list]:
    """Records of one device that can be learned from, and the features of each, as far as :func:`_terms` gives them."""
    used, features = [], []
    for record in records:
        terms = useless(record, least) or _terms(record, device)
        if isinstance(terms, str):
            left_out[terms] += 1
        else:
            used.append(record)
            features.append(terms)
    return used, features


def make_dataset(databases: Iterable[tuple[str, Sequence[Record]]], least: int = 2) -> Dataset:
    """Dataset of everything that can be learned from databases, each given with its device's name.

    Keys of impossible geometry, times of 0, and records with fewer than ``least`` times are left out. Candidates and
    architectures are sorted by name.
    """
    left_out: Counter[str] = Counter()
    of_device: dict[str, list[Record]] = {}
    for device, records in databases:
        of_device.setdefault(device, []).extend(records)
    decides = decided(record for records in of_device.values() for record in records)
    with config.config(**vars(config.Settings())):  # the package's defaults, whatever the user has set
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
        # Sorted by name, because an order by time would reveal the answer.
        solvers = sorted(times)
        ms = torch.tensor([times[solver] for solver in solvers])
        entries[row, : len(solvers)] = torch.tensor([index[solver] for solver in solvers])
        log_ratio[row, : len(solvers)] = (ms / ms.min()).log()
    if decides == "kernels":
        sequences = [sequence([record.problem for record in records], device) for device, records in used.items()]
    else:
        terms = [list(zip(*usable[device][1], strict=True)) for device in used]
        sequences = [(torch.stack(rows), torch.stack(weights)) for rows, weights in terms]
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
