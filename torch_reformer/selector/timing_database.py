"""Timing database that grows while its problems are measured: find-db text and a sidecar file.

The sidecar ``DB.meta.json`` contains the device (with its number of threads), the measured versions, and the solvers
with wrong results. Timings of different devices or versions are never mixed in one database.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ..runtime import native
from ..runtime.files import read_text, write_text
from ..version import VERSION
from .timings import Record, read_timings, write_timings


def _here(device: str | None) -> dict[str, str]:
    return {"device": native.device(device), "torch": torch.__version__, "torch_reformer": VERSION}


def sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".meta.json")


def read_sidecar(path: Path) -> dict | None:
    """Content of the sidecar of the database at `path`; None if there is none. Raises ``ValueError`` with the sidecar's
    name if it is damaged."""
    beside = sidecar(path)
    if not beside.exists():
        return None
    try:
        meta = json.loads(read_text(beside))
        native.device(meta["device"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{beside} is damaged, it does not say where {path.name} was measured: {error}") from error
    return meta


def named_database(text: str) -> tuple[str | None, Path]:
    """Device (or None) and path from a command line's ``[DEVICE=]DB``."""
    device, equals, path = text.partition("=")
    return (device, Path(path)) if equals else (None, Path(text))


def read_database(path: Path, named_device: str | None, arch: str) -> tuple[str, list[Record]]:
    """Device and records of a database. The device is the one given, else that of the sidecar, else the architecture.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is damaged, or if nothing says which CPU was measured.
    """
    records = read_timings(path)
    device = named_device or (read_sidecar(path) or {}).get("device", arch)
    if device == "cpu":
        raise ValueError(
            f"which CPU {path} was measured on is not known: give --timings cpu-avx512-2t={path} (or whichever it was)"
        )
    return native.device(device), records


class Database:
    """Database at `path` to add timings of this `device` to (None: this CPU); created if it does not exist.

    Raises:
        ValueError: if the existing file was measured elsewhere, or was not written by this class.
    """

    def __init__(self, path: Path, device: str | None = None):
        self.path = path
        self._here = _here(device)
        self.records: dict[str, Record] = {}
        self.wrong: dict[str, dict[str, str]] = {}  # messages by problem and solver
        self.complete = False  # True once all of its problems were processed
        if path.exists():
            self._load()

    def _load(self) -> None:
        meta = read_sidecar(self.path)
        if meta is None:
            name = sidecar(self.path).name
            raise ValueError(f"{self.path} exists but {name} does not: timings can't be added to it")
        for what, here in self._here.items():
            if meta.get(what) != here:
                raise ValueError(
                    f"{self.path} was measured with {what} {meta.get(what)}, and this is {here}: choose another file"
                )
        self.wrong, self.complete = meta.get("wrong", {}), meta.get("complete", False)
        self.records = {record.key: record for record in read_timings(self.path)}

    def add(self, record: Record, wrong: dict[str, str]) -> None:
        """Add a problem's record, replacing an old one."""
        self.records[record.key] = record
        self.wrong.pop(record.key, None)
        if wrong:
            self.wrong[record.key] = wrong

    def save(self) -> None:
        # The sidecar is saved first: a database without one is rejected, a sidecar without its database does no harm.
        # `complete` is saved last, since another process may be waiting for it to merge the database.
        self._save_sidecar(complete=False)
        write_timings(self.path, self.records.values())
        if self.complete:
            self._save_sidecar(complete=True)

    def _save_sidecar(self, complete: bool) -> None:
        meta = {**self._here, "complete": complete, "wrong": self.wrong}
        write_text(sidecar(self.path), json.dumps(meta, indent=1) + "\n")

    def delete(self) -> None:
        self.path.unlink()
        sidecar(self.path).unlink()


def part_path(path: Path, rank: int) -> Path:
    """File to which one of several processes writes its part of the database."""
    return path.with_name(f"{path.name}.rank{rank}")


def parts(path: Path, device: str | None = None) -> list[Database]:
    """Existing parts of a database."""
    with _alone(path.parent):
        return _parts(path, device)


def _parts(path: Path, device: str | None) -> list[Database]:
    prefix = part_path(path, 0).name[:-1]
    files = (p for p in path.parent.iterdir() if p.name.startswith(prefix) and p.name[len(prefix) :].isdecimal())
    return [Database(p, device) for p in sorted(files)]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder: one process at a time. The system releases the lock if the process dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def merge(path: Path, world_size: int | None = None, device: str | None = None) -> Database | None:
    """Move all parts into the database, and delete them.

    With `world_size` this is done only if the parts of that many ranks exist and are complete; otherwise it returns
    None. When each rank calls this after its last save, the last one merges.
    """
    with _alone(path.parent):
        databases = _parts(path, device)
        if world_size is None and not databases:
            raise ValueError(f"there is nothing to merge: no {path}.rank* exists")
        if world_size is not None:
            complete = {part.path for part in databases if part.complete}
            if not complete.issuperset(part_path(path, rank) for rank in range(world_size)):
                return None
        whole = Database(path, device)
        for part in databases:
            for key, record in part.records.items():
                whole.add(record, part.wrong.get(key, {}))
        whole.complete = True
        whole.save()
        for part in databases:
            part.delete()
        return whole
