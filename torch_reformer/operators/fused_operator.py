"""Programs, after a convolution or alone, as one step of autograd in C++ (csrc/aten/fused_operator.h): a forward of one
plan and a backward of one plan, on the eager fast path. The rules are BackwardRule's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..runtime import aten
from ..runtime import plan as plans
from ..runtime.dtypes import NARROW
from . import conv, one_step
from .backward_rule import BackwardRule, backward_rule

MOST = 60  # tensors, or results: bits of a number tell which


def flags(number: int, count: int) -> tuple[bool, ...]:
    """The bits of a number."""
    return tuple([bool(number >> i & 1) for i in range(count)])


def numbers(number: int) -> list[int]:
    """The places of its bits."""
    return [i for i in range(number.bit_length()) if number >> i & 1]


class _ProgramOperator:
    """A program of this code for tensors of these data types: acc, or input and weight, then the program's.

    geometry: packed, of the convolution before it, or None. cast: of the weight, its copy's data type and its own.
    of_rows: whether that is a matrix product. derive(rule, ...): the gradients by differentiable operators."""

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
        """For tensors of which these want gradients."""
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
            # The weight for its size, too. An input that only has a gradient need not stay.
            weight = 1 if self.cast is None else count + outputs
            saved = [weight, *([0] if wanted[1] else []), *saved]
            originals = [] if self.cast is None else [1]
        constant = [i in rule.constant for i in range(outputs)]
        write = functools.partial(self.backward, rule, wanted)
        derive = functools.partial(self.derive, rule, self, wanted)
        forms = self.forms(rule, outputs)
        return aten.library.Differentiated(plan, outputs, constant, saved, originals, forms, write, derive)

    def forms(self, rule: BackwardRule, outputs: int) -> list[int]:
        """How each tensor, and each of the forward's outputs, is a convolution's (csrc/aten/rows.h)."""
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
        """Which of the program's tensors are fp32 where the result is not."""
        is_narrow = self.types[0] in NARROW
        return tuple([each == torch.float32 for each in self.types[self.operands :]]) if is_narrow else ()

    def backward(self, rule: BackwardRule, saves_for: tuple[bool, ...], given: int, number: int):
        """The plan from these results' gradients to these tensors', what it reads of all gradients and saved tensors,
        and what its outputs are; None if it needs sizes."""
        wanted = flags(number, len(self.types))
        program, sources, places, passed = rule.of_grads(tuple(numbers(given)), self.wide())
        of_conv = self.geometry is not None and any(wanted[:2])
        if rule.scalars or (of_conv and not saves_for[1]):
            return None
        results, first = len(rule.forward.outputs), 0 if self.geometry is None else 1 + saves_for[1]
        given_places = [*numbers(given), *range(results, results + first + len(rule.saved))]
        at = {place: i for i, place in enumerate(given_places)}
        steps = plans.Plan(len(given_places))
        found = {name: at[place] for name, place in passed.items()}
        if program is not None:
            tensors = []
            for kind, place, part in sources:
                tensor = at[place if kind == "grad" else results + first + place]
                tensors.append(tensor if part is None else steps.parts(tensor, 2)[part])
            like = self._like(rule, given, results + first)
            if like is None:
                return None
            made = steps.stitch(program.code, at[like], tensors)
            found |= {name: made[place] for name, place in places.items()}
        outputs = {}
        if "acc" in found and self.geometry is None and wanted[0]:
            outputs[0] = found["acc"]
        elif "acc" in found and self.geometry is not None and any(wanted[:2]):
            of_both = wanted[0], wanted[1]
            grads = steps.conv2d_grads(of_both, self.geometry, found["acc"], at[results + 1], at[results])
            outputs = dict(zip([i for i in (0, 1) if wanted[i]], grads, strict=True))
            if self.cast is not None and wanted[1]:
                outputs[1] = conv.cast_step(steps, outputs[1], self.cast[1])
        for i, name in enumerate(rule.names[1:], self.operands):
            if wanted[i] and name in found:
                outputs[i] = found[name]
        return steps.give(*outputs.values()), given_places, list(outputs)

    def _like(self, rule: BackwardRule, given: int, first: int) -> int | None:
        """Among gradients and saved tensors one of the result's size and data type."""
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
    """What runs it for a list of tensors; its results are None where Python's rules take the call."""
    written = _ProgramOperator(code, types, geometry, cast, of_rows, derive)
    return aten.library.FusedOperator(written.write, code[2])
