"""Public functions as operators (``torch.ops.reformer.conv2d_act`` and so on), for graphs that call them by name.

They are composites: the operators that they call provide autograd, fake tensors and autocast. The Python functions do
not call these operators, because the dispatcher would add overhead.
"""

from __future__ import annotations

import torch

GEOMETRY = "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1"
ACTIVATION = 'str activation="relu"'

_library = torch.library.Library("reformer", "FRAGMENT")


def named_operator(arguments: str, *tags: torch.Tag):
    """Decorator that also registers a function as an operator of its name, with these arguments in the syntax of
    schemas."""

    def register(function):
        name = function.__name__
        _library.define(f"{name}({arguments}) -> Tensor", tags=tags)
        # vmap decomposes only PyTorch's own composites; it would run others in a loop, or reject those that write.
        for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
            _library.impl(name, function, key)
        return function

    return register
