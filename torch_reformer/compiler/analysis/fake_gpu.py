"""A GPU that need not be there, for graphs to be recorded on it: its tensors are fake, nothing runs.

PyTorch asks a GPU's backend for streams, for its own choice of attention and the like while it records a graph. Where
there is no GPU, csrc/aten/fake_gpu.cpp answers. PyTorch asks once for such a backend, while it is imported: a process
has the GPU if it is started with environment(), and calls begin() first."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ...runtime.aten import BUILD, VERSION

_PRELOAD = "LD_PRELOAD"
_FOLDER = Path(__file__).parents[2]


def _library() -> Path:
    """Raises ValueError where it was not built."""
    found = sorted(_FOLDER.glob(f"_fake_gpu_{VERSION.replace('.', '_')}.*so"))
    if not found:
        raise ValueError(f"the library that stands in for a GPU is not there for torch {VERSION}: {BUILD}")
    return found[0]


def environment() -> dict[str, str]:
    """Variables of a process that loads the library before torch, which has what the library needs."""
    libraries = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so", _library()
    others = os.environ.get(_PRELOAD, "").split()
    return os.environ | {_PRELOAD: " ".join([*map(str, libraries), *others])}


def begin() -> bool:
    """True in a process that has the GPU: where there is one, or that was started with environment(). Raises ValueError
    where no process can have it."""
    if torch.cuda.is_available():
        return True
    if torch.backends.cuda.is_built():
        raise ValueError(
            "this PyTorch is built for GPUs and finds none; to plan for one that is not there, install its build for "
            "CPUs (pip install torch --index-url https://download.pytorch.org/whl/cpu)"
        )
    library, preloaded = str(_library()), os.environ.get(_PRELOAD, "").split()
    if started := library in preloaded:
        os.environ[_PRELOAD] = " ".join(preloaded[preloaded.index(library) + 1 :])  # not for what this process starts
        ctypes.CDLL(library).reformer_pretend_gpu()
    found = torch.accelerator.current_accelerator()
    is_there = found is not None and found.type == "cuda"
    if started and not is_there:
        raise ValueError(f"PyTorch did not take {library} for a GPU: the system ignores {_PRELOAD}")
    return is_there


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Has PyTorch's Python take the GPU for one that is there."""
    if torch.cuda.is_available():
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, name, answer in (
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (torch._C, "_conv_determine_backend_memory_format", _format_of_convolution),  # cuDNN's
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, answer)
        # Else a thread of the GPU's computes gradients, and there is none.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield


def _format_of_convolution(input: torch.Tensor, weight: torch.Tensor, backend) -> torch.memory_format:
    for dimensions, last in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        for each in (input, weight) if input.dim() == dimensions else ():
            if each.is_contiguous(memory_format=last) and not each.is_contiguous():
                return last
    return torch.contiguous_format
