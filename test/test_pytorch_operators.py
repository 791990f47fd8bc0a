"""PyTorch's own samples of its operators (OpInfo) under the backend: alone, and between element-wise operations."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from against_eager import between, differences, with_dynamo, without_dynamo
from pytorch_suites import DTYPES, assert_known, few, of_known_version, operators
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

SAMPLES = 4  # per operator, plus one that is not contiguous
DYNAMIC = 16  # one of this many operators is tested with symbolic sizes

UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")

pytestmark = [pytest.mark.slow, pytest.mark.nightly, of_known_version]


def pytest_generate_tests(metafunc):
    ops = operators(metafunc.config)
    if "dtype" in metafunc.fixturenames:
        cases = [(op, name) for op in ops for name in DTYPES if DTYPES[name] in op.supported_dtypes("cpu")]
        metafunc.parametrize("op, dtype", cases, ids=[f"{full_name(op)}-{dtype}" for op, dtype in cases])
    else:
        sample = [op for op in ops[::DYNAMIC] if torch.float32 in op.supported_dtypes("cpu")]
        metafunc.parametrize("op", sample, ids=full_name)


def full_name(op) -> str:
    return ".".join(filter(None, (op.name, op.variant_test_name)))


def test_operator(op, dtype):
    assert_known(full_name(op), dtype, found_differences(op, DTYPES[dtype]))


def test_operator_of_dynamic_sizes(op):
    with_symbols = functools.partial(with_dynamo, dynamic=True)
    assert_known(full_name(op), "dynamic", found_differences(op, torch.float32, with_symbols))


def found_differences(op, dtype: torch.dtype, compile: Callable = without_dynamo) -> list[str]:
    gradients = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    found = []
    for number, sample in enumerate(samples(op, dtype, gradients)):
        args = sample.input, sample.args, sample.kwargs
        functions = {"alone": call(op), "between": between(call(op))}
        if number == 0 and op.inplace_variant and not sample.broadcasts_input:
            functions["in place"] = call(op.inplace_variant)
            if op.supports_inplace_autograd or not gradients:
                functions["in place between"] = between(call(op.inplace_variant))
        for place, function in functions.items():
            given = tree_map_only(Tensor, Tensor.detach, args) if place == "in place" else args
            found += [f"{place}, sample {number}: {difference}" for difference in differences(function, given, compile)]
    return found


def call(operator: Callable) -> Callable:
    def result(input, args, kwargs):
        value = operator(input, *args, **kwargs)
        return value.zero_() if getattr(operator, "name", None) in UNINITIALISED else value

    return result


def samples(op, dtype: torch.dtype, gradients: bool) -> list:
    """A few of PyTorch's samples: different kinds first, and the first sample again with noncontiguous tensors."""
    every = [each for each in op.sample_inputs("cpu", dtype, requires_grad=gradients) if is_strided(each)]
    kinds = {kind(each): place for place, each in reversed(list(enumerate(every)))}
    places = sorted(kinds.values())[:SAMPLES]
    others = [place for place in range(len(every)) if place not in places]
    places += few(others, SAMPLES - len(places))
    return [every[place] for place in places] + [each.noncontiguous() for each in every[:1]]


def tensors(sample) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]


def is_strided(sample) -> bool:
    return all(tensor.layout is torch.strided for tensor in tensors(sample))


def kind(sample) -> tuple:
    """Key of a sample's kind: tensors without dimensions, empty or not contiguous, and names of keyword arguments."""
    shapes = ((tensor.dim() == 0, tensor.numel() == 0, tensor.is_contiguous()) for tensor in tensors(sample))
    return *shapes, *sample.kwargs
