"""The derivative of a program: again a program, of the outputs' gradients.

What the backward needs of the forward's values is computed again from the call's tensors and from outputs where that
can be done, and else kept: the one value from which the rest follows, or what is needed itself, whichever is fewer
bytes (a comparison is kept as a mask).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from .operations import COMPARISONS
from .program import Output, Program, store
from .program import sum as sum_of
from .values import Value, as_value, channel, columns, exp, full, in_order, row, rows, scalar, select

_LEAVES_OF = {"element": full, "channel": channel, "row": row, "all": scalar}
_PER_OF = {"acc": "element", "full": "element", "channel": "channel", "row": "row", "scalar": "all"}


def _clip_rule(node, g):
    x, least, most = node.operands
    return _where(least < node, _where(node < most, g)), _where(x <= least, g), _where(x >= most, g)


def _where(condition: Value, g) -> Value:
    return select(condition, g, 0)


# For each operation, the gradients of its operands from that of its value. Where PyTorch's derivative is made of the
# result (relu, sigmoid, tanh, exp, ...), so it is here: results are often there anyway.
_RULES = {
    "neg": lambda node, g: (-g,),
    "abs": lambda node, g: (_where(node.operands[0] > 0, g) - _where(node.operands[0] < 0, g),),
    "exp": lambda node, g: (g * node,),
    "log": lambda node, g: (g / node.operands[0],),
    "sqrt": lambda node, g: (g / (2 * node),),
    "rsqrt": lambda node, g: (g * (-0.5 * node * node * node),),
    "tanh": lambda node, g: (g * (1 - node * node),),
    "sigmoid": lambda node, g: (g * (node * (1 - node)),),
    "erf": lambda node, g: (g * (2 / math.sqrt(math.pi) * exp(-(node.operands[0] * node.operands[0]))),),
    "relu": lambda node, g: (select(node <= 0, 0, g),),  # NaN passes it on, as in PyTorch
    "round_bf16": lambda node, g: (g,),
    "round_fp16": lambda node, g: (g,),
    "add": lambda node, g: (g, g),
    "sub": lambda node, g: (g, -g),
    "mul": lambda node, g: (g * node.operands[1], g * node.operands[0]),
    "div": lambda node, g: (g / node.operands[1], -(g * node) / node.operands[1]),
    "maximum": lambda node, g: _chosen(node.operands, g, lambda a, b: a > b),
    "minimum": lambda node, g: _chosen(node.operands, g, lambda a, b: a < b),
    "select": lambda node, g: (None, _where(node.operands[0], g), select(node.operands[0], 0, g)),
    "clip": _clip_rule,
}


def _chosen(operands, g, first_wins):
    a, b = operands
    tie = Value("eq", a, b)
    return select(tie, 0.5 * g, _where(first_wins(a, b), g)), select(tie, 0.5 * g, _where(first_wins(b, a), g))


@dataclasses.dataclass(frozen=True)
class Derivative:
    """What autograd runs: `forward` has the program's outputs first and then those that are kept for `backward`."""

    forward: Program
    backward: Program | None  # None where it has nothing to compute
    # What backward's inputs are, in their order: an input of the program ("input", name), acc, an output of `forward`
    # ("output", i) or the gradient of one ("grad", i); of a part of an output i is (output, part).
    sources: tuple[tuple[str, str | int | tuple[int, int]], ...]
    # Which of backward's outputs is the gradient of each input, and of "acc". Those that are 0 are left out.
    wanted: dict[str, int]
    # Those whose gradient is that of an output of `forward` itself, and of which: nothing computes or stores it again.
    passed: dict[str, int]


def _is_zero(value: Value | None) -> bool:
    return value is None or (value.op == "constant" and value.attribute == 0)


