"""Differentiation of programs: what the forward saves, and the program that the backward runs.

The derivative of a program is another program, which reads the gradients of the outputs (program/derivative.py). So the
backward is one pass over memory by the same operators, and derivatives of every order follow from one rule.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..program.derivative import derivative
from ..program.operations import WITHOUT_DERIVATIVE
from ..program.program import Program
from ..runtime.dtypes import NARROW
from .dispatch import has_batched
from .fallback import decoded, unfused
from .rows import Rows


class BackwardRule:
    """Rule for the backward of a program, shared by all calls: what the forward saves, and how gradients are computed
    from it.

    needed: for acc and each input, True if its gradient is needed. acc_is_there: the backward can read acc. is_double:
    the result is fp64.
    """

    def __init__(self, program: Program, needed: tuple[bool, ...], acc_is_there: bool, is_double: bool):
        self.names, self.kinds = ("acc", *program.names), program.kinds
        self.wanted = tuple(name for name, need in zip(self.names, needed, strict=True) if need)
        if not program.has_acc:
            self.wanted = tuple(name for name in self.wanted if name != "acc")
        self.acc_is_there, self.is_double = acc_is_there, is_double
        rule = derivative(program, self.wanted, None, acc_is_there, is_double=is_double)
        self.forward = rule.forward  # the program; the saved values follow its own outputs
        self.scalars = [name for name in self.wanted if program.inputs.get(name) == "scalar"]
        self.constant = [i for i, output in enumerate(self.forward.outputs) if not output.has_derivative]
        self.stored = next((i for i, output in enumerate(self.forward.outputs) if output.is_by_element), None)
        # Saved tensors as (kind, place): the place of an input among the tensors, or of an output among the outputs.
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
        by_kind = {"input": tensors, "output": outputs, "acc": (acc,)}
        ctx.save_for_backward(*others, *(by_kind[kind][place] for kind, place in self.saved))
        ctx.scalar_shapes = {name: tensors[self.names.index(name) - 1].shape for name in self.scalars}
        ctx.wide = ()
        if ctx.dtype in NARROW:
            ctx.wide = tuple([tensor.dtype == torch.float32 for tensor in tensors])
        ctx.rule = self

    def of_rows(self, rows: Rows, saved: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Convert the saved tensors of a matrix product to those of the convolution that computes it."""
        return [
            rows.operand(tensor, self.kinds[place])
            if kind == "input"
            else rows.conv_result(tensor, self.forward.outputs[place])
            for (kind, place), tensor in zip(self.saved, saved, strict=True)
        ]

    def of_grads(self, given: tuple[int, ...], wide: tuple[bool, ...]):
        """Backward for a set of given output gradients.

        Args:
            given: the outputs whose gradients are given.
            wide: for each tensor of the call, True if it is fp32 where the result is not.

        Returns:
            the backward's program (None if there is nothing to compute); the sources of its inputs: gradients, saved
            tensors or parts of them; by name, the output of the backward that is an input's gradient; and, by name, the
            given gradient that is an input's gradient itself.
        """
        key = given, wide
        if key not in self._rules:
            self._rules[key] = self._of_grads(given, wide)
        return self._rules[key]

    def _of_grads(self, given: tuple[int, ...], wide: tuple[bool, ...]):
        names = self.names[1 : 1 + len(wide)]
        full = {
            name for name, kind, is_wide in zip(names, self.kinds, wide, strict=False) if is_wide and kind == "full"
        }
        rule = derivative(self.forward, self.wanted, given, self.acc_is_there, frozenset(full), self.is_double)
        assert rule.backward is None or rule.forward == self.forward, "the backward needs what was not saved"
        sources = []
        for kind, which in rule.sources:
            which, part = which if isinstance(which, tuple) else (which, None)
            place = self.names.index(which) - 1 if kind == "input" else which
            sources.append((kind, place if kind == "grad" else self.saved.index((kind, place)), part))
        return rule.backward, sources, rule.wanted, rule.passed

    def gradients(self, ctx, saved: list[Tensor], grads, stitch) -> list[Tensor | None]:
        """Gradients of acc and of each input, given the gradients of the outputs; None for those that are 0. stitch:
        the function that runs the backward's program."""
        given = tuple([i for i, grad in enumerate(grads) if grad is not None])
        backward, sources, wanted, passed = self.of_grads(given, ctx.wide)
        gradients = [grads[passed[name]] if name in passed else None for name in self.names]
        if backward is None:
            return gradients
        tensors = []
        for kind, place, part in sources:
            tensor = grads[place] if kind == "grad" else saved[place]
            tensors.append(tensor if part is None else tensor[part])
        # The backward does not read acc: only the size, data type and layout of `like` matter. Saved tensors have the
        # layout of the forward.
        like = next((t for t in [*saved, *tensors] if t.shape == ctx.size and t.dtype == ctx.dtype), None)
        if like is None and (full := next((t for t in tensors if t.shape == ctx.size), None)) is not None:
            like = torch.empty_like(full, dtype=ctx.dtype)  # an expanded tensor would be copied into another layout
        if like is None:
            like = tensors[0].new_empty(1, dtype=ctx.dtype).expand(ctx.size)
        results = (unfused if has_batched(grads) else stitch)(like, tensors, backward.code)
        for name, place in wanted.items():
            gradients[self.names.index(name)] = results[place]
        for name, shape in ctx.scalar_shapes.items():
            place = self.names.index(name)
            gradients[place] = None if gradients[place] is None else gradients[place].reshape(shape)
        return gradients


@functools.lru_cache(512)
def backward_rule(
    op: str, code: tuple[int, ...], needed: tuple[bool, ...], acc_is_there: bool, is_double: bool
) -> BackwardRule:
    return BackwardRule(decoded(op, code), needed, acc_is_there, is_double)


@functools.lru_cache(512)
def lacks_derivative(op: str, code: tuple[int, ...]) -> bool:
    """True if no program computes this program's gradient, so that autograd has to see PyTorch's own operations."""
    program = decoded(op, code)
    kinds = [*(output.kind for output in program.outputs), *(node.op for node in program.nodes)]
    has_heights = any(output.per == "height" for output in program.outputs)
    return has_heights or not {*WITHOUT_DERIVATIVE, "table", "mapped"}.isdisjoint(kinds)
