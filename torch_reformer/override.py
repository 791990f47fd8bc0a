"""PyTorch's own convolutions by the chosen kernels, for the whole process."""

from __future__ import annotations

from .runtime import aten


class _Restore:
    """What enable() returns: as a context it sets back what was in force before."""

    def __init__(self, before: bool):
        self._before = before

    def __enter__(self) -> None:
        aten.library.set_enabled(True)

    def __exit__(self, *exception) -> None:
        aten.library.set_enabled(self._before)


def enable() -> _Restore:
    """Lets the chosen kernels compute every two-dimensional convolution of this process, forward and backward.

    ``aten::convolution`` and its backward are overridden for CPU and GPU tensors, below PyTorch's autograd, autocast
    and transforms: modules, ``torch.nn.functional``, compiled and exported models are used unchanged. What this package
    has no kernels for (transposed, 1-D, 3-D, complex, quantised, sparse) stays PyTorch's, and so do modules that
    ``torch.jit.trace`` made and convolutions that Inductor fuses by oneDNN. Call it while no convolution
    runs in another thread; it holds for all threads.

    Returns:
        a context manager, at whose end what was in force before is so again; without ``with`` it stays enabled until
        :func:`disable`.

    Raises:
        RuntimeError: if the library for this version of PyTorch was not built, with how to build it.
    """
    if aten.library is None:
        raise RuntimeError(f"enable: {aten.missing}")
    restore = _Restore(aten.library.is_enabled())
    aten.library.set_enabled(True)
    return restore


def disable() -> None:
    """Gives PyTorch its own convolutions back. Nothing happens if :func:`enable` was not called."""
    if aten.library is not None:
        aten.library.set_enabled(False)
