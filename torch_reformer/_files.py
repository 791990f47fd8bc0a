"""Files that are never seen half written; text that may be compressed (.xz, .bz2, told by the suffix)."""

from __future__ import annotations

import bz2
import contextlib
import errno
import lzma
import os
import tempfile
from pathlib import Path

_CODECS = {".xz": lzma, ".bz2": bz2}


def read_text(path: str | os.PathLike) -> str:
    """Raises ``OSError`` if the file can't be read, ``ValueError`` if it is damaged or not text."""
    path = Path(path)
    data = path.read_bytes()
    try:
        if codec := _CODECS.get(path.suffix):
            data = codec.decompress(data)
        return data.decode("utf-8-sig")  # some programs begin text with a byte-order mark
    except (lzma.LZMAError, OSError, EOFError, ValueError) as error:
        kind = f"{path.suffix[1:]}-compressed text" if path.suffix in _CODECS else "text"
        raise ValueError(f"{path} is not {kind}, or is damaged: {error}") from error


def write_text(path: str | os.PathLike, text: str) -> None:
    """As :func:`write_bytes`."""
    data = text.encode()
    if codec := _CODECS.get(Path(path).suffix):
        data = codec.compress(data)
    write_bytes(path, data)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Replaces the file as a whole: readers, and whoever comes after a crash, find the old bytes or the new ones. Makes
    the folders that are missing."""
    path = _target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same folder: os.replace can't cross file systems
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def check_writable(path: str | os.PathLike) -> None:
    """Raises, before hours of work, the ``OSError`` that writing this file would end with. Leaves nothing behind."""
    folder = next(folder for folder in _target(path).parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise type(error)(error.errno, f"it can't be written ({error.strerror})", os.fspath(path)) from error


def _target(path: str | os.PathLike) -> Path:
    """The file to replace. ``OSError`` for what is there and is no file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file to write", os.fspath(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is no file that can be replaced", os.fspath(path))
    return target