class _Reverse:
    """The gradients of all values, from those of the outputs."""

    def __init__(self, program: Program, given: tuple[int, ...]):
        self.program = program
        self.sources: dict[str, tuple[str, str | int]] = {}
        grads: dict[int, Value] = {}

        def add(value: Value, grad: Value | None) -> None:
            if not _is_zero(grad):
                i = program.number(value)
                grads[i] = grads[i] + grad if i in grads else grad

        for i in given:
            add(program.outputs[i].value, self._of_output(i, program.outputs[i]))
        for i in reversed(range(len(program.nodes))):
            node = program.nodes[i]
            if i in grads and node.operands and node.op not in COMPARISONS:
                for operand, grad in zip(node.operands, _RULES[node.op](node, grads[i]), strict=True):
                    add(operand, None if grad is None else as_value(grad))
        self.grads = grads

    def passes(self, name: str, grad: Value) -> int | None:
        """The output whose gradient this is itself. acc has the result's data type, and what follows takes its gradient
        as it is; of the program's other tensors autograd casts it."""
        if grad.op != "full" or grad.attribute not in self.sources:
            return None
        _, output = self.sources[grad.attribute]
        return output if name != "acc" or self.program.outputs[output].dtype is None else None

    def _read(self, name: str, source: tuple[str, str | int], per: str) -> Value:
        self.sources[name] = source
        return _LEAVES_OF[per](name)

    def _of_output(self, i: int, output: Output) -> Value:
        if not output.has_derivative:
            what = "a mask" if output.is_by_element else "stored of channels"
            raise ValueError(f"epilogue: output {i}, {what}, has no gradient")
        if output.kind == "max":  # values are computed again, and what was equal might differ by its rounding
            raise ValueError(f"epilogue: output {i}, max of {output.value.op}, has no program for its gradient")
        if output.kind == "moments":
            return self._of_moments(i, output)
        return self._read(f"grad_{i}", ("grad", i), output.per)

    def _of_moments(self, i: int, output: Output) -> Value:
        count = {"channel": rows(), "row": columns(), "all": rows() * columns()}[output.per]
        of_mean, of_squares = (self._read(f"grad_{i}_{j}", ("grad", (i, j)), output.per) for j in (0, 1))
        mean = self._read(f"output_{i}_0", ("output", (i, 0)), output.per)
        return of_mean / count + 2 * of_squares * (output.value - mean)


@functools.lru_cache(1024)
def derivative(
    program: Program,
    wanted: tuple[str, ...],
    given: tuple[int, ...] | None = None,
    acc_is_there: bool = False,
    wide: frozenset[str] = frozenset(),
) -> Derivative:
    """The derivative with respect to the inputs (or "acc") that are wanted, of the outputs that are given; by default
    of all that have one. acc_is_there: the backward can read acc, as it can the call's tensors. wide: full inputs that
    are fp32 where the result is not, whose gradients are stored in fp32.

    Raises:
        ValueError: if the program has no such input, if it is a random number's key, or if an output that is given has
            no derivative.
    """
    if given is None:
        given = tuple(i for i, output in enumerate(program.outputs) if output.has_derivative)
    reverse = _Reverse(program, given)
    results: list[Output] = []
    places: dict[str, int] = {}
    passed: dict[str, int] = {}
    for name in wanted:
        leaves = [i for i, node in enumerate(program.nodes) if name == (node.attribute if node.is_input else node.op)]
        if not leaves:
            raise ValueError(f"epilogue: the program has no input {name!r}")
        kind = program.nodes[leaves[0]].op
        if kind == "random":
            raise ValueError(f"epilogue: {name!r} is a key of random numbers, which has no gradient")
        if leaves[0] in reverse.grads:
            per = _PER_OF[kind]
            grad = reverse.grads[leaves[0]]
            if per == "element" and (output := reverse.passes(name, grad)) is not None:
                passed[name] = output
                continue
            dtype = torch.float32 if name in wide else None
            result = store(grad, dtype) if per == "element" else sum_of(grad, per)
            if result not in results:
                results.append(result)
            places[name] = results.index(result)
    if not results:
        return Derivative(program, None, (), {}, passed)
    forward, backward, sources = _with_kept(program, results, reverse.sources, acc_is_there)
    return Derivative(forward, backward, sources, places, passed)


