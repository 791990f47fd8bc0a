"""Public functions as operators: ``torch.ops.reformer.conv2d_act`` and the like, for graphs that name them.

They are composites: what PyTorch asks of them (autograd, fake tensors, autocast) is answered by the operators that they
call. The functions themselves don't go this way, since the dispatcher's takes longer.
"""

from __future__ import annotations

import torch

GEOMETRY = "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1"
ACTIVATION = 'str activation="relu"'

_library = torch.library.Library("reformer", "FRAGMENT")


def named_operator(arguments: str, *tags: torch.Tag):
    """Decorates a function that is to be an operator of its name as well, with these arguments of a schema."""

    def register(function):
        name = function.__name__
        _library.define(f"{name}({arguments}) -> Tensor", tags=tags)
        # vmap takes PyTorch's own composites apart, of others it makes a loop, or refuses those that write.
        for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
            _library.impl(name, function, key)
        return function

    return register
