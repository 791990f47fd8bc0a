"""Operator conv2d_epilogue: a convolution, or a matrix product, followed by a program on its result. Registered for
autograd and autocast, and with a fast path for calls from this package."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from ..program.program import Program
from ..runtime import aten
from ..runtime import plan as plans
from . import conv, fake
from .autocast import CastWeight, autocast_cast
from .backward_rule import backward_rule, lacks_derivative
from .dispatch import (
    SingleLevelFunction,
    in_eager_functorch,
    is_transformed,
    needs_dispatcher,
    needs_grad,
    without_autocast,
)
from .fallback import unfused_conv2d
from .fused_operator import MOST, program_operator
from .one_step import run_conv2d
from .rows import Rows, filter_of
from .stitch import stitch

_library = torch.library.Library("reformer", "IMPL")
_conv2d_epilogue = torch.ops.reformer.conv2d_epilogue.default


class _Conv2dEpilogue(SingleLevelFunction):
    """Autograd node of a program after a convolution, or after the matrix product given by `rows`. Its outputs are the
    program's, followed by the values saved for the backward."""

    @staticmethod
    def forward(ctx, code, geometry, cast, rows, input, weight, *tensors):
        of_input, of_weight, *of_tensors = ctx.needs_input_grad[4:]
        rule = backward_rule(
            "conv2d_epilogue", tuple(code), (of_input or of_weight, *of_tensors), False, input.dtype == torch.float64
        )
        images, filter, operands = input, weight, tensors
        if rows is not None:
            images, filter = rows.image(input), filter_of(weight)
            operands = list(map(rows.operand, tensors, rule.kinds))
        ctx.geometry, ctx.rows, ctx.cast, ctx.dtype = geometry, rows, cast, input.dtype
        ctx.sizes = images.shape, filter.shape
        outputs, copy = run_conv2d(images, filter, operands, rule.forward.code, geometry, cast and cast.dtype)
        if rule.stored is not None:
            ctx.size = outputs[rule.stored].shape
        else:
            ctx.size = torch.Size(fake.output_size("conv2d_epilogue", *ctx.sizes, *geometry))
        if rows is not None:
            # .data, not detach(): autograd would take detached tensors for views, which nobody may change in place.
            outputs = [output.data for output in rows.results(outputs, rule.forward.outputs)]
        weight = weight if cast is None else copy
        rule.save(ctx, None, tensors, outputs, (input if of_weight else None, weight if of_input else None))
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        input, filter, *saved = ctx.saved_tensors
        rule, rows, cast = ctx.rule, ctx.rows, ctx.cast
        wanted = filter is not None, input is not None, False
        if cast is not None and filter is not None and torch.is_grad_enabled():
            filter = cast.linked(filter)
        if rows is not None:
            input = None if input is None else rows.image(input)
            filter = None if filter is None else filter.reshape(ctx.sizes[1])
            saved = rule.of_rows(rows, saved)
            grads = list(map(rows.conv_result, grads, rule.forward.outputs))
        grad, *of_tensors = rule.gradients(ctx, saved, grads, stitch)
        of_input = of_weight = None
        if grad is not None:
            dtype = None if cast is None else cast.weight.dtype
            of_input, of_weight, _ = conv.conv2d_grads(grad, input, filter, ctx.sizes, ctx.geometry, wanted, dtype)
        if rows is not None:
            of_input = None if of_input is None else rows.matrix(of_input)
            of_weight = None if of_weight is None else of_weight[:, :, 0, 0]
            of_tensors = map(rows.product_operand, of_tensors, rule.kinds)
        return None, None, None, None, of_input, of_weight, *of_tensors


_apply = _Conv2dEpilogue.apply


def _derive(rule, operator, saves_for, grads, saved, originals, wanted, sizes, result_sizes):
    """Gradients by differentiable operators, as fused_operator.py needs them."""
    saved, names = list(saved), rule.names[1:]
    filter = saved.pop(0)
    input = saved.pop(0) if saves_for[1] else None
    if originals and torch.is_grad_enabled():
        filter = CastWeight(originals[0], filter.dtype).linked(filter)
    input_size, size, rows = sizes[0], result_sizes[rule.stored], None
    if operator.of_rows:
        rows = Rows(size[:-1])
        n, h, w = rows.positions
        input_size, size = (n, filter.shape[1], h, w), (n, filter.shape[0], h, w)
        input = None if input is None else rows.image(input)
        filter, saved = filter_of(filter), rule.of_rows(rows, saved)
        grads = list(map(rows.conv_result, grads, rule.forward.outputs))
    shapes = {name: torch.Size(sizes[2 + names.index(name)]) for name in rule.scalars}
    ctx = SimpleNamespace(wide=operator.wide(), size=torch.Size(size), dtype=operator.types[0], scalar_shapes=shapes)
    of_input = of_weight = None
    with without_autocast():
        grad, *of_tensors = rule.gradients(ctx, saved, grads, stitch)
        if grad is not None:
            dtype = None if operator.cast is None else operator.cast[1]
            geometry, of_both = plans.geometry_of(operator.geometry), (*saves_for[:2], False)
            both = input_size, filter.shape
            of_input, of_weight, _ = conv.conv2d_grads(grad, input, filter, both, geometry, of_both, dtype)
        if rows is not None:
            of_input = None if of_input is None else rows.matrix(of_input)
            of_weight = None if of_weight is None else of_weight[:, :, 0, 0]
            of_tensors = map(rows.product_operand, of_tensors, rule.kinds)
    return [each if want else None for each, want in zip([of_input, of_weight, *of_tensors], wanted, strict=True)]


