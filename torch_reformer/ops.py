"""Public functions. They only normalise arguments; the work is in ``torch.ops.reformer``."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from . import _register


def pair(name: str, value) -> tuple[int, int]:
    """(height, width) from a number or a sequence of one or two."""
    if type(value) is int:
        return value, value
    if type(value) is tuple and len(value) == 2:
        return value
    if not isinstance(value, (tuple, list)):
        return value, value  # a symbolic or other integer
    if len(value) == 2:
        return value[0], value[1]
    if len(value) == 1:
        return value[0], value[0]
    raise ValueError(f"conv2d: {name} must be one number or two (height, width), got {value!r}")


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    """Two-dimensional convolution, as :func:`torch.nn.functional.conv2d`, by the kernel chosen for the problem.

    Args:
        input: ``[N, C, H, W]`` or unbatched ``[C, H, W]``; float32, float64, float16 or bfloat16, any strides.
        weight: ``[K, C / groups, R, S]``, of the same data type and device.
        bias: ``[K]`` or None.
        stride, dilation: one number or (height, width).
        padding: one number or (height, width) of zeros on each side, or ``"valid"`` (none) or ``"same"`` (the output is
            as large as the input; stride 1 only; an odd total puts the extra zero at the end).
        groups: number of groups that channels are divided into.

    Returns:
        ``[N, K, H', W']`` (without N if the input had none), channels_last if the input or the weight is.

    Raises:
        RuntimeError: for sizes that don't fit together, with the argument and its value.
        ValueError: for a padding or stride that can't be read.
    """
    stride, dilation = pair("stride", stride), pair("dilation", dilation)
    if isinstance(padding, str):
        input, padding = _pad_by_name(input, weight, padding, stride, dilation)
    else:
        padding = pair("padding", padding)
    if input.dim() == 3:
        return _register.conv2d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    return _register.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _pad_by_name(input, weight, padding: str, stride, dilation) -> tuple[Tensor, tuple[int, int]]:
    """The symmetric part of a named padding; what is odd of it is padded to the input itself."""
    if padding == "valid":
        return input, (0, 0)
    if padding != "same":
        raise ValueError(f"conv2d: padding must be a number, (height, width), 'same' or 'valid', got {padding!r}")
    if stride != (1, 1):
        raise ValueError(f"conv2d: padding='same' needs stride 1, got {stride}")
    total_h, total_w = (dilation[d] * (weight.shape[2 + d] - 1) for d in (0, 1))
    if total_h % 2 or total_w % 2:
        input = pad(input, (0, total_w % 2, 0, total_h % 2))
    return input, (total_h // 2, total_w // 2)
