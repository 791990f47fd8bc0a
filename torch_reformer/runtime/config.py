"""What the choice of kernels may do: process-wide settings, also as a context manager and from the environment.

| setting | environment variable | default | meaning |
|---|---|---|---|
| ``force`` | ``TORCH_REFORMER_FORCE`` | none | name of the solver to use wherever it applies |
| ``forbid`` | ``TORCH_REFORMER_FORBID`` | none | names of solvers never to use (comma-separated in the environment) |
| ``workspace_limit`` | ``TORCH_REFORMER_WORKSPACE_LIMIT`` | 256 MiB | most temporary memory of one call, in bytes |
| ``deterministic`` | ``TORCH_REFORMER_DETERMINISTIC`` | 0 | 1: only solvers whose results repeat bit for bit |
| ``reduced_accuracy`` | ``TORCH_REFORMER_REDUCED_ACCURACY`` | 0 | 1: also solvers with over twice PyTorch's error |
| ``epilogues`` | ``TORCH_REFORMER_EPILOGUES`` | none | programs behind convolutions: always ``fused`` or ``separate`` |
| ``isa`` | ``TORCH_REFORMER_ISA`` | avx512 | best instruction set to use: plain, avx2 or avx512; environment only |

Whether fp32 may be rounded to tf32 on NVIDIA's GPUs is PyTorch's own setting:
``torch.backends.cudnn.conv.fp32_precision``, or ``torch.backends.cudnn.allow_tf32``.

``aten``, PyTorch's own convolution, can't be forbidden, since it is what remains when nothing else applies.
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


# What config() has changed and no `with` has taken back yet, the latest last, each with the manager that will.
_overrides: list[tuple[weakref.ref, dict]] = []
_base = _settings = Settings()  # without these, and with them
_lock = threading.RLock()
# A child of a process that forks while another thread sets something would wait for that thread for ever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def solvers() -> list[str]:
    """Names of all solvers, in the order in which ties are broken."""
    return native.solver_names()


def settings() -> Settings:
    """The settings now in force."""
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
        raise ValueError("the solver 'aten' can't be forbidden: it is what remains when nothing else applies")
    if new.workspace_limit >= 2**63:  # which C++ would cut
        raise ValueError(f"the workspace limit must be below 2^63 bytes, got {new.workspace_limit}")
    forbidden = [_index(name) for name in new.forbid]
    if new.epilogues not in native.EPILOGUES:
        raise ValueError(f"epilogues must be 'fused', 'separate' or None, got {new.epilogues!r}")
    flags = new.deterministic, new.reduced_accuracy, new.epilogues
    native.set_config(forbidden, forced, new.workspace_limit, *flags)
    _base, _overrides, _settings = base, overrides, new


def _compact(overrides: list[tuple[weakref.ref, dict]]) -> list[tuple[weakref.ref, dict]]:
    """The same with one entry for adjacent ones that nothing can take back any more."""
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
    """``config(...)`` sets at once; used as ``with config(...):`` it takes back at the end what it has set, and nothing
    else: what others have set meanwhile stays, in whatever order they end.

    Settings that are not named stay as they are. They hold for the whole process, all threads: like PyTorch's own
    backend flags they are not meant to be changed by one thread while another computes.
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
        given = dict(
            force=force,
            forbid=forbid,
            workspace_limit=workspace_limit,
            deterministic=deterministic,
            reduced_accuracy=reduced_accuracy,
            epilogues=epilogues,
        )
        if unknown:
            raise TypeError(f"config: there is no setting {next(iter(unknown))!r}; there are {', '.join(given)}")
        changes = {name: value for name, value in given.items() if value is not ...}
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
    found = Settings()
    if (isa := environment.get("TORCH_REFORMER_ISA")) and isa not in ISAS:  # read in csrc/device.cpp
        raise ValueError(f"TORCH_REFORMER_ISA must be one of {', '.join(ISAS)}, got {isa!r}")
    if force := environment.get("TORCH_REFORMER_FORCE"):
        found = dataclasses.replace(found, force=force)
    if forbid := environment.get("TORCH_REFORMER_FORBID"):
        found = dataclasses.replace(found, forbid=tuple(name.strip() for name in forbid.split(",") if name.strip()))
    if epilogues := environment.get("TORCH_REFORMER_EPILOGUES"):
        if epilogues not in native.WAYS:
            raise ValueError(f"TORCH_REFORMER_EPILOGUES must be fused or separate, got {epilogues!r}")
        found = dataclasses.replace(found, epilogues=epilogues)
    if limit := environment.get("TORCH_REFORMER_WORKSPACE_LIMIT"):
        if not limit.isdecimal():
            raise ValueError(f"TORCH_REFORMER_WORKSPACE_LIMIT must be a number of bytes, got {limit!r}")
        found = dataclasses.replace(found, workspace_limit=int(limit))
    for name in ("deterministic", "reduced_accuracy"):
        variable = f"TORCH_REFORMER_{name.upper()}"
        if value := environment.get(variable):
            if value not in ("0", "1"):
                raise ValueError(f"{variable} must be 0 or 1, got {value!r}")
            found = dataclasses.replace(found, **{name: value == "1"})
    return found


_apply(_from_environment(os.environ), [])
