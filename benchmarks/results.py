"""CSV schema shared by all benchmarks, and helpers for their tables."""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

import torch_reformer
from torch_reformer.runtime import native
from torch_reformer.runtime.files import read_text
from torch_reformer.tuning.timing import percentiles


@dataclass
class Row:
    """Measured quantity: what was measured, for which provider, its value, and where."""

    benchmark: str  # name of the script
    case: str  # a problem's find-db key, or a name
    provider: str  # "torch", a solver, or "torch_reformer" (the chosen one)
    metric: str  # with its unit, e.g. time_us
    p20: float
    p50: float
    p80: float
    device: str
    torch: str = torch.__version__
    version: str = torch_reformer.__version__

    @classmethod
    def of(
        cls, benchmark: str, case: str, provider: str, metric: str, values: list[float], device: str | None = None
    ) -> Row:
        """Row with the percentiles of `values`. device: this CPU by default."""
        cuts = (round(value, 3) for value in percentiles(values))
        return cls(benchmark, case, provider, metric, *cuts, device=device or native.device(None))


def options_of_gpu(doc: str) -> argparse.Namespace:
    """Parse the command line of a script that times tensors of one batch, by default on a GPU."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    return parser.parse_args()


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_csv(path: Path) -> list[Row]:
    lines = csv.DictReader(io.StringIO(read_text(path)))
    return [Row(**{**row, **{p: float(row[p]) for p in ("p20", "p50", "p80")}}) for row in lines]


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
