"""Modules, and the conversion of existing models."""

from __future__ import annotations

import dataclasses

import torch

from . import ops
from .problem import TORCH_DTYPES


class Conv2d(torch.nn.Conv2d):
    """:class:`torch.nn.Conv2d` computed by :func:`torch_reformer.conv2d`: same arguments, same state dict.

    Padding modes other than ``"zeros"`` pad first, as PyTorch does.
    """

    def _conv_forward(self, input, weight, bias):
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            return ops.conv2d(input, weight, bias, self.stride, 0, self.dilation, self.groups)
        return ops.conv2d(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What :func:`convert` did: names of the modules it swapped, and why it left the others."""

    converted: list[str]
    left: dict[str, str]

    def __str__(self) -> str:
        lines = [f"converted {len(self.converted)} Conv2d, left {len(self.left)}"]
        lines += [f"  left {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join(lines)


def _reason_to_leave(module: torch.nn.Module) -> str | None:
    if type(module) is not torch.nn.Conv2d:
        return f"it is a {type(module).__name__}, whose own behaviour would be lost"
    if isinstance(module.weight, torch.nn.parameter.UninitializedTensorMixin):
        return "its weight is not initialised yet"
    if module.weight.dtype not in TORCH_DTYPES.values():
        return f"its data type {module.weight.dtype} is not supported"
    return None


def convert(model: torch.nn.Module, channels_last: bool = False) -> Conversion:
    """Swaps every eligible :class:`torch.nn.Conv2d` of a model for :class:`Conv2d`, in place.

    Parameters, hooks, training mode and names stay: the state dict, optimizers and checkpoints do not notice.

    Args:
        model: any module; a Conv2d itself too.
        channels_last: also converts the model's parameters to ``torch.channels_last``, which is most often faster; give
            it inputs of that memory format.

    Returns:
        what was converted, and a sentence for every Conv2d (or module derived from it) that was left.
    """
    converted, left = [], {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Conv2d) or isinstance(module, Conv2d):
            continue
        shown = name or "(the model itself)"
        if reason := _reason_to_leave(module):
            left[shown] = reason
        else:
            module.__class__ = Conv2d  # keeps parameters, hooks and references to the module alive
            converted.append(shown)
    if channels_last:
        model.to(memory_format=torch.channels_last)
    return Conversion(converted, left)
