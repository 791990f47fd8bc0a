"""Derivative of a program: another program, which reads the gradients of the outputs.

The backward recomputes values of the forward from the call's tensors and from outputs where that is possible. Otherwise
the forward saves them: either the one value from which the rest follows, or the needed values themselves, whichever
takes fewer bytes (a comparison is saved as a mask). Outputs are rounded. A gradient may be rounded too, but a
comparison of rounded values may have another result, so comparisons are recomputed from exact values only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from typing import Any

import torch

from .operations import COMPARISONS, ROW_REDUCTIONS, WITHOUT_DERIVATIVE
from .program import Output, Program, store
from .program import sum as sum_of
from .values import (
    Value,
    as_value,
    channel,
    columns,
    cos,
    exp,
    floor,
    full,
    in_order,
    log,
    normal_pdf,
    plane,
    pow,
    row,
    row_cumsum,
    row_sum,
    rows,
    scalar,
    select,
    sin,
    varies,
)

_LEAVES_OF = {"element": full, "channel": channel, "row": row, "plane": plane, "all": scalar}
_PER_OF = {"acc": "element", "full": "element", "channel": "channel", "row": "row", "plane": "plane", "scalar": "all"}


def _clip_rule(node, g):
    x, least, most = node.operands
    of_x = node if _in_all_types(least) and _in_all_types(most) else x
    above = select(x <= least, 0, _where(x >= most, g))
    return _where(least < of_x, _where(of_x < most, g)), _where(x <= least, g), above


def _select_rule(node, g):
    condition = node.operands[0]
    if condition.op not in COMPARISONS and not condition.is_input:
        condition = Value("ne", condition, 0)
    return None, _where(condition, g), select(condition, 0, g)


def _pow_rule(node, g):
    """As PyTorch's: x ** 0 is constant in x, and 0 ** y is constant in y where y is not negative."""
    x, y = node.operands
    is_constant = select(Value("eq", x, 0), y >= 0, 0)
    return select(Value("eq", y, 0), 0, g * (y * pow(x, y - 1))), select(is_constant, 0, g * (node * log(x)))


def _fmod_rule(node, g):
    x, y = node.operands
    quotient = x / y
    return g, -g * select(quotient < 0, -floor(-quotient), floor(quotient))


def _atan2_rule(node, g):
    y, x = node.operands
    square = x * x + y * y
    inverse = select(Value("eq", square, 0), 0, 1 / square)
    return g * (x * inverse), g * (-y * inverse)


def _chosen(loses: Value, other_loses: Value, g):
    """Gradients of the two operands of maximum or minimum. An operand loses if it is not the only one chosen; equal
    operands share the gradient, and NaN never loses."""
    half = 0.5 * g
    return select(loses, _where(other_loses, half), g), select(other_loses, _where(loses, half), g)


def _where(condition: Value, g) -> Value:
    return select(condition, g, 0)


def _in_all_types(value: Value) -> bool:
    """True if this is a constant that fp16 and bf16 represent exactly."""
    if value.op != "constant" or not math.isfinite(value.attribute) or abs(value.attribute) > 65504:
        return False
    (half,) = struct.unpack("<e", struct.pack("<e", value.attribute))
    return half == value.attribute and struct.pack("<f", half)[:2] == b"\0\0"


def _decides(value: Value) -> bool:
    """True if this is a comparison whose result may change by rounding. Rounded results of relu or clip stay on the
    same side of (or at) a bound that all data types represent; PyTorch's own operators, which round each value, compare
    the same rounded results."""
    is_of_result = any(operand.op in ("relu", "clip") for operand in value.operands)
    return value.op in COMPARISONS and not (is_of_result and any(map(_in_all_types, value.operands)))


