"""Queries about the state of PyTorch's dispatcher, and all private names of torch that this package uses."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _AutoDispatchBelowAutograd, _ExcludeDispatchKeyGuard
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack  # noqa: F401  for code that observes operators

from ..runtime import aten, native

below_autograd = _AutoDispatchBelowAutograd
_NOTHING = contextlib.nullcontext()
_AUTOCAST_KEYS = DispatchKeySet(DispatchKey.AutocastCPU) | DispatchKeySet(DispatchKey.AutocastCUDA)
_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))
# Bound here because these functions are called in every operator call.
_is_compiling, _has_torch_function = torch.compiler.is_compiling, torch._C._has_torch_function
_dispatch_modes, _tracing_state = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
under_functorch, is_batched = torch._C._are_functorch_transforms_active, torch._C._functorch.is_legacy_batchedtensor
any_autocast = torch._C._is_any_autocast_enabled


def is_observed() -> bool:
    """True if a TorchDispatchMode of the user's observes operators. PyTorch's own do not count: AOTAutograd checks the
    first run of a compiled graph by one, and fake tensors have one."""
    if not _dispatch_modes():
        return False
    modes = _get_current_dispatch_mode_stack()
    return any(not type(mode).__module__.startswith(("torch._functorch", "torch._subclasses")) for mode in modes)


def in_forward_mode() -> bool:
    """True while forward-mode tangents are computed."""
    return forward_ad._current_level >= 0


def is_transformed() -> bool:
    """True if PyTorch's own operations have to be called, since only they support every transform."""
    return in_forward_mode() or under_functorch()


def in_eager_functorch() -> bool:
    """True if a functorch transform is active and no compiler traces it."""
    return not _is_compiling() and under_functorch()


def needs_dispatcher(tensors) -> bool:
    """True if more than autograd, autocast and the kernels has to see operators called with these tensors: graph
    recording, transforms, forward mode, or tensors of other kinds. If False, the call is on the eager fast path (no
    tracing, no transforms) and may use private operators, which take numbers that are valid in this process only."""
    first = tensors[0]
    return (
        _is_compiling()
        or _dispatch_modes() > 0
        or _tracing_state() is not None
        or under_functorch()
        or forward_ad._current_level >= 0
        or _has_torch_function(tensors)
        or type(first) not in _PLAIN_TYPES
        or not (first.is_cpu or first.is_cuda)
        or is_batched(first)  # by is_grads_batched of autograd.grad
    )


def has_batched(grads) -> bool:
    """True if a gradient comes from is_grads_batched of autograd.grad, whose vmap does not support operators that take
    lists of tensors."""
    return any([grad is not None and is_batched(grad) for grad in grads])


def assume_constant_result(function):
    """Same as torch.compiler.assume_constant_result, which would import Dynamo (over half a second) just to set this
    attribute."""
    function._dynamo_marked_constant = True
    return function


def needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def tracked_by_outer_levels():
    """Context for the forward of an autograd.Function. Gradients are disabled there, but in nested transforms (grad of
    grad) the outer levels, which run below this level's Autograd key, still have to see the operation."""
    if not under_functorch():
        return _NOTHING
    levels = contextlib.ExitStack()
    levels.enter_context(torch.enable_grad())
    levels.enter_context(forward_ad._set_fwd_grad_enabled(True))
    return levels


class SingleLevelFunction(_SingleLevelFunction):
    """torch.autograd.Function whose apply() is for a single level of autograd. The public class adds functorch's
    levels, but the dispatcher has already descended to one level, and plain tensors have only one."""

    apply: Callable[..., Any]  # written in C
    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)  # only there in PyTorch


def single_level():
    """Context in which SingleLevelFunction.apply() may be called inside a transform."""
    return enable_single_level_autograd_function()


def without_autocast():
    """Context in which no operator casts its arguments (again)."""
    return _ExcludeDispatchKeyGuard(_AUTOCAST_KEYS) if any_autocast() else _NOTHING


def allows_tf32(of: str) -> bool:
    """True if PyTorch allows tf32 in cuDNN's convolutions ("conv") or cuBLAS's products ("matmul"). The older getters
    raise if the newer settings were used."""
    return torch._C._get_fp32_precision_getter("cuda", of) == "tf32"


def _asks_for_determinism() -> bool:
    return torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic


native.set_tf32_reader(functools.partial(allows_tf32, "conv"))
if aten.library is None:  # the library reads this setting itself
    native.set_deterministic_reader(_asks_for_determinism)
