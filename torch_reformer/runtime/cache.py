"""Disk cache of kernels compiled at run time.

The folder is ``TORCH_REFORMER_CACHE_DIR``, or else ``torch_reformer`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. It holds
at most ``TORCH_REFORMER_CACHE_LIMIT`` bytes (256 MiB by default; 0 disables the cache) and may be cleared at any time.
Kernels are loaded from regular files only. Neither these files nor the folder may belong to other users or be writable
by them.
"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from . import gpu
from .files import read_regular

_MOST_HEADER = 1 << 16  # bytes


class Cached(NamedTuple):
    path: Path
    bytes: int  # size of the file
    words: dict[str, str]  # header fields: kernel, architecture, compiler, ...; empty if the file is damaged


def _words(path: Path) -> dict[str, str]:
    """Header fields of a cache file; csrc/jit/cache.h describes the format."""
    try:
        head = read_regular(path, _MOST_HEADER, os.O_NOFOLLOW)
        title, *lines = head.partition(b"\n\n")[0].decode().splitlines()
        if title == "torch_reformer code object 1":
            words = dict(line.split(": ", 1) for line in lines)
            return words if {"kernel", "architecture", "compiler"} <= words.keys() else {}
    except (OSError, ValueError):
        pass
    return {}


def _files(pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files in the cache folder that match a pattern, with their status."""
    folder = gpu.cache_folder()
    for path in folder.glob(pattern) if folder else ():
        try:
            status = path.lstat()
        except FileNotFoundError:  # removed by another process
            continue
        if stat.S_ISREG(status.st_mode):
            yield path, status


def cached() -> list[Cached]:
    """All cached kernels, most recently used first."""
    entries = [(status.st_mtime, Cached(path, status.st_size, _words(path))) for path, status in _files("*.code")]
    return [entry for _, entry in sorted(entries, key=lambda item: -item[0])]


def clear() -> int:
    """Remove all files that the cache wrote, and return the number of kernels removed. Other files in the folder
    stay."""
    kernels, unfinished = ([path for path, _ in _files(pattern)] for pattern in ("*.code", "*.code.*.tmp"))
    for path in [*kernels, *unfinished]:
        path.unlink(missing_ok=True)
    return len(kernels)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--list", action="store_true", help="list the cached kernels, most recently used first (the default)"
    )
    action.add_argument("--clear", action="store_true", help="remove all cached kernels")


def run(options: argparse.Namespace) -> int:
    folder = gpu.cache_folder()
    if options.clear:
        print(f"removed {clear()} kernels from {folder}")
        return 0
    entries = cached()
    for entry in entries:
        words = entry.words
        what = f"{words['kernel']}  {words['architecture']}  {words['compiler']}" if words else "damaged"
        print(f"{entry.bytes:10,}  {what}")
    print(f"{len(entries)} kernels, {sum(entry.bytes for entry in entries):,} bytes in {folder}")
    return 0
