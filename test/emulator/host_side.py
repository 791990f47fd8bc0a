"""Run the host side of the package's GPU solvers without a driver: a function receives the launches."""

import ctypes
from collections.abc import Callable

import torch

from torch_reformer.runtime.c_api import Problem, check, declare
from torch_reformer.runtime.gpu import Entry, _Entry
from torch_reformer.runtime.native import solver_names

_Launcher = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(_Entry), ctypes.POINTER(ctypes.c_uint32 * 6), ctypes.c_void_p, ctypes.c_size_t
)
_run = declare(
    "reformer_run",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_char_p,
    ctypes.c_int32,
    *[ctypes.c_void_p] * 4,
    _Launcher,
)


def run(
    solver: str,
    problem: Problem,
    device: str,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    bias: torch.Tensor | None,
    launcher: Callable[[Entry, tuple[int, int, int], int, int, bytes], None],
) -> None:
    """Run a solver on CPU tensors that are dense in the problem's layout, as on a GPU of this name.

    Each kernel goes to ``launcher(entry, blocks, threads, shared_bytes, arguments)``.
    """
    failed = []

    def launch(entry, shape, arguments, size):
        words = (entry.contents.file, entry.contents.name, entry.contents.arguments)
        *blocks, threads, shared_bytes, cluster = shape.contents
        try:
            if cluster > 1:
                raise ValueError(
                    f"{solver} on {device} adds up sums in clusters of {cluster} blocks, which a launcher can't run: "
                    "name an architecture before sm_90"
                )
            if not failed:
                launcher(
                    Entry(*(word.decode() for word in words)),
                    tuple(blocks),
                    threads,
                    shared_bytes,
                    ctypes.string_at(arguments, size),
                )
        except Exception as error:  # it can't pass through the native library
            failed.append(error)

    pointers = [tensor.data_ptr() for tensor in (x, w, y)] + [None if bias is None else bias.data_ptr()]
    index = solver_names().index(solver)
    check(_run(ctypes.byref(problem), device.encode(), index, *pointers, _Launcher(launch)))
    if failed:
        raise failed[0]
