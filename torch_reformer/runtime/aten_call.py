"""A call of any of PyTorch's operators in a plan. By the operator's schema, its arguments are brought into the order
and the words in which torch's stable ABI takes them, once."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.operator_schemas import get_signature_for_torch_op

from . import native
from .arguments import shown

TENSOR = -1  # as a result, in place of the length of a list of tensors
_KINDS = ("word", "words", "tensor", "tensors", "optional_tensors")  # in the order of csrc/plan/aten_call.h


def _int(value) -> int:
    number = operator.index(value)
    if isinstance(value, bool) or not -(2**63) <= number < 2**63:
        raise TypeError
    return number


def _bool(value) -> int:
    if not isinstance(value, bool):
        raise TypeError
    return int(value)


def _float(value) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return struct.unpack("<q", struct.pack("<d", float(value)))[0]


def _abi_constant(name: str) -> int:
    number = native.abi_constant(name)
    if number is None:
        raise TypeError
    return number


def _constant(kind: str, type_: type) -> Callable[[Any], int]:
    def word(value) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value  # a schema's default
        if not isinstance(value, type_):
            raise TypeError
        return _abi_constant(f"{kind}_{str(value).removeprefix('torch.')}")

    return word


def _device(value) -> int:
    if not isinstance(value, torch.device):
        raise TypeError
    return _abi_constant(f"device_type_{value.type}") << 32 | (-1 if value.index is None else value.index) & 0xFFFFFFFF


# A type of the schema -> what it is called in sentences, and the word of a value; TypeError for one of another type.
_WORDS: dict[str, tuple[str, Callable[[Any], int]]] = {
    "IntType": ("a whole number", _int),
    "SymIntType": ("a whole number", _int),
    "BoolType": ("True or False", _bool),
    "FloatType": ("a number", _float),
    "ScalarTypeType": ("a data type", _constant("dtype", torch.dtype)),
    "LayoutType": ("a layout", _constant("layout", torch.layout)),
    "MemoryFormatType": ("a memory format", _constant("memory_format", torch.memory_format)),
    "DeviceObjType": ("a device", _device),
}
_REFUSED = {
    "NumberType": "is a number of any type (Scalar), which torch's stable ABI does not hand over; programs do",
    "StringType": "is a text, which leaks memory at each call by torch's stable ABI",
}


class _Argument(NamedTuple):
    kind: str
    is_optional: bool  # and there
    words: tuple[int, ...]
    tensors: tuple[int, ...] = ()

    def code(self) -> list[int]:
        head = [_KINDS.index(self.kind), int(self.is_optional)]
        if self.kind in ("words", "optional_tensors"):
            head.append(len(self.words))
        return [*head, *self.words]


def _argument(type_, value) -> _Argument:
    """Raises TypeError with what the value must be, or ValueError with why no plan can have it."""
    kind = type_.kind()
    if kind == "OptionalType":
        if value is None:
            return _Argument("word", False, (0,))
        return _argument(type_.getElementType(), value)._replace(is_optional=True)
    if kind in _WORDS:
        what, word = _WORDS[kind]
        return _Argument("word", False, (_word(word, value, what),))
    if kind == "TensorType":
        return _Argument("tensor", False, (), (_word(_int, value, "a tensor's number"),))
    element = type_.getElementType() if kind == "ListType" else None
    if element is None or (element.kind() not in _WORDS and str(element) not in ("Tensor", "Optional[Tensor]")):
        raise ValueError(_REFUSED.get(kind, f"is of the type {type_}, which torch's stable ABI does not hand over"))
    if not isinstance(value, list | tuple | range):
        raise TypeError("a list")
    if element.kind() in _WORDS:
        what, word = _WORDS[element.kind()]
        return _Argument("words", False, tuple(_word(word, each, f"a list, each {what}") for each in value))
    numbers = tuple(_word(_int, each, "a list of tensors' numbers") for each in value if each is not None)
    if str(element) == "Tensor":
        if len(numbers) < len(value):
            raise TypeError("a list of tensors' numbers")
        return _Argument("tensors", False, (len(numbers),), numbers)
    return _Argument("optional_tensors", False, tuple(int(each is not None) for each in value), numbers)


def _word(word: Callable[[Any], int], value, what: str) -> int:
    try:
        return word(value)
    except (TypeError, OverflowError):
        raise TypeError(what) from None


def _operator(name: str):
    """The operator of a name such as aten::mm or aten::add.Tensor."""
    space, _, rest = name.partition("::")
    own, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), own), overload or "default")
    except (AttributeError, RuntimeError):
        raise ValueError(f"PyTorch has no operator {name}") from None


class AtenCall:
    """One call, of tensors by their numbers.

    Args:
        name: of the operator, with its overload if that is not the default one.
        args, kwargs: as Python calls it, but tensors are numbers.
        lengths: of each list of tensors among its results.

    Raises:
        TypeError: an argument is missing, too many, or of another type.
        ValueError: PyTorch has no such operator, or torch's stable ABI can't call it with these arguments.
    """

    def __init__(self, name: str, args: Sequence, kwargs: Mapping[str, Any], lengths: Iterable[int] = ()):
        self.name, self.operator = name, _operator(name)
        _, (self.schema, *_) = get_signature_for_torch_op(self.operator, return_schemas=True)
        self.values = self._bound(args, dict(kwargs))
        self._arguments = [self._encoded(*each) for each in zip(self.schema.arguments, self.values, strict=True)]
        self.inputs = tuple(number for argument in self._arguments for number in argument.tensors)
        # What it writes to: in-place operators to their first operand, others to `out`.
        self.writes = tuple(
            number
            for of_schema, argument in zip(self.schema.arguments, self._arguments, strict=True)
            if of_schema.alias_info is not None and of_schema.alias_info.is_write
            for number in argument.tensors
        )
        self.results = self._results(list(lengths))
        self.result_count = sum(1 if length == TENSOR else length for length in self.results)

    def _bound(self, args: Sequence, kwargs: dict[str, Any]) -> list:
        """The values in the order of the schema, with defaults; lists where one number stands for all (int[2])."""
        values, left = [], list(args)
        for argument in self.schema.arguments:
            if left and not argument.kwarg_only:
                values.append(left.pop(0))
            elif argument.name in kwargs:
                values.append(kwargs.pop(argument.name))
            elif argument.has_default_value():
                values.append(argument.default_value)
            else:
                raise TypeError(f"{self.name}: {argument.name} is missing")
            if argument.N and isinstance(values[-1], int | float):
                values[-1] = [values[-1]] * argument.N
        if left or kwargs:
            names = f"an argument {next(iter(kwargs))}" if kwargs else f"{len(args)} arguments"
            raise TypeError(f"{self.name} does not take {names}; its schema is {self.schema}")
        return values

    def _encoded(self, argument, value) -> _Argument:
        try:
            return _argument(argument.real_type, value)
        except TypeError as error:
            raise TypeError(f"{self.name}: {argument.name} must be {error}, got {shown(value)}") from None
        except ValueError as error:
            raise ValueError(f"{self.name}: {argument.name} {error}") from None

    def _results(self, lengths: list[int]) -> tuple[int, ...]:
        types = [str(result.real_type) for result in self.schema.returns]
        for type_ in types:
            if type_ not in ("Tensor", "List[Tensor]"):
                raise ValueError(f"{self.name} gives a result of the type {type_}, and steps give tensors")
        if len(lengths) != types.count("List[Tensor]"):
            raise ValueError(
                f"{self.name} gives {types.count('List[Tensor]')} lists of tensors, got {len(lengths)} lengths"
            )
        return tuple(TENSOR if type_ == "Tensor" else _int(lengths.pop(0)) for type_ in types)

    def code(self) -> list[int]:
        """As csrc/plan/aten_call.h has it."""
        name, overload = self.schema.name, self.schema.overload_name
        code = [len(name), *name.encode(), len(overload), *overload.encode(), len(self._arguments)]
        for argument in self._arguments:
            code += argument.code()
        return [*code, len(self.results), *self.results]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Calls it from Python, with the tensors of `inputs`."""
        values = self._with_tensors(tensors)
        named = list(zip(self.schema.arguments, values, strict=True))
        args = [value for each, value in named if not each.kwarg_only]
        kwargs = {each.name: value for each, value in named if each.kwarg_only}
        found = self.operator(*args, **kwargs)
        found = list(found) if isinstance(found, tuple) else [found][: len(self.results)]
        flat = []
        for length, result in zip(self.results, found, strict=True):
            if length != TENSOR and length != len(result):
                raise RuntimeError(f"{self.name} gave a list of {len(result)} tensors; the plan says {length}")
            flat += [result] if length == TENSOR else result
        return flat

    def _with_tensors(self, tensors: Sequence) -> list:
        """The values, with these in place of the tensors' numbers."""
        left, values = iter(tensors), []
        for argument, value in zip(self._arguments, self.values, strict=True):
            if argument.kind == "tensor":
                value = next(left)
            elif argument.kind in ("tensors", "optional_tensors"):
                value = [None if each is None else next(left) for each in value]
            values.append(value)
        return values

    def __str__(self) -> str:
        values = self._with_tensors([_Shown(f"%{number}") for number in self.inputs])
        named = zip(self.schema.arguments, values, strict=True)
        shown_values = [f"{each.name}={value}" if each.kwarg_only else str(value) for each, value in named]
        return f"{self.name}({', '.join(shown_values)})"


class _Shown(str):
    """A tensor's number in a text, the same alone and in a list."""

    def __repr__(self):
        return str(self)