# Gradients of each operation's operands, given the gradient of its value. Where PyTorch computes a derivative from the
# result (relu, sigmoid, tanh, exp, ...), so do these rules: the result is often available anyway.
_RULES = {
    "neg": lambda node, g: (-g,),
    "abs": lambda node, g: (_where(node.operands[0] > 0, g) - _where(node.operands[0] < 0, g),),
    "exp": lambda node, g: (g * node,),
    "log": lambda node, g: (g / node.operands[0],),
    "log1p": lambda node, g: (g / (1 + node.operands[0]),),
    "sqrt": lambda node, g: (g / (2 * node),),
    "rsqrt": lambda node, g: (g * (-0.5 * node * node * node),),
    "tanh": lambda node, g: (g * (1 - node * node),),
    "sigmoid": lambda node, g: (g * (node * (1 - node)),),
    "erf": lambda node, g: (g * (2 / math.sqrt(math.pi) * exp(-(node.operands[0] * node.operands[0]))),),
    "normal_cdf": lambda node, g: (g * normal_pdf(node.operands[0]),),
    "normal_pdf": lambda node, g: (-g * node.operands[0] * node,),
    "expm1": lambda node, g: (g * (node + 1),),
    "log2": lambda node, g: (g / (node.operands[0] * math.log(2)),),
    "log10": lambda node, g: (g / (node.operands[0] * math.log(10)),),
    "sin": lambda node, g: (g * cos(node.operands[0]),),
    "cos": lambda node, g: (g * -sin(node.operands[0]),),
    "floor": lambda node, g: (None,),
    "round": lambda node, g: (None,),
    "relu": lambda node, g: (select(node <= 0, 0, g),),  # NaN passes the gradient on, as in PyTorch
    "round_bf16": lambda node, g: (g,),
    "round_fp16": lambda node, g: (g,),
    "add": lambda node, g: (g, g),
    "sub": lambda node, g: (g, -g),
    "mul": lambda node, g: (g * node.operands[1], g * node.operands[0]),
    "div": lambda node, g: (g / node.operands[1], -(g * node) / node.operands[1]),
    "pow": _pow_rule,
    "fmod": _fmod_rule,
    "atan2": _atan2_rule,
    "copysign": lambda node, g: (select(Value("eq", node.operands[0], 0), 0, g * (node / node.operands[0])), None),
    "maximum": lambda node, g: _chosen(node.operands[0] <= node.operands[1], node.operands[1] <= node.operands[0], g),
    "minimum": lambda node, g: _chosen(node.operands[1] <= node.operands[0], node.operands[0] <= node.operands[1], g),
    "select": _select_rule,
    "clip": _clip_rule,
    "row_sum": lambda node, g: (g,),
    "row_cumsum": lambda node, g: (row_cumsum(g, reversed=True),),
    "row_cumsum_reversed": lambda node, g: (row_cumsum(g),),
}


@dataclasses.dataclass(frozen=True)
class Derivative:
    """Forward and backward program for autograd. `forward` has the program's outputs first, then the values saved for
    `backward`."""

    forward: Program
    backward: Program | None  # None if there is nothing to compute
    # Origin of each input of backward, in order: an input of the program ("input", name), acc, an output of `forward`
    # ("output", i) or an output's gradient ("grad", i). Where only a part of output i is read, (output, part) replaces
    # i.
    sources: tuple[tuple[str, str | int | tuple[int, int]], ...]
    # Index of the output of backward that is the gradient of an input or of "acc", by name. Gradients that are 0 are
    # absent.
    wanted: dict[str, int]
    # Inputs whose gradient equals the gradient of an output of `forward`, with that output's index: the gradient is
    # passed through instead of being computed and stored again.
    passed: dict[str, int]


def _of_rows(program: Program) -> set[int]:
    """Numbers of the per-row values; empty if the program needs no rows."""
    if not program.needs_rows:
        return set()
    return {i for i, node in enumerate(program.nodes) if varies(node)[id(node)] == {"rows"}}


def _is_zero(value: Value | None) -> bool:
    return value is None or (value.op == "constant" and value.attribute == 0)


