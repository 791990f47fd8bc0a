"""A timing database, which grows while its problems are measured: find-db text and a sidecar file.

The sidecar ``DB.meta.json`` names the device (with its number of threads) and the versions that were measured, and
solvers whose results were wrong. Timings of different devices or versions never get into one database.
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
    """What stands beside the database at `path`, if anything does. ``ValueError``, with the file's name, if it is
    damaged."""
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
    """Device and path of a command line's ``[DEVICE=]DB``."""
    device, equals, path = text.partition("=")
    return (device, Path(path)) if equals else (None, Path(text))


def read_database(path: Path, given: str | None, arch: str) -> tuple[str, list[Record]]:
    """A database's device and its records. The device is the one given, else the one that stands beside it, else the
    architecture.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is damaged, or nothing tells which CPU it was.
    """
    records = read_timings(path)
    device = given or (read_sidecar(path) or {}).get("device", arch)
    if device == "cpu":
        raise ValueError(
            f"which CPU {path} was measured on is not known: give --timings cpu-avx512-2t={path} (or whichever it was)"
        )
    return native.device(device), records


class Database:
    """Opens the database at `path` to add to it, or begins one, of timings on this `device` (None: this CPU).

    Raises ``ValueError`` if the one there was measured elsewhere, or was not written by this class.
    """

    def __init__(self, path: Path, device: str | None = None):
        self.path = path
        self._here = _here(device)
        self.records: dict[str, Record] = {}
        self.wrong: dict[str, dict[str, str]] = {}  # of each problem, by solver: a sentence
        self.complete = False  # its maker went through all its problems
        if path.exists():
            self._load()

    def _load(self) -> None:
        meta = read_sidecar(self.path)
        if meta is None:
            name = sidecar(self.path).name
            raise ValueError(f"{self.path} is there but {name} is not: it is not one to add timings to")
        for what, here in self._here.items():
            if meta.get(what) != here:
                raise ValueError(
                    f"{self.path} was measured with {what} {meta.get(what)}, and this is {here}: choose another file"
                )
        self.wrong, self.complete = meta.get("wrong", {}), meta.get("complete", False)
        self.records = {record.key: record for record in read_timings(self.path)}

    def add(self, record: Record, wrong: dict[str, str]) -> None:
        """Takes a problem's new record in place of an old one."""
        self.records[record.key] = record
        self.wrong.pop(record.key, None)
        if wrong:
            self.wrong[record.key] = wrong

    def save(self) -> None:
        # The sidecar first: a database without one is refused, a sidecar without its database does no harm. That it is
        # complete is said when it is: another process may be about to merge it.
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
    """Where one of several processes writes its share of the database."""
    return path.with_name(f"{path.name}.rank{rank}")


def parts(path: Path, device: str | None = None) -> list[Database]:
    """The shares that are there."""
    with _alone(path.parent):
        return _parts(path, device)


def _parts(path: Path, device: str | None) -> list[Database]:
    prefix = part_path(path, 0).name[:-1]
    found = (p for p in path.parent.iterdir() if p.name.startswith(prefix) and p.name[len(prefix) :].isdecimal())
    return [Database(p, device) for p in sorted(found)]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock of one that dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def merge(path: Path, world_size: int | None = None, device: str | None = None) -> Database | None:
    """Moves the shares into the database, and deletes them.

    With `world_size` it does so only if the shares of so many ranks are there and complete, and returns None otherwise:
    when each rank calls it after its last save, the last one merges.
    """
    with _alone(path.parent):
        found = _parts(path, device)
        if world_size is None and not found:
            raise ValueError(f"there is nothing to merge: no {path}.rank* is there")
        if world_size is not None:
            complete = {part.path for part in found if part.complete}
            if not complete.issuperset(part_path(path, rank) for rank in range(world_size)):
                return None
        whole = Database(path, device)
        for part in found:
            for key, record in part.records.items():
                whole.add(record, part.wrong.get(key, {}))
        whole.complete = True
        whole.save()
        for part in found:
            part.delete()
        return whole
