"""A call of any of PyTorch's operators in a plan: its arguments are brought into the order of the operator's schema,
and looked at by the library for the torch at hand, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.operator_schemas import get_signature_for_torch_op

from . import aten
from .arguments import shown

TENSOR, NUMBER = -1, -2  # as results, in place of the length of a list of tensors
_NUMBERS = ("int", "float", "bool")  # beside tensors they are left out, as they are known before
_TENSOR_LISTS = ("List[Tensor]", "List[Optional[Tensor]]")


def _without_optional(type_):
    return type_.getElementType() if type_.kind() == "OptionalType" else type_


def _is_tensor_number(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class AtenCall:
    """One call, of tensors by their numbers.

    Args:
        operator: such as torch.ops.aten.add.Tensor.
        args, kwargs: as Python calls it, but tensors are numbers.
        lengths: of each list of tensors among its results.
        layouts: sizes and strides of the first tensors that it gives, which are copied where they have other strides;
                the rest are as they are.

    Raises:
        TypeError: an argument is missing, too many, or of another type.
        ValueError: it gives something else than tensors, and numbers beside them.
        RuntimeError: there is no library for the torch at hand.
    """

    def __init__(
        self,
        operator: Any,
        args: Sequence,
        kwargs: Mapping[str, Any],
        lengths: Iterable[int] = (),
        layouts: Iterable[tuple[Sequence[int], Sequence[int]]] = (),
    ):
        if aten.library is None:
            raise RuntimeError(f"PyTorch's operators can't be steps of plans: {aten.missing}")
        lengths, layouts = list(lengths), list(layouts)
        self.operator, self.name = operator, operator.name()
        self._arguments = args, kwargs, lengths, layouts
        # Always with schemas, since an operator of torch.ops has one.
        _, (self.schema, *_) = get_signature_for_torch_op(operator, return_schemas=True)  # type: ignore[misc]
        self.values = self._bound(args, dict(kwargs))
        places = [self._numbers(*each) for each in zip(self.schema.arguments, self.values, strict=True)]
        self._places = [None if found is None else len(found) for found in places]
        self.inputs = tuple(number for found in places for number in found or ())
        # What it writes to: in-place operators to their first operand, others to `out`.
        self.writes = tuple(
            number
            for argument, found in zip(self.schema.arguments, places, strict=True)
            if argument.alias_info is not None and argument.alias_info.is_write
            for number in found or ()
        )
        self.results = self._results(lengths)
        self.result_count = sum(1 if length == TENSOR else max(length, 0) for length in self.results)
        there = self._with_tensors([True] * len(self.inputs))
        name, overload = self.schema.name, self.schema.overload_name
        self.call = aten.library.OperatorCall(name, overload, there, lengths, layouts)

    def __reduce__(self):
        return _call_by_name, (self.name, *self._arguments)

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

    def _numbers(self, argument, value) -> list[int] | None:
        """The tensors' numbers of an argument; None if it is not one of tensors, or not there."""
        type_ = _without_optional(argument.real_type)
        if value is None:  # where it is not optional, too: some operators give and take tensors that are not there
            return None
        wanted, found = "a tensor's number", [value]
        if str(type_) in _TENSOR_LISTS:
            wanted, found = "a list of tensors' numbers", value if isinstance(value, list | tuple) else [value, ""]
            if "Optional" in str(type_):
                found = [each for each in found if each is not None]
        elif type_.kind() != "TensorType":
            return None
        if not all(map(_is_tensor_number, found)):
            raise TypeError(f"{self.name}: {argument.name} must be {wanted}, got {shown(value)}")
        return list(found)

    def _results(self, lengths: list[int]) -> tuple[int, ...]:
        types = [str(result.real_type) for result in self.schema.returns]
        known = {"Tensor", "List[Tensor]", *(_NUMBERS if "Tensor" in types else ())}
        for type_ in types:
            if type_ not in known:
                raise ValueError(f"{self.name} gives a result of the type {type_}, and steps give tensors")
        if len(lengths) != types.count("List[Tensor]"):
            raise ValueError(
                f"{self.name} gives {types.count('List[Tensor]')} lists of tensors, got {len(lengths)} lengths"
            )
        left = iter(lengths)
        return tuple(TENSOR if type_ == "Tensor" else NUMBER if type_ in _NUMBERS else next(left) for type_ in types)

    def code(self) -> list[int]:
        """As csrc/plan/plan.h has it."""
        return [self.call.number, len(self.inputs), self.result_count]

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Calls it from Python, with the tensors of `inputs`."""
        named = list(zip(self.schema.arguments, self._with_tensors(tensors), strict=True))
        args = [value for each, value in named if not each.kwarg_only]
        kwargs = {each.name: value for each, value in named if each.kwarg_only}
        found = self.operator(*args, **kwargs)
        found = list(found) if isinstance(found, tuple) else [found][: len(self.results)]
        flat: list[Tensor | None] = []
        for length, result in zip(self.results, found, strict=True):
            if length == NUMBER:
                continue
            if length != TENSOR and length != len(result):
                raise RuntimeError(f"{self.name} gave a list of {len(result)} tensors; the plan says {length}")
            flat += [result] if length == TENSOR else result
        *_, layouts = self._arguments
        return [_in_layout(*each) for each in zip(flat, layouts, strict=True)] if layouts else flat

    def _with_tensors(self, tensors: Sequence) -> list:
        """The values, with these in place of the tensors' numbers."""
        left, values = iter(tensors), []
        for place, value in zip(self._places, self.values, strict=True):
            if place is not None and isinstance(value, list | tuple):
                value = [None if each is None else next(left) for each in value]
            elif place is not None:
                value = next(left)
            values.append(value)
        return values

    def __str__(self) -> str:
        values = self._with_tensors([_Shown(f"%{number}") for number in self.inputs])
        named = zip(self.schema.arguments, values, strict=True)
        shown_values = [f"{each.name}={value}" if each.kwarg_only else str(value) for each, value in named]
        return f"{self.name}({', '.join(shown_values)})"


def _in_layout(tensor: Tensor | None, layout: tuple[Sequence[int], Sequence[int]]) -> Tensor | None:
    """As take_layout() in csrc/aten/operator_call.cpp."""
    if tensor is None:
        return None
    sizes, strides = layout
    if tensor.shape != torch.Size(sizes):
        raise RuntimeError(f"its result has the size {list(tensor.shape)}, and {list(sizes)} in the plan")
    found = zip(sizes, strides, tensor.stride(), strict=True)
    if tensor.numel() == 0 or all(size == 1 or wanted == stride for size, wanted, stride in found):
        return tensor
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _call_by_name(name: str, *arguments) -> AtenCall:
    """name: as an operator has it, such as aten::add.Tensor; one without an overload is the default."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return AtenCall(getattr(getattr(getattr(torch.ops, space), packet), overload or "default"), *arguments)


class _Shown(str):
    """A tensor's number in a text, the same alone and in a list."""

    def __repr__(self):
        return str(self)