class _Reverse:
    """Reverse-mode differentiation: gradients of all values, given gradients of the outputs."""

    def __init__(self, program: Program, outputs: tuple[int, ...]):
        self.program = program
        self.sources: dict[str, tuple[str, Any]] = {}
        grads: dict[int, Value] = {}

        def add(value: Value, grad: Value | None, for_each_element: bool) -> None:
            if not _is_zero(grad):
                i = program.number(value)
                if for_each_element and i in of_rows:
                    grad = row_sum(grad)
                elif not for_each_element and i not in of_rows:
                    # the row's elements share this value, and the gradient of each element counts
                    grad = grad / columns()
                grads[i] = grads[i] + grad if i in grads else grad

        # Per-row values with one gradient per row, if the program needs rows. Otherwise such values are ordinary
        # element values that happen to be equal.
        self.of_rows = of_rows = _of_rows(program)
        for i in outputs:
            output = program.outputs[i]
            add(output.value, self._of_output(i, output), not (output.kind == "store" and output.per == "row"))
        for i in reversed(range(len(program.nodes))):
            node = program.nodes[i]
            if i in grads and node.operands and node.op not in COMPARISONS:
                if node.op in WITHOUT_DERIVATIVE:
                    of = f"{node.op} of {node.operands[0].op}"
                    raise ValueError(f"program: no program computes the gradient of {of}")
                for operand, grad in zip(node.operands, _RULES[node.op](node, grads[i]), strict=True):
                    is_element = i not in of_rows or node.op in ROW_REDUCTIONS
                    add(operand, None if grad is None else as_value(grad), is_element)
        self.grads = grads

    def passes(self, name: str, grad: Value) -> int | None:
        """Output whose gradient equals `grad`, or None. acc has the result's data type, and its consumer takes the
        gradient as it is; gradients of the program's other tensors are cast by autograd."""
        if grad.op != "full" or grad.attribute not in self.sources:
            return None
        _, output = self.sources[grad.attribute]
        return output if name != "acc" or self.program.outputs[output].dtype is None else None

    def _read(self, name: str, source: tuple[str, Any], per: str) -> Value:
        self.sources[name] = source
        return _LEAVES_OF[per](name)

    def _of_output(self, i: int, output: Output) -> Value:
        if not output.has_derivative:
            what = "a mask" if output.dtype == torch.bool else f"stored of {output.per}s"
            raise ValueError(f"program: output {i}, {what}, has no gradient")
        if output.kind in WITHOUT_DERIVATIVE:
            of = f"{output.kind} of {output.value.op}"
            raise ValueError(f"program: no program computes the gradient of output {i}, {of}")
        if output.per == "height":
            raise ValueError(f"program: no program computes the gradient of output {i}, a {output.kind} per height")
        if output.kind == "moments":
            return self._of_moments(i, output)
        return self._read(f"grad_{i}", ("grad", i), output.per)

    def _of_moments(self, i: int, output: Output) -> Value:
        if output.per == "plane":
            raise ValueError(f"program: no program computes the gradient of output {i}, moments of planes")
        count = {"channel": rows(), "row": columns(), "all": rows() * columns()}[output.per]
        of_mean, of_squares = (self._read(f"grad_{i}_{j}", ("grad", (i, j)), output.per) for j in (0, 1))
        mean = self._read(f"output_{i}_0", ("output", (i, 0)), output.per)
        return of_mean / count + 2 * of_squares * (output.value - mean)


@functools.lru_cache(512)
def derivative(
    program: Program,
    wanted: tuple[str, ...],
    given: tuple[int, ...] | None = None,
    acc_is_there: bool = False,
    wide: frozenset[str] = frozenset(),
    is_double: bool = False,
) -> Derivative:
    """Differentiate a program with respect to some of its inputs.

    Args:
        wanted: inputs, or "acc", whose gradients are computed.
        given: outputs whose gradients are given; by default all outputs that have a derivative.
        acc_is_there: the backward can read acc, as it can read the call's tensors.
        wide: full inputs that are fp32 where the result is not; their gradients are stored in fp32.
        is_double: the result is fp64, so that outputs in fp32 are rounded.

    Raises:
        ValueError: if the program has no such input, if the input is a table or a key of random numbers, or if an
            output in `given` has no derivative.
    """
    if given is None:
        given = tuple(i for i, output in enumerate(program.outputs) if output.has_derivative)
    reverse = _Reverse(program, given)
    results: list[Output] = []
    places: dict[str, int] = {}
    passed: dict[str, int] = {}
    for name in wanted:
        leaves = [i for i, node in enumerate(program.nodes) if name == (node.name if node.is_input else node.op)]
        if not leaves:
            raise ValueError(f"program: there is no input {name!r}")
        kind = program.nodes[leaves[0]].op
        if kind == "random":
            raise ValueError(f"program: {name!r} is a key of random numbers, which has no gradient")
        if kind in ("table", "mapped"):
            raise ValueError(f"program: {name!r} is a {kind}, and no program computes its gradient")
        if leaves[0] in reverse.grads:
            per = _PER_OF[kind]
            grad = reverse.grads[leaves[0]]
            if per == "element" and (output := reverse.passes(name, grad)) is not None:
                passed[name] = output
                continue
            dtype = torch.float32 if name in wide else None
            if per == "element":
                result = store(grad, dtype)
            elif leaves[0] in reverse.of_rows:
                result = store(grad, torch.float64 if is_double else torch.float32, per)
            else:
                result = sum_of(grad, per)
            if result not in results:
                results.append(result)
            places[name] = results.index(result)
    if not results:
        return Derivative(program, None, (), {}, passed)
    forward, backward, sources = _with_saved(program, results, reverse.sources, acc_is_there, is_double)
    return Derivative(forward, backward, sources, places, passed)


