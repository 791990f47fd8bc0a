"""Program: values computed for each element of a result, and the outputs made of them."""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from ..runtime.sizes import Real, bits_of_double
from .digits import DigitOf
from .mapped import MAPS, Mapped, Targets, map_of
from .operations import INPUTS, NUMBER, OF_ROWS, OUTPUTS, PER
from .values import Number, Value, as_value, in_order, index_of, varies

# Data types that a program can name, with the numbers of csrc/program/program.h.
_FLOATS = {None: -1, torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_STORED = {**_FLOATS, torch.bool: 5, torch.int64: 6, torch.int32: 7}
_WHOLE = {torch.bool, torch.int64, torch.int32}  # what is stored in them has no derivative
_TYPES = {number: dtype for dtype, number in _STORED.items()}
_NAMES = {number: name for name, number in NUMBER.items()}
# Dimensions along which a value stored per channel, row or plane may vary.
_VARIES = {"channel": {"channels"}, "row": {"rows"}, "plane": {"channels", "images"}}


@dataclass(frozen=True)
class Output:
    """Output of a program, made of a value by :func:`store`, :func:`sum`, :func:`max`, :func:`prod` or
    :func:`moments`."""

    kind: str
    value: Value
    per: str = "element"
    # of the tensor; None: the result's data type for stores, fp32 or fp64 for reductions
    dtype: torch.dtype | None = None
    # factors multiply each term of a sum, not the sum: an infinite factor turns zero terms into NaN
    term_by_term: bool = False
    targets: Targets | None = None  # of what is stored by element; None: the result's own places

    @property
    def is_by_element(self) -> bool:
        """True if this output is a tensor as large as the result."""
        return self.kind == "store" and self.per == "element"

    @property
    def has_derivative(self) -> bool:
        if self.kind != "store":
            return True
        return self.per not in ("channel", "plane") and self.dtype not in _WHOLE and self.targets is None


def store(value: Value | Number, dtype: torch.dtype | None = None, per: str = "element") -> Output:
    """Store a value as a tensor: of each element (``[N, K, H, W]``), or one of each channel (``[K]``), row (``[N, H,
    W]``) or plane (``[N, K]``). Masks, whole numbers and values stored per channel or plane have no derivative.

    Args:
        dtype: float32, float64, float16, bfloat16, bool (True where the value is not 0), or int64 or int32 (the value
            rounded towards zero); the result's data type if None.
        per: "element", "channel", "row" or "plane".

    Raises:
        ValueError: for another data type, or if the value varies within a channel, row or plane.
    """
    _check_type("store", dtype, _STORED)
    if per not in PER[:4]:
        raise ValueError(f"program: store is per 'element', 'channel', 'row' or 'plane', got {per!r}")
    value = as_value(value)
    if per != "element" and not varies(value)[id(value)] <= _VARIES[per]:
        raise ValueError(f"program: a value stored per {per} may only depend on {per} values, scalars and numbers")
    return Output("store", value, per, dtype)


def _check_type(kind: str, dtype: torch.dtype | None, types: Collection[torch.dtype | None]) -> None:
    if dtype not in types:
        *names, last = (str(type_).removeprefix("torch.") for type_ in types if type_)
        raise ValueError(f"program: {kind} takes {', '.join(names)} or {last}, got {dtype}")


def _reduction(kind: str, value: Value | Number, per: str, dtype: torch.dtype | None = None) -> Output:
    _check_type(kind, dtype, _FLOATS)
    if per not in PER[1:]:
        raise ValueError(f"program: {kind} is per 'channel', 'row', 'plane', 'height' or 'all', got {per!r}")
    return Output(kind, as_value(value), per, dtype)


def sum(value: Value | Number, per: str = "channel", dtype: torch.dtype | None = None) -> Output:
    """Sum of a value over each channel (``[K]``), each row (``[N, H, W]``), each plane (``[N, K]``), each channel at
    each height (``[H, K]``) or everything (``[]``). The sum is computed in fp32, or fp64 if the result is, and stored
    in that type or in another floating-point `dtype`. The order of additions is fixed. A factor that is constant within
    a channel may multiply the sum instead of each term; results differ where the factor is infinite or the sum
    overflows."""
    return _reduction("sum", value, per, dtype)


def max(value: Value | Number, per: str = "channel", dtype: torch.dtype | None = None) -> Output:
    """Maximum of a value over each channel, row, plane, height or everything, stored as by :func:`sum`; NaN where an
    element is NaN."""
    return _reduction("max", value, per, dtype)


def prod(value: Value | Number, per: str = "channel", dtype: torch.dtype | None = None) -> Output:
    """Product of a value over each channel, row, plane, height or everything, stored as by :func:`sum`."""
    return _reduction("prod", value, per, dtype)


def moments(value: Value | Number, per: str = "channel") -> Output:
    """Mean of a value and sum of its squared differences from the mean, stacked: ``[2, K]``, ``[2, N, H, W]``, ``[2, N,
    K]``, ``[2, H, K]`` or ``[2]``. The sums are of differences from a number near the mean, so a large mean costs no
    accuracy."""
    return _reduction("moments", value, per)


class Program:
    """Operations applied to each element of a result before it is stored, or instead of storing it.

    Args:
        outputs: the program's outputs, in the order in which an operator returns them.
        inputs: kinds of inputs by name; fixes an order of the inputs other than that in which the outputs need them.

    A program knows neither shapes nor data types: these belong to the call. ``str(program)`` is the program's text, one
    operation per line; equal programs have equal texts and equal hashes.

    Raises:
        ValueError: if there is no output, or if a name stands for inputs of two kinds.
    """

    def __init__(self, *outputs: Output, inputs: dict[str, str] | None = None):
        if not outputs:
            raise ValueError("program: at least one output is needed")
        for output in outputs:
            if not isinstance(output, Output):
                raise TypeError(f"program: expected store(...), sum(...) or the like, got {type(output).__name__}")
        self.outputs = outputs
        self.nodes, self._number = _numbered([output.value for output in outputs])
        # kind by name, in the order in which the operators take the tensors
        self.inputs: dict[str, str] = dict(inputs or {})
        for node in self.nodes:
            kinds = {node.name: node.op} if node.is_input else {}
            if node.op == "table":
                kinds[index_of(node.name)] = "index"
            elif node.op == "mapped":
                kinds |= {map_of(node.name, i): kind for i, kind in enumerate(node.attribute.maps)}
            self._add_inputs(kinds)
        self._add_inputs({output.targets.name: "targets" for output in outputs if output.targets})
        self.names, self.kinds = tuple(self.inputs), tuple(self.inputs.values())
        self.text = self._text()
        self.code = self._code()

    def _add_inputs(self, kinds: dict[str, str]) -> None:
        for name, kind in kinds.items():
            if self.inputs.setdefault(name, kind) != kind:
                raise ValueError(f"program: {name!r} is both {self.inputs[name]} and {kind}")

    @property
    def has_acc(self) -> bool:
        return any(node.op == "acc" for node in self.nodes)

    @property
    def needs_rows(self) -> bool:
        """True if a kernel has to treat whole rows: a reduction of a row is needed by the row's elements or is
        stored, or a row is scanned."""
        return any(node.op in OF_ROWS for node in self.nodes) or any(
            output.kind == "store" and output.per == "row" for output in self.outputs
        )

    def number(self, value: Value) -> int:
        """Index of a value of this program among its nodes."""
        return self._number[id(value)]

    def __contains__(self, value: Value) -> bool:
        return id(value) in self._number

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Program(\n{self.text})"

    def __eq__(self, other) -> bool:
        return isinstance(other, Program) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def _text(self) -> str:
        lines = []
        for i, node in enumerate(self.nodes):
            words = [node.op, *(f"%{self.number(operand)}" for operand in node.operands)]
            if node.attribute is not None:
                words.append(str(node.attribute) if node.is_input else repr(node.attribute))
            lines.append(f"%{i} = {' '.join(words)}\n")
        for output in self.outputs:
            words = [output.kind, *([] if output.per == "element" else [output.per]), f"%{self.number(output.value)}"]
            if output.dtype is not None:
                words.append(str(output.dtype).removeprefix("torch."))
            if output.term_by_term:
                words.append("term_by_term")
            if output.targets is not None:
                words.append(str(output.targets))
            lines.append(" ".join(words) + "\n")
        return "".join(lines)

    def _code(self) -> tuple[int, ...]:
        """Encode the program as integers for the operators: the number of inputs, nodes and outputs; the kind of each
        input; for each node the operation, three operands (-1: none) and the input's index, the bits of a double, or
        the code of a digit or of a mapped tensor; for each output the kind, per, node, data type, the node by which a
        sum is multiplied (-1: none), and the code of its targets (-1: none)."""
        split = [factored(output) for output in self.outputs]
        nodes, number = _numbered([value for pair in split for value in pair if value is not None])
        code = [len(self.names), len(nodes), len(self.outputs)]
        code += [NUMBER[kind] for kind in self.kinds]
        for node in nodes:
            operands = [number[id(operand)] for operand in node.operands]
            attribute = 0
            if isinstance(node.attribute, (DigitOf, Mapped)):
                attribute = node.attribute.encode(self.names.index(node.name))
            elif node.is_input:
                attribute = self.names.index(node.name)
            elif node.attribute is not None:
                is_real = type(node.attribute) is Real
                attribute = node.attribute.bits() if is_real else bits_of_double(node.attribute)
            code += [NUMBER[node.op], *operands, *[-1] * (3 - len(operands)), attribute]
        for output, (value, factor) in zip(self.outputs, split, strict=True):
            code += [OUTPUTS.index(output.kind), PER.index(output.per), number[id(value)], _STORED[output.dtype]]
            code.append(-1 if factor is None else number[id(factor)])
            code.append(output.targets.encode(self.names.index(output.targets.name)) if output.targets else -1)
        return tuple(code)


def factored(output: Output) -> tuple[Value, Value | None]:
    """Split an output's value into (value, factor), where the factor is constant within each channel, so that a sum
    over the channel can be multiplied by it once, afterwards. The factor is None if there is none."""
    if output.kind != "sum" or output.per != "channel" or output.term_by_term:
        return output.value, None
    by_row = {key: not where <= _VARIES["channel"] for key, where in varies(output.value).items()}

    def product(a: Value | None, b: Value | None) -> Value | None:
        return b if a is None else a if b is None else a * b

    def split(value: Value) -> tuple[Value, Value | None]:
        if not by_row[id(value)]:
            return value, None
        if value.op == "neg":
            rest, factor = split(value.operands[0])
            return rest, Value("constant", attribute=-1.0) if factor is None else -factor
        if value.op in ("mul", "div"):
            a, b = value.operands
            if not by_row[id(b)]:
                rest, factor = split(a)
                if value.op == "mul":
                    return rest, product(factor, b)
                return rest, 1 / b if factor is None else factor / b
            if value.op == "mul" and not by_row[id(a)]:
                rest, factor = split(b)
                return rest, product(factor, a)
        return value, None

    return split(output.value)


@functools.lru_cache(512)
def decode(code: tuple[int, ...]) -> Program:
    """Program with this code; its inputs are named t0, t1 and so on.

    Raises:
        ValueError: if the numbers are not a program's code.
    """
    try:
        inputs, nodes, outputs = code[:3]
        kinds = [_NAMES[number] for number in code[3 : 3 + inputs]]
        names = _names(kinds)
        values: list[Value] = []
        at = 3 + inputs
        for op, *operands, attribute in zip(*[iter(code[at : at + 5 * nodes])] * 5, strict=True):
            op, operands = _NAMES[op], [values[i] for i in operands if i >= 0]
            if op == "mapped":
                attribute = Mapped.decode(attribute, names, kinds)
            elif op in INPUTS:
                attribute = DigitOf.decode(attribute, names)
            elif op == "constant":
                (attribute,) = struct.unpack("<d", struct.pack("<q", attribute))
            else:
                attribute = None
            values.append(Value(op, *operands, attribute=attribute))
        at += 5 * nodes
        results = []
        for kind, per, node, dtype, factor, targets in zip(*[iter(code[at:])] * 6, strict=True):
            value = values[node] if factor < 0 else values[node] * values[factor]
            output = Output(OUTPUTS[kind], value, PER[per], _TYPES[dtype])
            # If the code has no factor, there was none, or it has to stay in each term.
            output = replace(output, term_by_term=factor < 0 and factored(output)[1] is not None)
            results.append(output if targets < 0 else replace(output, targets=Targets.decode(targets, names)))
        program = Program(*results, inputs=dict(zip(names, kinds, strict=True)))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError(f"program: these numbers are no program's code: {list(code)}") from error
    if len(results) != outputs:
        raise ValueError(f"program: these numbers are no program's code: {list(code)}")
    return program


def _names(kinds: list[str]) -> list[str]:
    """Names of a decoded program's inputs of these kinds."""
    names: list[str] = []
    mapped = 0
    for i, kind in enumerate(kinds):
        mapped = i if kind == "mapped" else mapped
        if kind in MAPS:
            names.append(map_of(names[mapped], i - mapped - 1))
        else:
            names.append(index_of(names[-1]) if kind == "index" else f"t{i}")
    return names


def _numbered(values: list[Value]) -> tuple[list[Value], dict[int, int]]:
    """Deduplicate equal values and sort them topologically, operands first. Also returns the number of every value, by
    its identity."""
    nodes, number, known = [], {}, {}
    for value in in_order(values):
        # repr, since -0.0 == 0.0 and NaN != NaN.
        key = (value.op, repr(value.attribute), *(number[id(operand)] for operand in value.operands))
        if key not in known:
            known[key] = len(nodes)
            nodes.append(value)
        number[id(value)] = known[key]
    return nodes, number
