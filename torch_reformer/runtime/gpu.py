"""GPU runtime (csrc/jit) without tensors, through ctypes: compiles, caches and launches kernels."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .c_api import check, declare


class Entry(NamedTuple):
    """Kernel, identified by its file, name and arguments; text: source appended to the file (csrc/jit/gpu.h)."""

    file: str
    name: str
    arguments: str
    text: str = ""

    def _native(self) -> _Entry:
        return _Entry(*(word.encode() for word in self))


class _Entry(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("file", "name", "arguments", "text")]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("blocks", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("cluster_z", ctypes.c_uint32),
        ("pdl", ctypes.c_uint32),
    ]


_kernels = declare("reformer_gpu_kernels", None, ctypes.c_char_p)
_nvrtc = declare("reformer_gpu_nvrtc", None, ctypes.c_char_p)
_architecture = declare("reformer_gpu_architecture", ctypes.c_char_p, ctypes.c_int32)
_device = declare("reformer_gpu_device", ctypes.c_char_p, ctypes.c_int32)
_unavailable = declare("reformer_gpu_unavailable", ctypes.c_char_p, ctypes.c_char_p)
_launch = declare(
    "reformer_gpu_launch",
    ctypes.c_int32,
    ctypes.POINTER(_Entry),
    ctypes.POINTER(_Launch),
    ctypes.c_void_p,
    ctypes.c_int64,
)
_compile = declare(
    "reformer_gpu_compile",
    ctypes.c_int64,
    ctypes.POINTER(_Entry),
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int32),
)
_begin_noting = declare("reformer_gpu_begin_noting", None)
_MissingCallback = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Entry), ctypes.c_char_p, ctypes.c_char_p)
_end_noting = declare("reformer_gpu_end_noting", ctypes.c_int32, ctypes.c_char_p, _MissingCallback)
_compiler = declare("reformer_gpu_compiler", ctypes.c_char_p, ctypes.c_char_p)
_add_compiled = declare(
    "reformer_gpu_add_compiled",
    ctypes.c_int32,
    ctypes.POINTER(_Entry),
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int64,
)
_cache_folder = declare("reformer_gpu_cache_folder", ctypes.c_char_p)


def nvrtc_of_wheel() -> Path | None:
    """Path of the NVRTC library in the wheel nvidia-cuda-nvrtc, whose folder no loader searches. torch for CUDA loads
    it."""
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, spec.submodule_search_locations or ()) if spec else ()
    files = [file for folder in folders for file in folder.glob("*/lib/libnvrtc.so.*")]
    return max(files, key=lambda file: file.name, default=None)


if _file := nvrtc_of_wheel():
    _nvrtc(str(_file).encode())


def set_kernels_folder(folder: Path) -> None:
    """Load kernels from this folder from now on, instead of from the package; for tests."""
    _kernels(str(folder).encode())


def device(index: int) -> str:
    """torch's GPU of this index as the selector knows it: its architecture, with its name if other GPUs of that are
    more usual (sm_90:H100). Raises ``ValueError`` if there is none."""
    return check(_device(index)).decode()


def architecture(device: int) -> str:
    return check(_architecture(device)).decode()


def unavailable(architecture: str) -> str | None:
    """Reason why there are no kernels for an architecture; None if there are."""
    return check(_unavailable(architecture.encode())).decode() or None


def launch(
    entry: Entry,
    arguments: ctypes.Structure,
    *,
    blocks: Sequence[int] = (1, 1, 1),
    threads: int = 1,
    shared_bytes: int = 0,
    cluster: int = 1,
    pdl: bool = False,
    device: int = 0,
    stream: int = 0,
) -> None:
    """Launch a kernel.

    Args:
        arguments: the structure that the kernel takes by value.
        cluster: the number of blocks in a cluster, along z.
        pdl: programmatic dependent launch: the kernel may begin before the kernels before it have ended, since it waits
            for them itself.
    """
    shape = _Launch(device, stream, (ctypes.c_uint32 * 3)(*blocks), threads, shared_bytes, cluster, pdl)
    native = entry._native()
    check(_launch(ctypes.byref(native), ctypes.byref(shape), ctypes.byref(arguments), ctypes.sizeof(arguments)))


class Compiled(NamedTuple):
    code: bytes
    from_cache: bool


def compile_entry(entry: Entry, architecture: str) -> Compiled:
    """Compile a kernel as a device of this architecture would if nothing were packaged for it.

    Raises:
        ValueError: with the compiler's log, or if there is no compiler. hipRTC ends the process for AMD architectures
            that it doesn't know.
    """
    code, cached, native = ctypes.c_void_p(), ctypes.c_int32(), entry._native()
    size = check(_compile(ctypes.byref(native), architecture.encode(), ctypes.byref(code), ctypes.byref(cached)))
    return Compiled(ctypes.string_at(code, size), bool(cached.value))


class Missing(NamedTuple):
    """Kernel without code, and its source."""

    entry: Entry
    name: str
    source: str


def note_launches(architecture: str, run: Callable[[], None]) -> list[Missing]:
    """Kernels that a function would launch in this thread, and for which there is no code for a device of this
    architecture. None is launched.

    Raises:
        ValueError: if there is no compiler.
    """
    kernels = []

    def missing(entry, name, source):
        fields = [getattr(entry.contents, field).decode() for field in Entry._fields]
        kernels.append(Missing(Entry(*fields), name.decode(), source.decode()))

    _begin_noting()
    try:
        run()
    finally:
        ended = _end_noting(architecture.encode(), _MissingCallback(missing))
    check(ended)
    return kernels


class Compiler(NamedTuple):
    """NVRTC or hipRTC. prefix: of its functions' names; code: its name for a code object."""

    library: str
    prefix: str
    code: str
    options: list[str]


def compiler(architecture: str) -> Compiler:
    library, prefix, code, *options = check(_compiler(architecture.encode())).decode().splitlines()
    return Compiler(library, prefix, code, options)


def add_compiled(entry: Entry, architecture: str, code: bytes) -> None:
    """Add a missing kernel's code, as the compiler made it, and cache it."""
    native = entry._native()
    check(_add_compiled(ctypes.byref(native), architecture.encode(), code, len(code)))


def cache_folder() -> Path | None:
    """Folder in which kernels compiled at run time are cached; None if they are not cached."""
    folder = _cache_folder().decode()
    return Path(folder) if folder else None