def _with_saved(
    program: Program, results: list[Output], sources: dict, acc_is_there: bool, is_double: bool
) -> tuple[Program, Program, tuple]:
    """Forward program with the values to save as further outputs; backward program that reads them; origin of each
    input of the backward."""
    order = list(in_order([result.value for result in results]))
    asked = [
        store(value, torch.bool)
        for value in order
        if _decides(value) and all(operand in program or operand.op == "constant" for operand in value.operands)
    ]
    values = Program(*program.outputs, *asked)  # everything that can be saved
    needed = {
        values.number(operand)
        for value in order
        if value not in values
        for operand in value.operands
        if operand in values
    }
    needed |= {values.number(result.value) for result in results if result.value in values}

    of_rows = _of_rows(values)
    stored = {
        values.number(output.value): i
        for i, output in enumerate(program.outputs)
        if _restores(output, is_double) and (output.per == "row") == (values.number(output.value) in of_rows)
    }
    if not acc_is_there:
        return _written(program, values, results, sources, needed, stored, is_double)
    # Tensors that are read anyway may make outputs unnecessary: relu's result follows from acc, for example. Choose the
    # way with the fewest tensors.
    acc = {i: "acc" for i, node in enumerate(values.nodes) if node.op == "acc"}
    ways = [
        _written(program, values, results, dict(sources), needed, there, is_double) for there in (stored | acc, acc)
    ]
    return min(ways, key=lambda way: [*way[1].inputs.values()].count("full") + len(way[0].outputs))


def _written(
    program: Program,
    values: Program,
    results: list[Output],
    sources: dict,
    needed: set[int],
    there: dict,
    is_double: bool,
) -> tuple[Program, Program, tuple]:
    """Programs and origins as from _with_saved, if the backward can read the values in `there`: value number -> index
    of the output that holds it, or "acc"."""
    order = in_order([result.value for result in results])
    there = dict(there)
    of_rows = _of_rows(values)
    saved = _to_save(values, needed, there, of_rows)
    outputs = list(program.outputs)
    for number in saved:
        there[number] = len(outputs)
        node = values.nodes[number]
        dtype = torch.bool if node.op in COMPARISONS else None
        if number in of_rows:  # small enough to be stored without rounding
            outputs.append(store(node, dtype or (torch.float64 if is_double else torch.float32), "row"))
        else:
            outputs.append(store(node, dtype))
    forward = Program(*outputs, inputs=program.inputs)

    replaced: dict[int, Value] = {}
    for value in order:
        number = values.number(value) if value in values else None
        if there.get(number) == "acc":
            sources["acc"] = ("acc", 0)
            replaced[id(value)] = full("acc")
        elif number in there:
            name = f"output_{there[number]}"
            sources[name] = ("output", there[number])
            replaced[id(value)] = _LEAVES_OF[outputs[there[number]].per](name)
        elif value.is_input or not value.operands:
            if number is not None and value.is_input:
                sources[value.name] = ("input", value.name)
            replaced[id(value)] = value
        else:
            operands = [replaced[id(operand)] for operand in value.operands]
            replaced[id(value)] = Value(value.op, *operands, attribute=value.attribute)
    backward = Program(*(dataclasses.replace(result, value=replaced[id(result.value)]) for result in results))
    return forward, backward, tuple(sources[name] for name in backward.inputs)


def _restores(output: Output, is_double: bool) -> bool:
    """True if the stored tensor can replace the value it was stored from."""
    if output.kind != "store" or output.per in ("channel", "plane"):
        return False
    if output.dtype == torch.bool:
        return output.value.op in COMPARISONS
    return output.dtype in (None, torch.float64) or (output.dtype == torch.float32 and not is_double)


def _recomputable(values: Program, there: dict) -> list[bool]:
    """For each value: True if it can be computed from the call's tensors and the values in `there`."""
    known, exact = [], []
    for i, node in enumerate(values.nodes):
        operands = [values.number(operand) for operand in node.operands]
        is_exact = there.get(i) == "acc" or (i in there and node.op in COMPARISONS)
        exact.append(is_exact or (node.op != "acc" and all(exact[o] for o in operands)))
        follows = exact[i] if _decides(node) else node.op != "acc" and all(known[o] for o in operands)
        known.append(i in there or follows)
    return known


def _to_save(values: Program, needed: set[int], there: dict, of_rows: set[int]) -> list[int]:
    """Numbers of the values to save so that all needed values can be recomputed."""
    known = _recomputable(values, there)
    missing = [i for i in sorted(needed) if not known[i]]
    if not missing:
        return []

    def size(numbers) -> int:
        return sum(0 if i in of_rows else 1 if values.nodes[i].op in COMPARISONS else 2 for i in numbers)

    best = []  # needed values that do not follow from those before them
    for i in missing:
        if not _recomputable(values, {**there, **dict.fromkeys(best)})[i]:
            best.append(i)
    for i in range(len(values.nodes)):
        # of equally small values take the last: fewest operations follow it
        if not known[i] and size([i]) <= size(best):
            follows = _recomputable(values, {**there, i: None})
            if all(follows[j] for j in missing):
                best = [i]
    return best
