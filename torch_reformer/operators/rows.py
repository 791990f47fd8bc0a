"""Matrix product ``[..., C] @ [K, C].T`` as a 1x1 convolution: its rows are spatial positions, its columns channels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from ..program.program import Output


class Rows:
    """Rows of a matrix product, and conversions between its tensors and those of the convolution. size: the input's
    size without the last dimension."""

    def __init__(self, size: Sequence[int]):
        self.size = tuple(size)
        # Shape [N, H, W] of the rows. With a batch of 1x1 images instead, cuDNN computes weight gradients up to seven
        # times slower.
        count = math.prod(self.size)
        self.positions = (count, 1, 1) if count == 0 else self.size if len(self.size) == 3 else (1, count, 1)

    def image(self, tensor: Tensor) -> Tensor:
        """``[..., C]`` as ``[N, C, H, W]`` in channels_last order."""
        return tensor.reshape(*self.positions, tensor.shape[-1]).permute(0, 3, 1, 2)

    def matrix(self, image: Tensor) -> Tensor:
        """``[N, C, H, W]`` as ``[..., C]``; inverse of image()."""
        return image.permute(0, 2, 3, 1).reshape(*self.size, image.shape[1])

    def operand(self, tensor: Tensor | None, kind: str) -> Tensor | None:
        """Convert an input of the program (or its gradient) from the product to the convolution."""
        if tensor is None or kind not in ("full", "row", "index"):
            return tensor
        return self.image(tensor) if kind == "full" else tensor.reshape(self.positions)

    def product_operand(self, tensor: Tensor | None, kind: str) -> Tensor | None:
        """Convert an input of the program (or its gradient) from the convolution to the product; inverse of
        operand()."""
        if tensor is None or kind not in ("full", "row", "index"):
            return tensor
        return self.matrix(tensor) if kind == "full" else tensor.reshape(self.size)

    def result(self, tensor: Tensor, output: Output) -> Tensor:
        """Convert an output of the program from the convolution to the product."""
        if output.per == "row":
            return tensor.reshape([*([2] if output.kind == "moments" else []), *self.size])
        # `per` instead of is_by_element, since torch.compile does not trace properties here.
        return self.matrix(tensor) if output.per == "element" else tensor

    def conv_result(self, tensor: Tensor | None, output: Output) -> Tensor | None:
        """Convert an output of the program from the product to the convolution; inverse of result()."""
        if tensor is not None and output.per == "row":
            return tensor.reshape([*([2] if output.kind == "moments" else []), *self.positions])
        return self.operand(tensor, "full") if output.per == "element" else tensor

    def results(self, tensors: Iterable[Tensor], outputs: Iterable[Output]) -> list[Tensor]:
        return [self.result(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)]


def filter_of(weight: Tensor) -> Tensor:
    """``[K, C]`` as ``[K, C, 1, 1]``."""
    return weight[:, :, None, None]
