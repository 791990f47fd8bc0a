"""A matrix product ``[..., C] @ [K, C].T`` as a convolution of 1x1: its rows as pixels, its columns as channels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from ..program.program import Output


class Rows:
    """The rows of one product, and how its tensors are a convolution's. size: of the input but its last dimension."""

    def __init__(self, size: Sequence[int]):
        self.size = tuple(size)
        # As [N, H, W]: for as many images of one pixel, cuDNN computes weight gradients up to seven times as slowly.
        count = math.prod(self.size)
        self.pixels = (count, 1, 1) if count == 0 else self.size if len(self.size) == 3 else (1, count, 1)

    def image(self, tensor: Tensor) -> Tensor:
        """``[..., C]`` as ``[N, C, H, W]`` in channels_last order."""
        return tensor.reshape(*self.pixels, tensor.shape[-1]).permute(0, 3, 1, 2)

    def matrix(self, image: Tensor) -> Tensor:
        return image.permute(0, 2, 3, 1).reshape(*self.size, image.shape[1])

    def operand(self, tensor: Tensor | None, kind: str) -> Tensor | None:
        """A program's input of this kind, or a gradient of one, as the convolution's program has it."""
        if tensor is None or kind not in ("full", "row", "index"):
            return tensor
        return self.image(tensor) if kind == "full" else tensor.reshape(self.pixels)

    def own(self, tensor: Tensor | None, kind: str) -> Tensor | None:
        """The other way round."""
        if tensor is None or kind not in ("full", "row", "index"):
            return tensor
        return self.matrix(tensor) if kind == "full" else tensor.reshape(self.size)

    def result(self, tensor: Tensor, output: Output) -> Tensor:
        """An output of the convolution's program as one of the product's."""
        if output.per == "row":
            return tensor.reshape([*([2] if output.kind == "moments" else []), *self.size])
        # torch.compile traces no properties here
        return self.matrix(tensor) if output.per == "element" else tensor

    def of_result(self, tensor: Tensor | None, output: Output) -> Tensor | None:
        """The other way round."""
        if tensor is not None and output.per == "row":
            return tensor.reshape([*([2] if output.kind == "moments" else []), *self.pixels])
        return self.operand(tensor, "full") if output.per == "element" else tensor

    def results(self, tensors: Iterable[Tensor], outputs: Iterable[Output]) -> list[Tensor]:
        return [self.result(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)]


def filter_of(weight: Tensor) -> Tensor:
    """``[K, C]`` as ``[K, C, 1, 1]``."""
    return weight[:, :, None, None]
