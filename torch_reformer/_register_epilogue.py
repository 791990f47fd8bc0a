"""What PyTorch needs to know of the operators that run epilogue programs: autograd and autocast.

A program's derivative is a program again, of the outputs' gradients (epilogue/derivative.py). So the backward is one
pass over memory, by the same operators, and every order of differentiation is the same rule applied once more.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._C import _AutoDispatchBelowAutograd
from torch.autograd import forward_ad

from . import _autocast, _fake, _kept, _register, _rows, _unfused
from ._unfused import decoded, unfused, unfused_conv2d
from .epilogue.derivative import derivative
from .epilogue.program import Program

_library = torch.library.Library("reformer", "IMPL")
_unfused.register(_library)
_ops = torch.ops.reformer
_stitch = _ops.stitch.default
_conv2d_epilogue = _ops.conv2d_epilogue.default


# --- below autograd ---------------------------------------------------------------------------------------------------
# As sequences (_kept.py) of one step, but where somebody watches the operators, or the public one has to say what is
# wrong with its arguments.


@functools.lru_cache(4096)
def _alone(
    code: tuple[int, ...], tensors: int, geometry: int = -1, cast: torch.dtype | None = None
) -> _kept.Sequence | None:
    """The program of this code after a convolution of this geometry, or, if that is -1, after nothing. cast: of the
    weight, which is the last result then."""
    operands = 1 if geometry < 0 else 2
    sequence = _kept.Sequence(operands + tensors)
    places = range(operands, operands + tensors)
    try:
        if geometry < 0:
            sequence.give(*sequence.stitch(code, 0, places))
        elif cast is None:
            sequence.give(*sequence.conv2d(code, geometry, 0, 1, places))
        else:
            weight = _register.cast_step(sequence, 1, cast)
            sequence.give(*sequence.conv2d(code, geometry, 0, weight, places), weight)
        return sequence if sequence.number >= 0 else None
    except (IndexError, ValueError):
        return None


def run_stitch(acc: Tensor, tensors: Sequence[Tensor], code: tuple[int, ...]) -> list[Tensor]:
    given = [acc, *tensors]
    sequence = None if _register.needs_dispatcher(given) else _alone(code, len(tensors))
    if sequence is not None:
        return _kept.run(sequence, given)
    with _AutoDispatchBelowAutograd():
        return _stitch(acc, tensors, code)


def run_conv2d(
    input: Tensor, weight: Tensor, tensors: Sequence[Tensor], code: tuple[int, ...], geometry, cast: torch.dtype | None
) -> tuple[list[Tensor], Tensor]:
    """The program's outputs, and the weight that the convolution had: cast, if it is said to what. geometry: stride,
    padding, dilation and groups."""
    given = [input, weight, *tensors]
    in_pairs = len(geometry[0]) == len(geometry[1]) == len(geometry[2]) == 2
    if in_pairs and not _register.needs_dispatcher(given):
        sequence = _alone(code, len(tensors), _kept.geometry_number(*geometry), cast)
        if sequence is not None:
            results = _kept.run(sequence, given)
            return results, weight if cast is None else results.pop()
    weight = weight if cast is None else weight.to(cast)
    with _AutoDispatchBelowAutograd():
        return _conv2d_epilogue(input, weight, tensors, code, *geometry), weight


# --- autograd ---------------------------------------------------------------------------------------------------------


def _has_batched(grads: Sequence[Tensor | None]) -> bool:
    """Whether autograd.grad's is_grads_batched has made one of them: the vmap that does so knows no operators that take
    lists of tensors."""
    is_batched = _register.is_batched
    return any([grad is not None and is_batched(grad) for grad in grads])


_NARROW = {torch.float16, torch.bfloat16}


class _Plan:
    """What the forward keeps for the backward of a program, and what the backward makes of it; for all calls alike.

    needed: whether gradients of acc and of each input are. acc_is_there: the backward can read acc."""

    def __init__(self, program: Program, needed: tuple[bool, ...], acc_is_there: bool):
        self.names, self.kinds = ("acc", *program.inputs), tuple(program.inputs.values())
        self.wanted = tuple(name for name, need in zip(self.names, needed, strict=True) if need)
        if not program.has_acc:
            self.wanted = tuple(name for name in self.wanted if name != "acc")
        self.acc_is_there = acc_is_there
        rule = derivative(program, self.wanted, None, acc_is_there)
        self.kept = rule.forward  # the program, with what it keeps after its own outputs
        self.scalars = [name for name in self.wanted if program.inputs.get(name) == "scalar"]
        self.constant = [i for i, output in enumerate(self.kept.outputs) if not output.has_derivative]
        self.stored = next((i for i, output in enumerate(self.kept.outputs) if output.is_by_element), None)
        # What is saved: (kind, place) with the place of an input among the tensors, or of an output.
        self.saved = [
            (kind, self.names.index(which) - 1 if kind == "input" else which[0] if isinstance(which, tuple) else which)
            for kind, which in rule.sources
            if kind != "grad"
        ]
        self.saved = list(dict.fromkeys(self.saved))
        self._rules: dict = {}

    def save(self, ctx, acc: Tensor | None, tensors, outputs, others=()) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(outputs[i] for i in self.constant))
        found = {"input": tensors, "output": outputs, "acc": (acc,)}
        ctx.save_for_backward(*others, *(found[kind][place] for kind, place in self.saved))
        ctx.scalar_shapes = {name: tensors[self.names.index(name) - 1].shape for name in self.scalars}
        ctx.wide = ()
        if ctx.dtype in _NARROW:
            ctx.wide = tuple([tensor.dtype == torch.float32 for tensor in tensors])
        ctx.plan = self

    def of_rows(self, rows: _rows.Rows, saved: Sequence[Tensor]) -> list[Tensor]:
        """What was saved of a matrix product, as a convolution has it."""
        return [
            rows.operand(tensor, self.kinds[place])
            if kind == "input"
            else rows.of_result(tensor, self.kept.outputs[place])
            for (kind, place), tensor in zip(self.saved, saved, strict=True)
        ]

    def _rule(self, given: tuple[int, ...], wide: tuple[bool, ...]):
        """The backward for the outputs whose gradients are given, and where its inputs come from. wide: which of the
        call's tensors are fp32 where the result is not."""
        names = self.names[1 : 1 + len(wide)]
        full = {
            name for name, kind, is_wide in zip(names, self.kinds, wide, strict=False) if is_wide and kind == "full"
        }
        rule = derivative(self.kept, self.wanted, given, self.acc_is_there, frozenset(full))
        assert rule.backward is None or rule.forward == self.kept, "the backward needs what was not kept"
        sources = []
        for kind, which in rule.sources:
            which, part = which if isinstance(which, tuple) else (which, None)
            place = self.names.index(which) - 1 if kind == "input" else which
            sources.append((kind, place if kind == "grad" else self.saved.index((kind, place)), part))
        return rule.backward, sources, rule.wanted, rule.passed

    def gradients(self, ctx, saved: list[Tensor], grads) -> list[Tensor | None]:
        """Of acc and of each input, from those of the outputs; None for those that are 0."""
        key = tuple([i for i, grad in enumerate(grads) if grad is not None]), ctx.wide
        if key not in self._rules:
            self._rules[key] = self._rule(*key)
        backward, sources, wanted, passed = self._rules[key]
        found = [grads[passed[name]] if name in passed else None for name in self.names]
        if backward is None:
            return found
        tensors = []
        for kind, place, part in sources:
            tensor = grads[place] if kind == "grad" else saved[place]
            tensors.append(tensor if part is None else tensor[part])
        # The backward has no acc: only the size, data type and layout of this one matter, and saved tensors have the
        # forward's.
        like = next((t for t in [*saved, *tensors] if t.shape == ctx.size and t.dtype == ctx.dtype), None)
        if like is None and (full := next((t for t in tensors if t.shape == ctx.size), None)) is not None:
            like = torch.empty_like(full, dtype=ctx.dtype)  # an expanded tensor would be copied, in another layout
        if like is None:
            like = tensors[0].new_empty(1, dtype=ctx.dtype).expand(ctx.size)
        results = (unfused if _has_batched(grads) else stitch)(like, tensors, backward.code)
        for name, place in wanted.items():
            found[self.names.index(name)] = results[place]
        for name, shape in ctx.scalar_shapes.items():
            place = self.names.index(name)
            found[place] = None if found[place] is None else found[place].reshape(shape)
        return found


