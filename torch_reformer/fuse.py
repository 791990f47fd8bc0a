"""Compile a whole model in place by this package's backend of ``torch.compile``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch import nn

from .nn import FusedConv2d, convert_to, unconvert_from
from .runtime import aten
from .runtime.arguments import check_module

if TYPE_CHECKING:
    from .compiler.analysis.report import Report


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Reports of a model that :func:`fuse` compiles: none until the model first runs, then one for each planned
    graph."""

    reports: list[Report] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        if not self.reports:
            return f"nothing is planned: {aten.missing}" if aten.missing else "nothing has run compiled yet"
        graphs, lines = len(self.reports), sum(len(report.lines) for report in self.reports)
        head = f"{graphs} graph{'s' * (graphs > 1)} planned so far: {lines} kernels and calls"
        return "\n\n".join([head, *map(str, self.reports)])


def fuse(model: nn.Module, channels_last: bool = False, mode: str | None = None) -> Fusion:
    """Compile a model in place by ``torch.compile``'s backend "reformer", as :meth:`torch.nn.Module.compile` does: at
    its first call, and again for arguments of another kind. Its convolutions are swapped as by
    :func:`torch_reformer.convert`, for code that the compiler leaves to Python.

    Parameters, names, hooks and the state dict stay. ``torch.export``, ONNX and ``torch.jit.trace`` get the model as it
    was, with PyTorch's convolutions. Copies of the model, and models loaded from a file, are not
    compiled: call fuse() on them, too. A model may be fused again, for example with another mode.

    Args:
        model: any module.
        channels_last: also convert the model's parameters to ``torch.channels_last``, which is most often faster; give
            the model inputs of that memory format.
        mode: None, "default", or "reduce-overhead", which records CUDA graphs; "max-autotune" and
            "max-autotune-no-cudagraphs" are taken for these two, with a warning.

    Returns:
        the reports of planned graphs, which are added as the model runs.

    Raises:
        TypeError: `model` is no module.
        ValueError: an unknown mode.
    """
    check_module("fuse", model)
    from .compiler.backend import compile_in_place, known_mode  # imports Dynamo, which takes seconds

    mode = known_mode(mode)
    convert_to(FusedConv2d, model, channels_last)
    fusion = Fusion()
    compile_in_place(model, mode, fusion.reports.append)
    return fusion


def unfuse(model: nn.Module) -> None:
    """Undo :func:`fuse` of a model, and of all modules inside it: they run by PyTorch again, with PyTorch's
    convolutions. What :func:`torch_reformer.convert` converted before stays converted. Memory formats stay, too.

    Raises:
        TypeError: `model` is no module.
    """
    check_module("unfuse", model)
    from .compiler.backend import remove_compiled

    for module in model.modules():
        remove_compiled(module)
    unconvert_from((FusedConv2d,), model)