def _by_library(
    input, weight, tensors, program, geometry, cast: CastWeight | None, of_rows: bool = False
) -> list[Tensor] | None:
    """Run as one autograd node in C++; None where that is not possible."""
    if aten.library is None or lacks_derivative("conv2d_epilogue", program):
        return None
    if not len(geometry[0]) == len(geometry[1]) == len(geometry[2]) == 2:
        return None
    number = plans.geometry_number(*geometry)
    if number is None or len(tensors) + 2 > MOST:
        return None
    operands = [input, weight, *tensors]
    types = None if cast is None else (cast.dtype, weight.dtype)
    operator = program_operator(program, tuple([tensor.dtype for tensor in operands]), number, types, of_rows, _derive)
    return operator(operands)


def _conv2d_kernel(input, weight, tensors, program, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    geometry = tuple(stride), tuple(padding), tuple(dilation), groups  # the dispatcher passes lists
    return _conv2d_and(input, weight, tensors, program, geometry)


def _conv2d_and(input, weight, tensors, program, geometry, cast: CastWeight | None = None) -> list[Tensor]:
    if not is_transformed() and not needs_grad(input, weight, *tensors):
        dtype = None if cast is None else cast.dtype
        return run_conv2d(input, weight, tensors, tuple(program), geometry, dtype)[0]
    if is_transformed() or lacks_derivative("conv2d_epilogue", tuple(program)):
        return unfused_conv2d(input, weight if cast is None else weight.to(cast.dtype), tensors, program, *geometry)
    return list(_apply(program, geometry, cast, None, input, weight, *tensors))[: program[2]]


_library.impl(_conv2d_epilogue, _conv2d_kernel, "Autograd")


def _register_autocast(device: str) -> None:
    """Register the autocast kernel. The convolution's operands are cast as those of conv2d. The program's tensors are
    not: it reads any data type, and computes in fp32."""

    def kernel(input, weight, *rest):
        input, weight = autocast_cast(input, weight)
        with without_autocast():
            return _conv2d_epilogue(input, weight, *rest)

    _library.impl(_conv2d_epilogue, kernel, f"Autocast{device}")


_register_autocast("CPU")
_register_autocast("CUDA")


def conv2d_epilogue(input, weight, tensors, program, stride, padding, dilation, groups):
    geometry = stride, padding, dilation, groups
    if needs_dispatcher((input, weight, *tensors)):
        return (unfused_conv2d if in_eager_functorch() else _conv2d_epilogue)(
            input, weight, tensors, program, *geometry
        )
    cast = CastWeight.of(input, weight) if weight.dim() == 4 else None  # the convolution rejects other ranks
    (input,) = autocast_cast(input)
    results = _by_library(input, weight, tensors, program, geometry, cast)
    if results is not None:
        return results
    with without_autocast():
        return _conv2d_and(input, weight, tensors, program, geometry, cast)


_POINTWISE = (1, 1), (0, 0), (1, 1), 1


def linear_epilogue(
    input: Tensor, weight: Tensor, tensors: Sequence[Tensor], program: Program, rows: Rows
) -> list[Tensor]:
    """conv2d_epilogue of a matrix product. On the eager fast path autograd does not see the convolution that computes
    it."""
    all_tensors = input, weight, *tensors
    if (
        not needs_dispatcher(all_tensors)
        and needs_grad(*all_tensors)
        and not lacks_derivative("linear_epilogue", program.code)
    ):
        cast = CastWeight.of(input, weight)
        (input,) = autocast_cast(input)
        results = _by_library(input, weight, tensors, program.code, _POINTWISE, cast, of_rows=True)
        if results is not None:
            return results
        with without_autocast():
            return list(_apply(program.code, _POINTWISE, cast, rows, input, weight, *tensors))[: program.code[2]]
    operands = list(map(rows.operand, tensors, program.kinds))
    results = conv2d_epilogue(rows.image(input), filter_of(weight), operands, program.code, *_POINTWISE)
    return rows.results(results, program.outputs)
