"""A whole model by this package: compiled in place by its own backend of ``torch.compile``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch import nn

from .nn import convert
from .runtime.arguments import check_module

if TYPE_CHECKING:
    from .compiler.analysis.report import Report


@dataclasses.dataclass(frozen=True)
class Fusion:
    """What became of a model that :func:`fuse` compiles: nothing until it first runs, then a report of each graph that
    was planned."""

    reports: list[Report] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        if not self.reports:
            return "nothing has run compiled yet"
        graphs, lines = len(self.reports), sum(len(report.lines) for report in self.reports)
        head = f"{graphs} graph{'s' * (graphs > 1)} planned so far: {lines} kernels and calls"
        return "\n\n".join([head, *map(str, self.reports)])


def fuse(model: nn.Module, channels_last: bool = False, mode: str | None = None) -> Fusion:
    """Compiles a model in place by ``torch.compile``'s backend "reformer", as :meth:`torch.nn.Module.compile` does: at
    its first call, and again for arguments of another kind. Its convolutions are swapped as
    :func:`torch_reformer.convert` does it, for what the compiler leaves to Python.

    Parameters, names, hooks and the state dict stay. Copies, and what is loaded from a file, are not compiled: they
    want fuse() again. A model may be fused anew, such as in another mode.

    Args:
        model: any module.
        channels_last: also converts the model's parameters to ``torch.channels_last``, which is most often faster; give
            it inputs of that memory format.
        mode: None, or "reduce-overhead": in CUDA graphs.

    Returns:
        the reports of what is planned, which come as the model runs.

    Raises:
        TypeError: for what is no module.
        ValueError: for another mode.
    """
    check_module("fuse", model)
    from .compiler.backend import (
        check_mode,  # with Dynamo, which takes seconds to import
        compile_in_place,  # with Dynamo, which takes seconds to import
    )

    check_mode(mode)
    convert(model, channels_last)
    done = Fusion()
    compile_in_place(model, mode, done.reports.append)
    return done
