"""Convolution operators for PyTorch: autograd (reverse and forward mode), vmap and autocast. Fake kernels are in
fake.py; all numbers are computed by the operators' kernels.

The three operators are the partial derivatives of one trilinear form ``T(x, w, y) = <conv2d(x, w), y>``: conv2d
computes dT/dy from (x, w), conv2d_input_grad dT/dx from (w, y), conv2d_weight_grad dT/dw from (x, y). Each is bilinear
in its two operands, and its derivative with respect to an operand is again one of the three. So one rule serves
derivatives of every order.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..runtime import aten, native, plan  # noqa: F401  native registers the operators
from . import fake, flops, fused_programs, max_pool
from .autocast import CastWeight, autocast_cast, autocast_type
from .dispatch import (
    SingleLevelFunction,
    below_autograd,
    in_forward_mode,
    needs_dispatcher,
    single_level,
    tracked_by_outer_levels,
    under_functorch,
    without_autocast,
)

X, W, Y = 0, 1, 2  # arguments of the trilinear form: input, weight, output

_library = torch.library.Library("reformer", "IMPL")
fake.register(_library)
flops.register()
max_pool.register(_library)
_ops = torch.ops.reformer
_conv2d = _ops.conv2d.default
_input_grad = _ops.conv2d_input_grad.default
_weight_grad = _ops.conv2d_weight_grad.default


# --- autograd ---------------------------------------------------------------------------------------------------------
# An autograd.Function at the Autograd key costs less per call than torch.library.register_autograd (measured by
# benchmarks/overhead.py), and it provides forward-mode derivatives.


def _differentiable(op, place: int, places: tuple[int, int], at: tuple[int, int]):
    """Register the Autograd kernel of `op`.

    Args:
        place: the argument of the trilinear form whose derivative `op` computes.
        places: the arguments of the form that are the operands of `op`.
        at: the positions of these operands among the arguments of `op`; arguments from 3 on are the geometry, of which
            trailing defaults may be omitted.

    Returns:
        a function that calls `op` with positional arguments. Where the dispatcher would only call the Autograd kernel,
        the function calls it directly: moving the arguments through the dispatcher takes longer than the rest of the
        call.
    """

    first_at, second_at = at

    class Derivative(SingleLevelFunction):
        @staticmethod
        def forward(ctx, *arguments):
            first, second = arguments[first_at], arguments[second_at]
            ctx.geometry = arguments[3:]
            # The gradient of an operand needs the other operand, and the operand's own size.
            needed = ctx.needs_input_grad
            if needed[first_at] and needed[second_at]:
                ctx.save_for_backward(first, second)
            elif needed[first_at]:
                ctx.save_for_backward(None, second)
                ctx.size = first.shape
            elif needed[second_at]:
                ctx.save_for_backward(first, None)
                ctx.size = second.shape
            with below_autograd(), tracked_by_outer_levels():
                result = op(*arguments)
            if in_forward_mode():
                ctx.set_materialize_grads(False)  # an operand without a tangent contributes nothing
                ctx.save_for_forward(first, second)
                ctx.result_size = result.shape
            return result

        @staticmethod
        def backward(ctx, grad):
            if grad is None:  # see set_materialize_grads
                return (None,) * len(ctx.needs_input_grad)
            needed = ctx.needs_input_grad
            grads: list[Tensor | None] = [None] * len(needed)
            if needed[first_at] or needed[second_at]:
                saved = ctx.saved_tensors
                for i in (0, 1):
                    if needed[at[i]]:
                        size = ctx.size if saved[i] is None else saved[i].shape
                        tensors = {places[1 - i]: saved[1 - i], place: grad}
                        grads[at[i]] = _contract(places[i], tensors, size, ctx.geometry)
            if place == Y and len(needed) > 2 and needed[2]:
                grads[2] = _bias_grad(grad)
            return tuple(grads)

        @staticmethod
        def jvp(ctx, *tangents):
            saved, terms = ctx.saved_tensors, []
            with tracked_by_outer_levels():
                for i in (0, 1):
                    if tangents[at[i]] is not None:
                        other = saved[1 - i]
                        if tangents[at[1 - i]] is not None:  # it is dual at this level: use its primal only
                            other = forward_ad.unpack_dual(other).primal
                        tensors = {places[i]: tangents[at[i]], places[1 - i]: other}
                        terms.append(_contract(place, tensors, ctx.result_size, ctx.geometry))
                if place == Y and len(tangents) > 2 and tangents[2] is not None:
                    terms.append(tangents[2].view(1, -1, 1, 1).expand(ctx.result_size))
                return sum(terms[1:], terms[0])

    apply = Derivative.apply

    def requires_grad(arguments) -> bool:
        if arguments[first_at].requires_grad or arguments[second_at].requires_grad:
            return True
        bias = arguments[2] if place == Y and len(arguments) > 2 else None
        return bias is not None and bias.requires_grad

    def kernel(*arguments):
        if torch.is_grad_enabled() and requires_grad(arguments) or in_forward_mode():
            if under_functorch():
                with single_level():
                    return apply(*arguments)
            return apply(*arguments)
        with below_autograd():
            return op(*arguments)

    def call(*arguments):
        return op(*arguments) if needs_dispatcher(arguments) else kernel(*arguments)

    _library.impl(op, kernel, "Autograd")
    return call


_conv2d_of_any = _differentiable(_conv2d, Y, (X, W), (0, 1))
conv2d_input_grad = _differentiable(_input_grad, X, (W, Y), (1, 2))
conv2d_weight_grad = _differentiable(_weight_grad, W, (X, Y), (1, 2))


@functools.lru_cache(1024)
def _grads(geometry: int, wanted: tuple[bool, bool, bool], dtype: torch.dtype | None) -> plan.Plan:
    steps = plan.Plan(3)
    of_input, of_weight, of_bias = wanted
    results = list(steps.conv2d_grads((of_input, of_weight), geometry, 0, 1, 2))
    if of_weight and dtype is not None:
        results[-1] = cast_step(steps, results[-1], dtype)
    if of_bias:
        results += steps.stitch(fused_programs.sums().code, 0, [])
    return steps.give(*results)


@functools.lru_cache(1)
def _sums() -> plan.Plan:
    steps = plan.Plan(1)
    return steps.give(*steps.stitch(fused_programs.sums().code, 0, []))


if aten.library is not None:
    aten.library.set_sums_plan(_sums().number)


def cast_step(steps: plan.Plan, tensor: int, dtype: torch.dtype) -> int:
    """Add a step that casts a 4-d tensor; returns the number of the result."""
    return steps.stitch(fused_programs.cast(dtype).code, tensor, [])[0]


def conv2d_grads(
    grad, input, weight, sizes, geometry, wanted: tuple[bool, bool, bool], dtype: torch.dtype | None = None
) -> list[Tensor | None]:
    """Gradients of input, weight and bias, given the gradient of the result; None for those not wanted.

    Args:
        sizes: sizes of input and weight; the size of a tensor that is given may be None.
        geometry: stride, padding, dilation and groups.
        dtype: the data type to which the weight's gradient is cast.
    """
    of_input, of_weight, of_bias = wanted
    if (
        input is None
        or weight is None
        or torch.is_grad_enabled()
        or needs_dispatcher((grad, input, weight))
        or (number := plan.geometry_number(*geometry)) is None
    ):
        grads = [
            conv2d_input_grad(sizes[0], weight, grad, *geometry) if of_input else None,
            conv2d_weight_grad(sizes[1], input, grad, *geometry) if of_weight else None,
            _bias_grad(grad) if of_bias else None,
        ]
        if of_weight and dtype is not None:
            grads[1] = grads[1].to(dtype)
        return grads
    results = plan.run(_grads(number, wanted, dtype), [grad, input, weight])
    return [results.pop(0) if is_wanted else None for is_wanted in wanted]


class _Plain(SingleLevelFunction):
    """Autograd node for the most common conv2d in training: input and weight require gradients, and nothing else needs
    the dispatcher. Applies the same rule with two operator calls. number: the packed geometry. cast: the cast of the
    weight under autocast."""

    @staticmethod
    def forward(ctx, input, weight, bias, geometry, number, cast):
        ctx.geometry, ctx.cast = geometry, cast
        if cast is not None:
            weight = weight.to(cast.dtype)
        if bias is not None and (dtype := autocast_type(bias, input.device)) is not None:
            bias = bias.to(dtype)
        ctx.save_for_backward(input, weight)
        return _forward(input, weight, bias, number)

    @staticmethod
    def backward(ctx, grad):
        input, weight = ctx.saved_tensors
        cast, wanted, dtype = ctx.cast, ctx.needs_input_grad[:3], None
        with without_autocast():
            if cast is not None:
                dtype = cast.weight.dtype
                weight = cast.linked(weight) if torch.is_grad_enabled() else weight
            grads = conv2d_grads(grad, input, weight, (input.shape, weight.shape), ctx.geometry, wanted, dtype)
        return *grads, None, None, None


_forward = _ops._conv2d.default
_apply_plain = _Plain.apply


def conv2d(input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    """Call the operator conv2d; geometry in pairs."""
    geometry = stride, padding, dilation, groups
    if needs_dispatcher((input, weight, bias)):
        return _conv2d(input, weight, bias, *geometry)
    grad = torch.is_grad_enabled()
    number = None
    if not grad or (input.requires_grad and weight.requires_grad):
        number = plan.geometry_number(*geometry)
    if grad and number is not None:
        (input,), cast = autocast_cast(input), CastWeight.of(input, weight)
        return _apply_plain(input, weight, bias, geometry, number, cast)
    input, weight, bias = autocast_cast(input, weight, bias)
    if number is not None:
        return _forward(input, weight, bias, number)
    with without_autocast():
        return _conv2d_of_any(input, weight, bias, *geometry)


def _contract(place: int, tensors: dict[int, Tensor], size, geometry) -> Tensor:
    """Derivative of the form with respect to argument `place`, of this size, given the two other arguments."""
    if place == Y:
        return _conv2d(tensors[X], tensors[W], None, *geometry)
    if place == X:
        return conv2d_input_grad(size, tensors[W], tensors[Y], *geometry)
    return conv2d_weight_grad(size, tensors[X], tensors[Y], *geometry)


# A composite of PyTorch operations, in Python because the stable ABI has no symbolic sizes.
def _bias_grad(grad_output: Tensor) -> Tensor:
    torch._check(
        grad_output.dim() == 4,
        lambda: (
            "reformer::conv2d_bias_grad: grad_output must have 4 dimensions, "
            f"got {grad_output.dim()} ({list(grad_output.shape)})"
        ),
    )
    return grad_output.sum((0, 2, 3))


_library.impl("conv2d_bias_grad", _bias_grad, "CompositeImplicitAutograd")


# --- vmap -------------------------------------------------------------------------------------------------------------
# A batch of problems is one problem with a larger batch (if the weight is shared) or with more groups (if not).


def _fold(tensor: Tensor, batch_dim: int | None, batch: int, into: int) -> Tensor:
    """Merge the vmapped dimension, outermost, into dimension `into` of the tensor without it."""
    tensor = tensor.expand(batch, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)
    return tensor.movedim(0, into).flatten(into, into + 1)


def _unfold(tensor: Tensor, batch: int, into: int) -> tuple[Tensor, int]:
    return tensor.unflatten(into, (batch, tensor.shape[into] // batch)), into


@torch.library.register_vmap("reformer::conv2d", lib=_library)
def _(info, in_dims, input, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    batch, shared_weight = info.batch_size, in_dims[1] is None
    bias_dim = None if bias is None else in_dims[2]  # in_dims ends with the given arguments
    fused_bias = bias if shared_weight and bias_dim is None else None
    into = 0 if shared_weight else 1
    folded = _fold(input, in_dims[0], batch, into)
    if not shared_weight:
        weight, groups = _fold(weight, in_dims[1], batch, 0), groups * batch
    result, dim = _unfold(_ops.conv2d(folded, weight, fused_bias, stride, padding, dilation, groups), batch, into)
    if bias is not None and fused_bias is None:
        per_problem = bias.expand(batch, -1) if bias_dim is None else bias.movedim(bias_dim, 0)
        shape = (batch, 1, -1, 1, 1) if dim == 0 else (1, batch, -1, 1, 1)
        result = result + per_problem.reshape(shape)
    return result, dim


@torch.library.register_vmap("reformer::conv2d_input_grad", lib=_library)
def _(info, in_dims, input_size, weight, grad_output, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    batch, shared_weight = info.batch_size, in_dims[1] is None
    into = 0 if shared_weight else 1
    size = list(input_size)
    size[into] *= batch
    folded = _fold(grad_output, in_dims[2], batch, into)
    if not shared_weight:
        weight, groups = _fold(weight, in_dims[1], batch, 0), groups * batch
    return _unfold(_ops.conv2d_input_grad(size, weight, folded, stride, padding, dilation, groups), batch, into)


@torch.library.register_vmap("reformer::conv2d_weight_grad", lib=_library)
def _(info, in_dims, weight_size, input, grad_output, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    batch = info.batch_size
    size = [weight_size[0] * batch, *weight_size[1:]]
    operands = _fold(input, in_dims[1], batch, 1), _fold(grad_output, in_dims[2], batch, 1)
    return _unfold(_ops.conv2d_weight_grad(size, *operands, stride, padding, dilation, groups * batch), batch, 0)


@torch.library.register_vmap("reformer::conv2d_bias_grad", lib=_library)
def _(info, in_dims, grad_output):
    return grad_output.movedim(in_dims[0], 0).sum((1, 3, 4)), 0


# --- autocast ---------------------------------------------------------------------------------------------------------


def _register_autocast(device: str) -> None:
    def kernel(input, weight, bias=None, *geometry):
        tensors = autocast_cast(input, weight, bias)
        with without_autocast():
            return _conv2d(*tensors, *geometry)

    _library.impl(_conv2d, kernel, f"Autocast{device}")


_register_autocast("CPU")
_register_autocast("CUDA")
