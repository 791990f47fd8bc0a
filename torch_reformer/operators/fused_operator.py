"""Programs, with or without a convolution before them, as one autograd node in C++ (csrc/aten/fused_operator.h): one
plan for the forward and one for the backward, on the eager fast path. The rules are those of BackwardRule."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..runtime import aten
from ..runtime import plan as plans
from ..runtime.dtypes import NARROW
from . import conv, one_step
from .backward_rule import BackwardRule, backward_rule

MOST = 60  # tensors or results: a set of them is stored as the bits of one number


def flags(number: int, count: int) -> tuple[bool, ...]:
    """Lowest `count` bits of a number."""
    return tuple([bool(number >> i & 1) for i in range(count)])


def numbers(number: int) -> list[int]:
    """Positions of the bits that are set."""
    return [i for i in range(number.bit_length()) if number >> i & 1]


class _ProgramOperator:
    """Program with this code for tensors of these data types: acc (or input and weight), then the program's tensors.

    geometry: of the convolution before the program, packed; or None. cast: the data types of the weight's copy and of
    the weight, if it is cast. of_rows: True if the convolution is a matrix product. derive(rule, ...): computes the
    gradients by differentiable operators.
    """

    def __init__(
        self, code, types: tuple[torch.dtype, ...], geometry: int | None, cast, of_rows: bool, derive: Callable
    ):
        self.code, self.types, self.geometry, self.cast, self.derive = code, types, geometry, cast, derive
        self.of_rows = of_rows
        self.operands = 1 if geometry is None else 2
        self.is_double = types[0] == torch.float64
        self.op = "stitch" if geometry is None else "conv2d_epilogue"

    def rule(self, wanted: tuple[bool, ...]) -> BackwardRule:
        operands, tensors = wanted[: self.operands], wanted[self.operands :]
        return backward_rule(self.op, self.code, (any(operands), *tensors), self.geometry is None, self.is_double)

    def forward(self, code) -> plans.Plan | None:
        geometry = -1 if self.geometry is None else self.geometry
        return one_step.alone(code, len(self.types) - self.operands, geometry, self.cast and self.cast[0])

    def write(self, number: int):
        """Forward and backward for tensors of which those in the bit set `number` require gradients; None if Python has
        to do it."""
        wanted, count = flags(number, len(self.types)), len(self.types)
        rule = self.rule(wanted)
        plan = self.forward(rule.forward.code if number else self.code)
        if plan is None or (number and (rule.stored is None or rule.stored in rule.constant)):
            return None
        if not number:
            outputs = self.code[2]
            return aten.library.Differentiated(
                plan, outputs, [True] * outputs, [], [], self.forms(rule, outputs), _never, _never
            )
        outputs = len(rule.forward.outputs)
        if outputs > MOST:
            return None
        places = {"input": self.operands, "output": count, "acc": 0}
        saved, originals = [places[kind] + (place or 0) for kind, place in rule.saved], []
        if self.geometry is not None:
            # The weight is saved for its size, too. An input that is only differentiated is not saved.
            weight = 1 if self.cast is None else count + outputs
            saved = [weight, *([0] if wanted[1] else []), *saved]
            originals = [] if self.cast is None else [1]
        constant = [i in rule.constant for i in range(outputs)]
        write = functools.partial(self.backward, rule, wanted)
        derive = functools.partial(self.derive, rule, self, wanted)
        forms = self.forms(rule, outputs)
        return aten.library.Differentiated(plan, outputs, constant, saved, originals, forms, write, derive)

    def forms(self, rule: BackwardRule, outputs: int) -> list[int]:
        """For each tensor and each output of the forward: how it maps to a tensor of the convolution
        (csrc/aten/rows.h)."""
        if not self.of_rows:
            return []
        same, full, row, row_moments, filter = range(5)
        kinds = {"full": full, "row": row}
        results = []
        for output in rule.forward.outputs[:outputs]:
            form = kinds.get({"element": "full"}.get(output.per, output.per), same)
            results.append(row_moments if form == row and output.kind == "moments" else form)
        copy = [] if self.cast is None else [filter]
        return [full, filter, *[kinds.get(kind, same) for kind in rule.kinds], *results, *copy]

    def wide(self) -> tuple[bool, ...]:
        """For each tensor of the program: True if it is fp32 where the result is not."""
        is_narrow = self.types[0] in NARROW
        return tuple([dtype == torch.float32 for dtype in self.types[self.operands :]]) if is_narrow else ()

    def backward(self, rule: BackwardRule, saves_for: tuple[bool, ...], given: int, number: int):
        """Backward from the gradients of the results `given` to those of the tensors `number` (bit sets). Returns the
        plan, which of all gradients and saved tensors it reads, and the tensors whose gradients its outputs are; or
        None if sizes would have to be known."""
        wanted = flags(number, len(self.types))
        program, sources, places, passed = rule.of_grads(tuple(numbers(given)), self.wide())
        of_conv = self.geometry is not None and any(wanted[:2])
        if rule.scalars or (of_conv and not saves_for[1]):
            return None
        results, first = len(rule.forward.outputs), 0 if self.geometry is None else 1 + saves_for[1]
        given_places = [*numbers(given), *range(results, results + first + len(rule.saved))]
        at = {place: i for i, place in enumerate(given_places)}
        steps = plans.Plan(len(given_places))
        grads_by_name = {name: at[place] for name, place in passed.items()}
        if program is not None:
            tensors = []
            for kind, place, part in sources:
                tensor = at[place if kind == "grad" else results + first + place]
                tensors.append(tensor if part is None else steps.parts(tensor, 2)[part])
            like = self._like(rule, given, results + first)
            if like is None:
                return None
            stitched = steps.stitch(program.code, at[like], tensors)
            grads_by_name |= {name: stitched[place] for name, place in places.items()}
        outputs = {}
        if "acc" in grads_by_name and self.geometry is None and wanted[0]:
            outputs[0] = grads_by_name["acc"]
        elif "acc" in grads_by_name and self.geometry is not None and any(wanted[:2]):
            of_both = wanted[0], wanted[1]
            grads = steps.conv2d_grads(of_both, self.geometry, grads_by_name["acc"], at[results + 1], at[results])
            outputs = dict(zip([i for i in (0, 1) if wanted[i]], grads, strict=True))
            if self.cast is not None and wanted[1]:
                outputs[1] = conv.cast_step(steps, outputs[1], self.cast[1])
        for i, name in enumerate(rule.names[1:], self.operands):
            if wanted[i] and name in grads_by_name:
                outputs[i] = grads_by_name[name]
        return steps.give(*outputs.values()), given_places, list(outputs)

    def _like(self, rule: BackwardRule, given: int, first: int) -> int | None:
        """Place of a tensor of the result's size and data type among gradients and saved tensors, or None."""
        outputs, dtype = rule.forward.outputs, self.types[0]

        def is_like(kind, place):
            if kind == "acc":
                return True
            if kind == "input":
                return rule.kinds[place] == "full" and self.types[self.operands + place] == dtype
            return outputs[place].is_by_element and outputs[place].dtype in (None, dtype)

        for i, (kind, place) in enumerate(rule.saved):
            if is_like(kind, place):
                return first + i
        return next((i for i in numbers(given) if is_like("output", i)), None)


def _never(*arguments):
    raise AssertionError("there are no gradients")


@functools.lru_cache(512)
def program_operator(code, types: tuple[torch.dtype, ...], geometry: int | None, cast, of_rows: bool, derive: Callable):
    """Function that runs the program for a list of tensors. It returns None where Python's rules have to take the
    call."""
    operator = _ProgramOperator(code, types, geometry, cast, of_rows, derive)
    return aten.library.FusedOperator(operator.write, code[2])