def _with_kept(
    program: Program, results: list[Output], sources: dict, acc_is_there: bool
) -> tuple[Program, Program, tuple]:
    """The forward program with what has to be kept; the backward one, which reads that; where its inputs come from."""
    order = list(in_order([result.value for result in results]))
    needed = {
        program.number(operand)
        for value in order
        if value not in program
        for operand in value.operands
        if operand in program
    }
    needed |= {program.number(result.value) for result in results if result.value in program}

    stored = {program.number(output.value): i for i, output in enumerate(program.outputs) if _keeps(output)}
    if not acc_is_there:
        return _written(program, results, sources, needed, stored)
    # What is read anyway may do without the outputs: relu's result is where acc is, say. The fewer tensors the better.
    acc = {i: "acc" for i, node in enumerate(program.nodes) if node.op == "acc"}
    ways = [_written(program, results, dict(sources), needed, there) for there in (stored | acc, acc)]
    return min(ways, key=lambda way: [*way[1].inputs.values()].count("full") + len(way[0].outputs))


def _written(
    program: Program, results: list[Output], sources: dict, needed: set[int], there: dict
) -> tuple[Program, Program, tuple]:
    """_with_kept, where the values of these numbers can be read: each an output, by its place, or "acc"."""
    order = in_order([result.value for result in results])
    there = dict(there)
    kept = _to_keep(program, needed, there)
    outputs = list(program.outputs)
    for number in kept:
        there[number] = len(outputs)
        node = program.nodes[number]
        outputs.append(store(node, torch.bool if node.op in COMPARISONS else None))
    forward = Program(*outputs)

    replaced: dict[int, Value] = {}
    for value in order:
        number = program.number(value) if value in program else None
        if there.get(number) == "acc":
            sources["acc"] = ("acc", 0)
            replaced[id(value)] = full("acc")
        elif number in there:
            name = f"output_{there[number]}"
            sources[name] = ("output", there[number])
            replaced[id(value)] = full(name)
        elif value.is_input or not value.operands:
            if number is not None and value.is_input:
                sources[value.attribute] = ("input", value.attribute)
            replaced[id(value)] = value
        else:
            operands = [replaced[id(operand)] for operand in value.operands]
            replaced[id(value)] = Value(value.op, *operands, attribute=value.attribute)
    backward = Program(*(dataclasses.replace(result, value=replaced[id(result.value)]) for result in results))
    return forward, backward, tuple(sources[name] for name in backward.inputs)


def _keeps(output: Output) -> bool:
    """Whether a stored tensor can be read for the value it was stored from."""
    if not output.is_by_element:
        return False
    if output.dtype == torch.bool:
        return output.value.op in COMPARISONS
    return output.dtype in (None, torch.float32, torch.float64)


def _recomputable(program: Program, there) -> list[bool]:
    """Which values follow from the call's tensors and those that are there."""
    known = []
    for i, node in enumerate(program.nodes):
        known.append(i in there or (node.op != "acc" and all(known[program.number(o)] for o in node.operands)))
    return known


def _to_keep(program: Program, needed: set[int], there) -> list[int]:
    known = _recomputable(program, there)
    missing = [i for i in sorted(needed) if not known[i]]
    if not missing:
        return []

    def size(numbers) -> int:
        return sum(1 if program.nodes[i].op in COMPARISONS else 2 for i in numbers)

    best = []  # those that are needed and don't follow from the ones before
    for i in missing:
        if not _recomputable(program, {*there, *best})[i]:
            best.append(i)
    for i in range(len(program.nodes)):
        if not known[i] and size([i]) <= size(best):  # the last of them: what follows from it is soonest there
            follows = _recomputable(program, {*there, i})
            if all(follows[j] for j in missing):
                best = [i]
    return best
