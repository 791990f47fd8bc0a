"""What is kept on disk of kernels compiled at run time.

The folder is ``TORCH_REFORMER_CACHE_DIR``, or ``torch_reformer`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; it holds at
most ``TORCH_REFORMER_CACHE_LIMIT`` bytes (256 MiB; 0: nothing is kept). It may be cleared at any time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from . import _gpu


class Cached(NamedTuple):
    path: Path
    bytes: int  # of the file
    words: dict[str, str]  # of its header: kernel, architecture, compiler, ...; none if the file is damaged


def _words(path: Path) -> dict[str, str]:
    """The header of a file of the cache; csrc/hip/runtime/cache.h has the format."""
    try:
        title, *lines = path.read_bytes().partition(b"\n\n")[0].decode().splitlines()
        if title == "torch_reformer code object 1":
            return dict(line.split(": ", 1) for line in lines)
    except ValueError:
        pass
    return {}


def cached() -> list[Cached]:
    """Everything in the cache, used last first."""
    folder = _gpu.cache_folder()
    found = []
    for path in folder.glob("*.code") if folder else ():
        try:
            found.append((path.stat().st_mtime, Cached(path, path.stat().st_size, _words(path))))
        except FileNotFoundError:  # removed by another process
            continue
    return [entry for _, entry in sorted(found, key=lambda item: -item[0])]


def clear() -> int:
    """Removes what the cache wrote, and returns how many kernels that were. Other files in the folder stay."""
    folder = _gpu.cache_folder()
    kernels = [entry.path for entry in cached()]
    for path in [*kernels, *(folder.glob("*.code.*.tmp") if folder else ())]:
        path.unlink(missing_ok=True)
    return len(kernels)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="show what is kept, used last first (the default)")
    action.add_argument("--clear", action="store_true", help="remove it")


def run(options: argparse.Namespace) -> int:
    folder = _gpu.cache_folder()
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
