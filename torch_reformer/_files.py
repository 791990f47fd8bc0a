"""Text files that may be compressed (.xz, .bz2, told by the suffix) and are never seen half written."""

from __future__ import annotations

import bz2
import contextlib
import lzma
import os
from pathlib import Path

_CODECS = {".xz": lzma, ".bz2": bz2}


def read_text(path: str | os.PathLike) -> str:
    """Raises ``OSError`` if the file can't be read, ``ValueError`` if it is damaged or not text."""
    path = Path(path)
    data = path.read_bytes()
    try:
        if codec := _CODECS.get(path.suffix):
            data = codec.decompress(data)
        return data.decode()
    except (lzma.LZMAError, OSError, EOFError, ValueError) as error:
        kind = f"{path.suffix[1:]}-compressed text" if path.suffix in _CODECS else "text"
        raise ValueError(f"{path} is not {kind}, or is damaged: {error}") from error


def write_text(path: str | os.PathLike, text: str) -> None:
    """Replaces the file as a whole: readers, and whoever comes after a crash, find the old text or the new one."""
    path = Path(os.path.realpath(path))
    data = text.encode()
    if codec := _CODECS.get(path.suffix):
        data = codec.compress(data)
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
