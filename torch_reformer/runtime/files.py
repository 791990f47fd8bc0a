"""Reading and writing of files: atomic replacement, and text that may be compressed (.xz or .bz2 by its suffix)."""

from __future__ import annotations

import bz2
import contextlib
import errno
import lzma
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_CODECS = {".xz": lzma, ".bz2": bz2}


def read_text(path: str | os.PathLike) -> str:
    """Read a text file. Raises ``OSError`` if it can't be read, ``ValueError`` if it is damaged or not text."""
    path = Path(path)
    data = path.read_bytes()
    try:
        if codec := _CODECS.get(path.suffix):
            data = codec.decompress(data)
        return data.decode("utf-8-sig")  # some programs begin text with a byte-order mark
    except (lzma.LZMAError, OSError, EOFError, ValueError) as error:
        kind = f"{path.suffix[1:]}-compressed text" if path.suffix in _CODECS else "text"
        raise ValueError(f"{path} is not {kind}, or is damaged: {error}") from error


def read_regular(path: str | os.PathLike, most: int = -1, flags: int = 0) -> bytes:
    """Read at most `most` bytes of a regular file. Raises ``OSError`` for any other kind of file: a FIFO or a device
    might never end. flags: further flags of ``os.open``."""

    def opener(path, mode):
        return os.open(path, mode | os.O_NONBLOCK | flags)  # opening a FIFO would wait for its other end

    with open(path, "rb", opener=opener) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return file.read(most)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write text with :func:`write_bytes`, compressed if the suffix says so."""
    data = text.encode()
    if codec := _CODECS.get(Path(path).suffix):
        data = codec.compress(data)
    write_bytes(path, data)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Replace a file atomically: readers, also after a crash, see either the old bytes or the new ones. Creates missing
    folders. Raises ``OSError`` with the file's name if the file can't be written."""
    target = _target(path)
    # The temporary file is in the same folder, as os.replace can't cross file systems.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with _about(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def check_writable(path: str | os.PathLike) -> None:
    """Raise, before hours of work, the ``OSError`` that writing this file would raise afterwards. Leaves nothing
    behind."""
    folder = next(folder for folder in _target(path).parents if folder.exists())
    with _about(path):
        tempfile.TemporaryFile(dir=folder).close()


@contextlib.contextmanager
def _about(path: str | os.PathLike) -> Iterator[None]:
    """Reraise an ``OSError`` with the name of the file that was to be written, whichever file failed."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, f"it can't be written ({error.strerror or error})", os.fspath(path)) from error


def _target(path: str | os.PathLike) -> Path:
    """Path of the file to replace, with links resolved. Raises ``OSError`` if the path exists and is not a regular
    file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file to write", os.fspath(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is not a file that can be replaced", os.fspath(path))
    return target