@functools.lru_cache(1024)
def _plan(op: str, code: tuple[int, ...], needed: tuple[bool, ...], acc_is_there: bool) -> _Plan:
    return _Plan(decoded(op, code), needed, acc_is_there)


class _Stitch(torch.autograd.Function):
    """Gives what the program gives, and after it what is kept for the backward."""

    @staticmethod
    def forward(ctx, code, acc, *tensors):
        plan = _plan("stitch", tuple(code), ctx.needs_input_grad[1:], True)
        ctx.size, ctx.dtype = acc.shape, acc.dtype
        outputs = run_stitch(acc, tensors, plan.kept.code)
        plan.save(ctx, acc, tensors, outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.plan.gradients(ctx, ctx.saved_tensors, grads)


class _Conv2dEpilogue(torch.autograd.Function):
    """The same after a convolution, or the matrix product of these rows."""

    @staticmethod
    def forward(ctx, code, geometry, cast, rows, input, weight, *tensors):
        of_input, of_weight, *of_tensors = ctx.needs_input_grad[4:]
        plan = _plan("conv2d_epilogue", tuple(code), (of_input or of_weight, *of_tensors), False)
        pictures, filter, operands = input, weight, tensors
        if rows is not None:
            pictures, filter = rows.picture(input), _rows.filter_of(weight)
            operands = list(map(rows.operand, tensors, plan.kinds))
        ctx.geometry, ctx.rows, ctx.cast, ctx.dtype = geometry, rows, cast, input.dtype
        ctx.sizes = pictures.shape, filter.shape
        outputs, copy = run_conv2d(pictures, filter, operands, plan.kept.code, geometry, cast and cast.dtype)
        if plan.stored is not None:
            ctx.size = outputs[plan.stored].shape
        else:
            ctx.size = torch.Size(_fake.output_size("conv2d_epilogue", *ctx.sizes, *geometry))
        if rows is not None:
            # For autograd they are no views, as detach() would be: of those nobody may change one in place.
            outputs = [output.data for output in rows.results(outputs, plan.kept.outputs)]
        weight = weight if cast is None else copy
        plan.save(ctx, None, tensors, outputs, (input if of_weight else None, weight if of_input else None))
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        input, filter, *saved = ctx.saved_tensors
        plan, rows, cast = ctx.plan, ctx.rows, ctx.cast
        wanted = filter is not None, input is not None, False
        if cast is not None and filter is not None and torch.is_grad_enabled():
            filter = cast.linked(filter)
        if rows is not None:
            input = None if input is None else rows.picture(input)
            filter = None if filter is None else filter.reshape(ctx.sizes[1])
            saved = plan.of_rows(rows, saved)
            grads = list(map(rows.of_result, grads, plan.kept.outputs))
        grad, *of_tensors = plan.gradients(ctx, saved, grads)
        of_input = of_weight = None
        if grad is not None:
            dtype = None if cast is None else cast.weight.dtype
            of_input, of_weight, _ = _register.conv2d_grads(grad, input, filter, ctx.sizes, ctx.geometry, wanted, dtype)
        if rows is not None:
            of_input = None if of_input is None else rows.matrix(of_input)
            of_weight = None if of_weight is None else of_weight[:, :, 0, 0]
            of_tensors = map(rows.own, of_tensors, plan.kinds)
        return None, None, None, None, of_input, of_weight, *of_tensors


_apply_stitch = super(torch.autograd.Function, _Stitch).apply
_apply_conv2d = super(torch.autograd.Function, _Conv2dEpilogue).apply


def _needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@functools.lru_cache(1024)
def _has_max(op: str, code: tuple[int, ...]) -> bool:
    """Whether its gradient has no program, so that PyTorch's own operations have to be seen."""
    return any(output.kind == "max" for output in decoded(op, code).outputs)


def is_transformed() -> bool:
    """Whether PyTorch's own operations have to be seen, which know every transform."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _stitch_kernel(acc, tensors, program):
    if is_transformed():
        return unfused(acc, tensors, program)
    if _needs_grad(acc, *tensors):
        if _has_max("stitch", tuple(program)):
            return unfused(acc, tensors, program)
        return list(_apply_stitch(program, acc, *tensors))[: program[2]]
    return run_stitch(acc, tensors, tuple(program))


def _conv2d_kernel(input, weight, tensors, program, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    geometry = tuple(stride), tuple(padding), tuple(dilation), groups  # from the dispatcher they are lists
    return _conv2d_and(input, weight, tensors, program, geometry)


def _conv2d_and(input, weight, tensors, program, geometry, cast: _autocast.CastWeight | None = None) -> list[Tensor]:
    if not is_transformed() and not _needs_grad(input, weight, *tensors):
        return run_conv2d(input, weight, tensors, tuple(program), geometry, cast and cast.dtype)[0]
    if is_transformed() or _has_max("conv2d_epilogue", tuple(program)):
        return unfused_conv2d(input, weight if cast is None else weight.to(cast.dtype), tensors, program, *geometry)
    return list(_apply_conv2d(program, geometry, cast, None, input, weight, *tensors))[: program[2]]


_library.impl(_stitch, _stitch_kernel, "Autograd")
_library.impl(_conv2d_epilogue, _conv2d_kernel, "Autograd")


# --- autocast ---------------------------------------------------------------------------------------------------------


def _register_autocast(device: str) -> None:
    """The convolution's operands are cast as those of conv2d are. The program's tensors stay: it reads any data type,
    and computes in fp32."""

    def kernel(input, weight, *rest):
        input, weight = _autocast.autocast_cast(input, weight)
        with _autocast.without_autocast():
            return _conv2d_epilogue(input, weight, *rest)

    _library.impl(_conv2d_epilogue, kernel, f"Autocast{device}")


_register_autocast("CPU")
_register_autocast("CUDA")


# --- calls ------------------------------------------------------------------------------------------------------------
# As in _register.py: where the dispatcher would do no more than call the Autograd kernel, that is called at once.


def _is_under_functorch() -> bool:
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def stitch(acc, tensors, program):
    if _register.needs_dispatcher((acc, *tensors)):
        return (unfused if _is_under_functorch() else _stitch)(acc, tensors, program)
    return _stitch_kernel(acc, tensors, program)


def conv2d_epilogue(input, weight, tensors, program, stride, padding, dilation, groups):
    geometry = stride, padding, dilation, groups
    if _register.needs_dispatcher((input, weight, *tensors)):
        return (unfused_conv2d if _is_under_functorch() else _conv2d_epilogue)(
            input, weight, tensors, program, *geometry
        )
    cast = _autocast.CastWeight.of(input, weight) if weight.dim() == 4 else None  # others the convolution refuses
    (input,) = _autocast.autocast_cast(input)
    with _autocast.without_autocast():
        return _conv2d_and(input, weight, tensors, program, geometry, cast)


_POINTWISE = (1, 1), (0, 0), (1, 1), 1


def linear_epilogue(
    input: Tensor, weight: Tensor, tensors: Sequence[Tensor], program: Program, rows: _rows.Rows
) -> list[Tensor]:
    """conv2d_epilogue of a matrix product. Where nobody looks on, autograd knows nothing of the convolution."""
    given = input, weight, *tensors
    if not _register.needs_dispatcher(given) and _needs_grad(*given) and not _has_max("linear_epilogue", program.code):
        cast = _autocast.CastWeight.of(input, weight)
        (input,) = _autocast.autocast_cast(input)
        with _autocast.without_autocast():
            return list(_apply_conv2d(program.code, _POINTWISE, cast, rows, input, weight, *tensors))[: program.code[2]]
    operands = list(map(rows.operand, tensors, program.inputs.values()))
    results = conv2d_epilogue(rows.picture(input), _rows.filter_of(weight), operands, program.code, *_POINTWISE)
    return rows.results(results, program.outputs)


def run(sequence: _kept.Sequence, tensors: list[Tensor]) -> list[Tensor]:
    """What a sequence gives: in one call, or by the public operators where autograd or others watch them."""
    if not torch.is_grad_enabled() and not _register.needs_dispatcher(tensors):
        return _kept.run(sequence, tensors)
    there = list(tensors)
    for step in sequence.steps:
        there += _one_by_one(step, [there[i] for i in step.inputs], [there[i] for i in step.into])
    return [there[i] for i in sequence.outputs]


def _one_by_one(step: _kept.Step, inputs: list[Tensor], into: list[Tensor]) -> Sequence[Tensor]:
    if step.kind == "parts":
        return inputs[0].unbind()
    if step.kind == "conv2d":
        return conv2d_epilogue(inputs[0], inputs[1], inputs[2:], step.what, *_kept.geometry_of(step.geometry))
    if step.kind == "stitch":
        results = (unfused if _has_batched(inputs) else stitch)(inputs[0], inputs[1:], step.what)
        with torch.no_grad():
            for tensor, result in zip(into, results[len(results) - len(into) :], strict=True):
                tensor.copy_(result)
        return results
    grad, input, weight = inputs
    wanted = bool(step.what[0] & 1), bool(step.what[0] & 2), False
    sizes, geometry = (input.shape, weight.shape), _kept.geometry_of(step.geometry)
    grads = _register.conv2d_grads(grad, input, weight, sizes, geometry, wanted)
    return [each for each in grads if each is not None]
