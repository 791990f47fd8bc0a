"""Process-wide settings that limit the choice of kernels: set by calls, by a context manager or by the environment.

| setting | environment variable | default | meaning |
|---|---|---|---|
| ``force`` | ``TORCH_REFORMER_FORCE`` | none | name of the solver to use wherever it applies |
| ``forbid`` | ``TORCH_REFORMER_FORBID`` | none | names of solvers never to use (comma-separated in the environment) |
| ``workspace_limit`` | ``TORCH_REFORMER_WORKSPACE_LIMIT`` | 256 MiB | most temporary memory of one call, in bytes |
| ``deterministic`` | ``TORCH_REFORMER_DETERMINISTIC`` | 0 | 1: only solvers whose results repeat bit for bit |
| ``reduced_accuracy`` | ``TORCH_REFORMER_REDUCED_ACCURACY`` | 0 | 1: also solvers with over twice PyTorch's error |
| ``epilogues`` | ``TORCH_REFORMER_EPILOGUES`` | none | programs after convolutions: always ``fused`` or ``separate`` |
| ``isa`` | ``TORCH_REFORMER_ISA`` | avx512 | best instruction set to use: plain, avx2 or avx512; environment only |

PyTorch's own setting says if fp32 may be rounded to tf32 on NVIDIA GPUs: ``torch.backends.cudnn.conv.fp32_precision``,
or ``torch.backends.cudnn.allow_tf32``.

``aten``, PyTorch's own convolution, can't be forbidden: it is used where no other solver applies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
import threading
import weakref
from collections.abc import Iterable, Iterator

from . import native
from .arguments import shown

DEFAULT_WORKSPACE_LIMIT = 256 << 20
ISAS = ("plain", "avx2", "avx512")


@dataclasses.dataclass(frozen=True)
class Settings:
    force: str | None = None
    forbid: tuple[str, ...] = ()
    workspace_limit: int = DEFAULT_WORKSPACE_LIMIT
    deterministic: bool = False
    reduced_accuracy: bool = False
    epilogues: str | None = None


# Changes by config() whose `with` block has not ended, latest last, each with the context manager that will undo it.
_overrides: list[tuple[weakref.ref, dict]] = []
_base = _settings = Settings()  # without the overrides, and with them
_lock = threading.RLock()
# If a process forked while another thread holds the lock, the child would wait for that thread forever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def solvers() -> list[str]:
    """Names of all solvers, in the order in which ties are broken."""
    return native.solver_names()


def settings() -> Settings:
    """Settings now in force."""
    return _settings


def _index(name: str) -> int:
    names = solvers()
    if name not in names:
        raise ValueError(f"there is no solver {name!r}; there are {', '.join(names)}")
    return names.index(name)


def _apply(base: Settings, overrides: list[tuple[weakref.ref, dict]]) -> None:
    global _base, _overrides, _settings
    new = base
    for _, changes in overrides:
        new = dataclasses.replace(new, **changes)
    forced = -1 if new.force is None else _index(new.force)
    if "aten" in new.forbid:
        raise ValueError("the solver 'aten' can't be forbidden: it is used where no other solver applies")
    if new.workspace_limit >= 2**63:  # C++ would truncate it
        raise ValueError(f"the workspace limit must be below 2^63 bytes, got {new.workspace_limit}")
    forbidden = [_index(name) for name in new.forbid]
    if new.epilogues not in native.EPILOGUES:
        raise ValueError(f"epilogues must be 'fused', 'separate' or None, got {new.epilogues!r}")
    flags = new.deterministic, new.reduced_accuracy, new.epilogues
    native.set_config(forbidden, forced, new.workspace_limit, *flags)
    _base, _overrides, _settings = base, overrides, new


def _compact(overrides: list[tuple[weakref.ref, dict]]) -> list[tuple[weakref.ref, dict]]:
    """Merge adjacent overrides that no context manager can undo any more."""
    compact: list[tuple[weakref.ref, dict]] = []
    for manager, changes in overrides:
        if compact and manager() is None and compact[-1][0]() is None:
            changes = compact.pop()[1] | changes
        compact.append((manager, changes))
    return compact


def _names(forbid: object) -> tuple[str, ...]:
    if isinstance(forbid, str):
        raise ValueError(f"forbid must be a list of solver names, got the string {forbid!r}")
    names = tuple(forbid) if isinstance(forbid, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise TypeError(f"forbid must be a list of solver names, got {shown(forbid)}")
    return names


_TYPES = {
    "force": (str | None, "the name of a solver, or None"),
    "workspace_limit": (numbers.Integral, "a whole number of bytes, such as 64 << 20"),
    "deterministic": (bool, "True or False"),
    "reduced_accuracy": (bool, "True or False"),
    "epilogues": (str | None, "'fused', 'separate' or None"),
}


def _check(changes: dict[str, object]) -> None:
    for name, (type, allowed) in _TYPES.items():
        if name in changes and not isinstance(changes[name], type):
            raise TypeError(f"{name} must be {allowed}, got {shown(changes[name])}")


class _Config:
    """Callable that changes settings: ``config(...)`` takes effect at once; ``with config(...):`` undoes its own
    changes at the end. Changes made by others meanwhile stay, in whatever order the blocks end.

    Settings that are not named stay as they are. Settings hold for the whole process and all its threads: like
    PyTorch's backend flags, they are not meant to be changed by one thread while another computes.
    """

    settings = staticmethod(settings)
    solvers = staticmethod(solvers)

    def __call__(
        self,
        *,
        force: str | None | object = ...,
        forbid: Iterable[str] | object = ...,
        workspace_limit: int | object = ...,
        deterministic: bool | object = ...,
        reduced_accuracy: bool | object = ...,
        epilogues: str | None | object = ...,
        **unknown: object,
    ) -> contextlib.AbstractContextManager[Settings]:
        arguments = dict(
            force=force,
            forbid=forbid,
            workspace_limit=workspace_limit,
            deterministic=deterministic,
            reduced_accuracy=reduced_accuracy,
            epilogues=epilogues,
        )
        if unknown:
            raise TypeError(f"config: there is no setting {next(iter(unknown))!r}; there are {', '.join(arguments)}")
        changes = {name: value for name, value in arguments.items() if value is not ...}
        if "forbid" in changes:
            changes["forbid"] = _names(forbid)
        _check(changes)
        manager = _until_left(changes)
        with _lock:
            _apply(_base, [*_compact(_overrides), (weakref.ref(manager), changes)])
        return manager


@contextlib.contextmanager
def _until_left(override: dict) -> Iterator[Settings]:
    try:
        yield _settings
    finally:
        with _lock:
            _apply(_base, [(manager, changes) for manager, changes in _overrides if changes is not override])


config = _Config()


def _from_environment(environment) -> Settings:
    settings = Settings()
    if (isa := environment.get("TORCH_REFORMER_ISA")) and isa not in ISAS:  # read in csrc/device.cpp
        raise ValueError(f"TORCH_REFORMER_ISA must be one of {', '.join(ISAS)}, got {isa!r}")
    if force := environment.get("TORCH_REFORMER_FORCE"):
        settings = dataclasses.replace(settings, force=force)
    if forbid := environment.get("TORCH_REFORMER_FORBID"):
        settings = dataclasses.replace(
            settings, forbid=tuple(name.strip() for name in forbid.split(",") if name.strip())
        )
    if epilogues := environment.get("TORCH_REFORMER_EPILOGUES"):
        if epilogues not in native.WAYS:
            raise ValueError(f"TORCH_REFORMER_EPILOGUES must be fused or separate, got {epilogues!r}")
        settings = dataclasses.replace(settings, epilogues=epilogues)
    if limit := environment.get("TORCH_REFORMER_WORKSPACE_LIMIT"):
        if not limit.isdecimal():
            raise ValueError(f"TORCH_REFORMER_WORKSPACE_LIMIT must be a number of bytes, got {limit!r}")
        settings = dataclasses.replace(settings, workspace_limit=int(limit))
    for name in ("deterministic", "reduced_accuracy"):
        variable = f"TORCH_REFORMER_{name.upper()}"
        if value := environment.get(variable):
            if value not in ("0", "1"):
                raise ValueError(f"{variable} must be 0 or 1, got {value!r}")
            settings = dataclasses.replace(settings, **{name: value == "1"})
    return settings


_apply(_from_environment(os.environ), [])
