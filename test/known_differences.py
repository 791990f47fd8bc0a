"""Where the backend differs from eager over PyTorch's samples of operators and modules (pytorch_suites.py), and why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Known:
    """Each operator or module in `names` has a difference whose sentence matches `difference`."""

    reason: str
    difference: str
    names: frozenset[str]
    dtypes: tuple[str, ...] = ("fp32", "bf16")


def _known(reason: str, difference: str, names: str, *dtypes: str) -> Known:
    return Known(reason, difference, frozenset(names.split()), dtypes or Known.dtypes)


KNOWN = []
