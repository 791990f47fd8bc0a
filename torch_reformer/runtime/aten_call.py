"""Call of any PyTorch operator as a step of a plan. The arguments are brought into the order of the operator's schema,
and the native library checks them once."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.operator_schemas import get_signature_for_torch_op

from . import aten
from .arguments import shown
from .sizes import plain

TENSOR, NUMBER = -1, -2  # kinds of results, in place of the length of a list of tensors
# results of these types beside tensors are dropped: their values are known in advance
_NUMBERS = ("int", "float", "bool")
_TENSOR_LISTS = ("List[Tensor]", "List[Optional[Tensor]]")


def _without_optional(type_):
    return type_.getElementType() if type_.kind() == "OptionalType" else type_


def _is_tensor_number(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class AtenCall:
    """One call of an operator; tensors are given by their numbers in the plan.

    Args:
        operator: such as torch.ops.aten.add.Tensor.
        args, kwargs: the arguments as in a call from Python, with numbers in place of tensors.
        lengths: the length of each list of tensors among the results.
        layouts: (sizes, strides) of the first result tensors. A result with other strides is copied; further results
            are left as they are.

    Raises:
        TypeError: if an argument is missing, superfluous or of another type.
        ValueError: if the results are neither tensors nor numbers beside tensors.
        RuntimeError: if there is no library for the installed version of torch.
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
        self.arguments = args, kwargs, lengths, layouts
        # This always returns schemas, since each operator of torch.ops has one.
        _, (self.schema, *_) = get_signature_for_torch_op(operator, return_schemas=True)  # type: ignore[misc]
        places = [
            self._numbers(argument, value) for argument, value in zip(self.schema.arguments, self.values, strict=True)
        ]
        self._places = [None if numbers is None else len(numbers) for numbers in places]
        self.inputs = tuple(number for numbers in places for number in numbers or ())
        # Tensors that the call writes to: the first operand of in-place operators, `out` of others.
        self.writes = tuple(
            number
            for argument, numbers in zip(self.schema.arguments, places, strict=True)
            if argument.alias_info is not None and argument.alias_info.is_write
            for number in numbers or ()
        )
        self.results = self._results(lengths)
        self.result_count = sum(1 if length == TENSOR else max(length, 0) for length in self.results)
        self.call = aten.library.OperatorCall(*plain(self.described()))

    @functools.cached_property
    def values(self) -> list:
        """The arguments in the order of the operator's schema."""
        args, kwargs, *_ = self.arguments
        return self._bound(args, dict(kwargs))

    def described(self) -> tuple:
        """Arguments of the native call: the operator's name and overload, its arguments with True in place of tensors,
        and lengths and layouts of its results."""
        _, _, lengths, layouts = self.arguments
        placeholders = self._with_tensors([True] * len(self.inputs))
        return self.schema.name, self.schema.overload_name, placeholders, lengths, layouts

    def again(self, arguments: tuple, call) -> AtenCall:
        """The call with other numbers among its arguments, those that stand for tensors excepted; call: the native call
        with these numbers."""
        other = object.__new__(AtenCall)
        other.__dict__ = {name: value for name, value in self.__dict__.items() if name != "values"}
        other.arguments, other.call = arguments, call
        return other

    def __reduce__(self):
        return _call_by_name, (self.name, *self.arguments)

    def _bound(self, args: Sequence, kwargs: dict[str, Any]) -> list:
        """Argument values in the order of the schema, with defaults filled in and single numbers expanded to lists
        where the schema says so (int[2])."""
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
        """Tensor numbers in an argument; None if the argument is absent or holds no tensors."""
        type_ = _without_optional(argument.real_type)
        if value is None:  # also for mandatory arguments: some operators take and return absent tensors
            return None
        expected, numbers = "a tensor's number", [value]
        if str(type_) in _TENSOR_LISTS:
            expected, numbers = "a list of tensors' numbers", value if isinstance(value, list | tuple) else [value, ""]
            if "Optional" in str(type_):
                numbers = [number for number in numbers if number is not None]
        elif type_.kind() != "TensorType":
            return None
        if not all(map(_is_tensor_number, numbers)):
            raise TypeError(f"{self.name}: {argument.name} must be {expected}, got {shown(value)}")
        return list(numbers)

    def _results(self, lengths: list[int]) -> tuple[int, ...]:
        types = [str(result.real_type) for result in self.schema.returns]
        known = {"Tensor", "List[Tensor]", *(_NUMBERS if "Tensor" in types else ())}
        for type_ in types:
            if type_ not in known:
                raise ValueError(f"{self.name} has a result of type {type_}, but the results of a step must be tensors")
        if len(lengths) != types.count("List[Tensor]"):
            raise ValueError(
                f"{self.name} returns {types.count('List[Tensor]')} lists of tensors, got {len(lengths)} lengths"
            )
        left = iter(lengths)
        return tuple(TENSOR if type_ == "Tensor" else NUMBER if type_ in _NUMBERS else next(left) for type_ in types)

    def code(self, native=None) -> list[int]:
        """Code of this call for csrc/plan/plan.h; native: another native call, as of again()."""
        return [(native or self.call).number, len(self.inputs), self.result_count]

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Call the operator from Python with the tensors for `inputs`."""
        named = list(zip(self.schema.arguments, self._with_tensors(tensors), strict=True))
        args = [value for argument, value in named if not argument.kwarg_only]
        kwargs = {argument.name: value for argument, value in named if argument.kwarg_only}
        results = self.operator(*args, **kwargs)
        results = list(results) if isinstance(results, tuple) else [results][: len(self.results)]
        flat: list[Tensor | None] = []
        for length, result in zip(self.results, results, strict=True):
            if length == NUMBER:
                continue
            if length != TENSOR and length != len(result):
                raise RuntimeError(f"{self.name} gave a list of {len(result)} tensors; the plan says {length}")
            flat += [result] if length == TENSOR else result
        *_, layouts = self.arguments
        return [*map(_in_layout, flat, layouts), *flat[len(layouts) :]]

    def _with_tensors(self, tensors: Sequence) -> list:
        """Argument values with tensors in place of their numbers."""
        left, values = iter(tensors), []
        for place, value in zip(self._places, self.values, strict=True):
            if place is not None and isinstance(value, list | tuple):
                value = [None if number is None else next(left) for number in value]
            elif place is not None:
                value = next(left)
            values.append(value)
        return values

    def __str__(self) -> str:
        values = self._with_tensors([_Shown(f"%{number}") for number in self.inputs])
        named = zip(self.schema.arguments, values, strict=True)
        shown_values = [f"{argument.name}={value}" if argument.kwarg_only else str(value) for argument, value in named]
        return f"{self.name}({', '.join(shown_values)})"


def _in_layout(tensor: Tensor | None, layout: tuple[Sequence[int], Sequence[int]]) -> Tensor | None:
    """Copy a result that has other strides than the plan says; counterpart of take_layout() in
    csrc/aten/operator_call.cpp."""
    if tensor is None:
        return None
    sizes, strides = layout
    if tensor.shape != torch.Size(sizes):
        raise RuntimeError(f"its result has the size {list(tensor.shape)}, and {list(sizes)} in the plan")
    dimensions = zip(sizes, strides, tensor.stride(), strict=True)
    if tensor.numel() == 0 or all(size == 1 or expected == stride for size, expected, stride in dimensions):
        return tensor
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _call_by_name(name: str, *arguments) -> AtenCall:
    """Rebuild a pickled call. name: the operator's name, such as aten::add.Tensor; a name without an overload means the
    default overload."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return AtenCall(getattr(getattr(getattr(torch.ops, space), packet), overload or "default"), *arguments)


class _Shown(str):
    """Tensor number as text that prints without quotes, also inside a list."""

    def __repr__(self):
        return str(self)
