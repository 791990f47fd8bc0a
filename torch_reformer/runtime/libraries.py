"""Finds the libraries for the installed torch and Python (compile_library.py): in the package, where setup.py built
them in place, or in the user's cache. What is in neither is compiled into the cache, once.

The cache is the folder ``libraries`` in the cache of kernels (cache.py). A library's file name has a digest of all that
it depends on. A failure is kept as well, so that the next process does not try again; so is the compiler's output.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import stat
import sys
from pathlib import Path

import torch

from . import compile_library, gpu
from .compile_library import CannotCompile, CompilerFailed, file_name

_PACKAGE = Path(__file__).parents[1]


def find(library: str) -> Path:
    """Path of a library, compiled now if need be.

    Raises:
        CannotCompile: there is none; the message says why and what to do.
    """
    built = _PACKAGE / file_name(library)
    return built if built.exists() else _cached(library)


def _cached(library: str) -> Path:
    folder = _folder()
    path = folder / f"{Path(file_name(library)).stem}.{_digest(library)}.so"
    if not path.exists():
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            _check(folder)
            # Processes that start together, as a job's ranks do, wait here for the first.
            with path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    _compile(library, path)
        except OSError as error:
            raise CannotCompile(
                f"it can't be kept in {folder} ({error.strerror or error}); set TORCH_REFORMER_CACHE_DIR to a "
                "folder that you can write to"
            ) from error
    _check(folder)
    _check(path)
    return path


def _folder() -> Path:
    folder = gpu.cache_folder()
    if folder is None:
        raise CannotCompile("there is no folder to keep it in; set HOME or TORCH_REFORMER_CACHE_DIR")
    return folder.absolute() / "libraries"


def _digest(library: str) -> str:
    """Digest of all that a library depends on, besides Python, which is in its name."""
    digest = hashlib.sha256()
    for text in (torch.__version__, str(torch.version.git_version), *platform.libc_ver(), *compile_library.FLAGS):
        digest.update(text.encode() + b"\0")
    for path in compile_library.sources(library):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _check(path: Path) -> None:
    """Raise CannotCompile unless only the user can have written this file, or what is in this folder."""
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CannotCompile(
            f"others may have written {path}; set TORCH_REFORMER_CACHE_DIR to a folder that only you can write to"
        )


def _compile(library: str, path: Path) -> None:
    log = path.with_suffix(".log")
    if not log.exists():
        compile_library.check_tools(library)
        print(
            f"torch_reformer: compiling its library for torch {compile_library.TORCH} and Python "
            f"{platform.python_version()}, once, in about a minute; it stays in {path.parent}",
            file=sys.stderr,
            flush=True,
        )
        try:
            compile_library.compile_library(library, path)
            return
        except CompilerFailed as error:
            log.write_text(f"{error}\n")
    raise CannotCompile(
        f"it did not compile; {log} says why, and once that file is removed the next process tries again"
    )
