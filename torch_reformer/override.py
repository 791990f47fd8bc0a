"""Process-wide override of PyTorch's convolutions by the chosen kernels."""

from __future__ import annotations

from .runtime import aten


class _Restore:
    """Context manager returned by enable(); at its end it restores the previous state."""

    def __init__(self, before: bool):
        self._before = before

    def __enter__(self) -> None:
        aten.library.set_enabled(True)

    def __exit__(self, *exception) -> None:
        aten.library.set_enabled(self._before)


def enable() -> _Restore:
    """Let the chosen kernels compute every two-dimensional convolution of this process, forward and backward.

    ``aten::convolution`` and its backward are overridden for CPU and GPU tensors, below PyTorch's autograd, autocast
    and transforms: modules, ``torch.nn.functional``, compiled and exported models are used unchanged. PyTorch's kernels
    still run convolutions that this package does not support (transposed, 1-D, 3-D, complex, quantised, sparse),
    modules made by ``torch.jit.trace``, and convolutions that Inductor fuses by oneDNN. The setting holds for all
    threads; call this function while no convolution runs in another thread.

    Returns:
        a context manager that restores the previous state at its end; without ``with``, the override stays enabled
        until :func:`disable`.

    Raises:
        RuntimeError: if the library for this version of PyTorch was not built, with how to build it.
    """
    if aten.library is None:
        raise RuntimeError(f"enable: {aten.missing}")
    restore = _Restore(aten.library.is_enabled())
    aten.library.set_enabled(True)
    return restore


def disable() -> None:
    """Let PyTorch compute its convolutions itself again. Does nothing if :func:`enable` was not called."""
    if aten.library is not None:
        aten.library.set_enabled(False)
