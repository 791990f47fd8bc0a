"""A fake GPU, on which graphs can be recorded without a real one: its tensors are fake, and nothing runs.

While PyTorch records a graph, it asks the GPU's backend for streams, for the choice of an attention kernel and the
like. Without a GPU, csrc/aten/fake_gpu.cpp answers. PyTorch looks for a backend once, while it is imported: a process
has the fake GPU if it was started with environment() and calls begin() first."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._prims_common import are_strides_like_channels_last_or_false
from torch.fx.experimental import proxy_tensor

from ...runtime import libraries
from ...runtime.compile_library import CannotCompile

_PRELOAD = "LD_PRELOAD"


def _library() -> Path:
    """Path of the library that answers for the GPU.

    Raises:
        ValueError: there is none.
    """
    try:
        return libraries.find("fake_gpu")
    except CannotCompile as error:
        raise ValueError(f"no library stands in for a GPU: {error}") from error


def environment() -> dict[str, str]:
    """Environment of a process that has the fake GPU: it preloads the library, and torch's library that this needs."""
    libraries = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so", _library()
    others = os.environ.get(_PRELOAD, "").split()
    return os.environ | {_PRELOAD: " ".join([*map(str, libraries), *others])}


def begin() -> bool:
    """True if this process has a GPU: a real one, or the fake one because it was started with environment().

    Raises:
        ValueError: no process can have the fake GPU here.
    """
    if torch.cuda.is_available():
        return True
    if torch.backends.cuda.is_built():
        raise ValueError(
            "this PyTorch is built for GPUs, but finds none; --measure plans for this machine and runs the model, and "
            "PyTorch's build for CPUs (pip install torch --index-url https://download.pytorch.org/whl/cpu) plans for a "
            "GPU that is not there"
        )
    library, preloaded = str(_library()), os.environ.get(_PRELOAD, "").split()
    if started := library in preloaded:
        os.environ[_PRELOAD] = " ".join(
            preloaded[preloaded.index(library) + 1 :]
        )  # not for processes that this one starts
        ctypes.CDLL(library).reformer_pretend_gpu()
    accelerator = torch.accelerator.current_accelerator()
    is_there = accelerator is not None and accelerator.type == "cuda"
    if started and not is_there:
        raise ValueError(f"PyTorch did not accept {library} as a GPU: the system ignores {_PRELOAD}")
    return is_there


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Answer for the fake GPU where PyTorch's Python code asks, too."""
    if torch.cuda.is_available():
        yield
        return
    with contextlib.ExitStack() as stack:
        for owner, name, answer in (
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (torch._C, "_conv_determine_backend_memory_format", _convolution_format),  # cuDNN's
            (proxy_tensor, "CONSTANT_NUMEL_LIMIT", 0),  # constants on the GPU would be computed there
        ):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, answer)
        # Otherwise the GPU's thread would compute gradients, and there is none.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        yield


def _convolution_format(input: torch.Tensor, weight: torch.Tensor, backend) -> torch.memory_format:
    """cuDNN's choice: channels_last if the strides of an operand, which may be a slice, have that order."""
    if input.dtype != torch.float64:
        for dimensions, last in ((4, torch.channels_last), (5, torch.channels_last_3d)):
            for tensor in (input, weight) if input.dim() == dimensions else ():
                if are_strides_like_channels_last_or_false(tensor.shape, tensor.stride()):
                    return last
    return torch.contiguous_format
