"""The fused functions as operators: ``torch.ops.reformer.conv2d_act``, ``linear_act`` and ``conv2d_batch_norm_act``.

They are composites: what PyTorch asks of them (autograd, fake tensors, autocast) is answered by the operators that they
call. The functions themselves don't go this way, since the dispatcher's takes longer.
"""

from __future__ import annotations

import torch

from . import fused

_GEOMETRY = "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1"
_ACTIVATION = 'str activation="relu"'
_SEEDED = (torch.Tag.nondeterministic_seeded,)

_library = torch.library.Library("reformer", "FRAGMENT")


def _register(function, arguments: str, tags: tuple[torch.Tag, ...] = ()) -> None:
    name = function.__name__
    _library.define(f"{name}({arguments}) -> Tensor", tags=tags)
    # vmap takes PyTorch's own composites apart, of others it makes a loop, or refuses those that write.
    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        _library.impl(name, function, key)


_register(
    fused.conv2d_act,
    f"Tensor input, Tensor weight, Tensor? bias=None, {_GEOMETRY}, *, {_ACTIVATION}, Tensor? residual=None",
)
_register(
    fused.linear_act,
    f"Tensor input, Tensor weight, Tensor? bias=None, *, {_ACTIVATION}, float dropout=0.0, bool training=True, "
    "Tensor? residual=None",
    _SEEDED,
)
_register(
    fused.conv2d_batch_norm_act,
    "Tensor input, Tensor weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
    "Tensor? norm_weight=None, Tensor? norm_bias=None, *, bool training, float momentum=0.1, float eps=1e-5, "
    f"{_GEOMETRY}, {_ACTIVATION}, Tensor? residual=None",
)
