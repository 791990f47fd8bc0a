"""Compare a compiled function with eager: its results, its gradients and what it writes into its arguments."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from torch_reformer.compiler.backend import compile_graphs, reformer
from torch_reformer.compiler.pipeline import compile_graph


def with_dynamo(function: Callable, report: Callable, dynamic: bool = False) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, backend=reformer, options={"report": report}, dynamic=dynamic)


def without_dynamo(function: Callable, report: Callable) -> Callable:
    """Compile without Dynamo: far faster, for functions without graph breaks."""

    def planned(module: GraphModule, inputs: list) -> Callable:
        run = compile_graph(module, report)
        return lambda *tensors: run(list(tensors))

    def compiled(*args):
        leaves, spec = tree_flatten(args)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def of_tensors(*tensors):
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            return function(*tree_unflatten(leaves, spec))

        try:
            return compile_graphs(of_tensors, planned)(*(leaves[place] for place in places))
        except (DataDependentOutputException, DynamicOutputShapeException):
            return with_dynamo(function, report)(*args)

    return compiled


def between(function: Callable) -> Callable:
    """Wrap the function in element-wise operations that round nothing; its results are doubled, plus one."""

    def halved_and_doubled(tensor: Tensor) -> Tensor:
        return tensor * 0.5 * 2 if tensor.is_floating_point() else tensor

    @functools.wraps(function)
    def fused(*args):
        results = function(*tree_map_only(Tensor, halved_and_doubled, args))
        return tree_map_only(Tensor, lambda result: result * 2 + 1, results)

    return fused


def differences(function: Callable, args: tuple, compile: Callable = without_dynamo) -> list[str]:
    """Differences between the compiled function and `function(*args)`, a sentence each.

    Values may differ by as much as `torch.testing.assert_close` allows, or be at most twice as far from fp64 as
    eager's.
    """
    plans = []
    try:
        expected = outcome(function, args)
    except Exception as error:
        return [f"eager raises {type(error).__name__}: {error}"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got = outcome(compile(function, plans.append), args)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
    sentences = [str(warning.message) for warning in caught if "a graph runs without a plan" in str(warning.message)]
    if not plans and not sentences:
        sentences.append("nothing is planned")
    exact = functools.cache(lambda: outcome(function, in_double(args)))
    for name, values in expected.items():
        if len(got[name]) != len(values):
            sentences.append(f"{len(got[name])} {name}, not {len(values)}")
        for index, (ours, theirs) in enumerate(zip(got[name], values, strict=False)):
            with_strides = name != "gradients"
            if described(ours, with_strides) != described(theirs, with_strides):
                difference = f"{described(ours, with_strides)}, not {described(theirs, with_strides)}"
            elif isinstance(theirs, Tensor) and not _is_close(ours, theirs):
                difference = _is_less_accurate(ours, theirs, lambda: exact()[name][index])  # noqa: B023
            else:
                continue
            if difference:
                sentences.append(f"{name}[{index}]: {difference}")
    return sentences


def outcome(function: Callable, args: tuple) -> dict[str, list]:
    """Everything that a call with copies of the arguments returns or changes."""
    args = _copied(args)
    arguments = _tensors(args)
    leaves = [each for each in arguments if each.requires_grad]
    torch.manual_seed(0)
    results = tree_leaves(function(*args))
    torch.manual_seed(1)
    roots = [each for each in _tensors(results) if each.requires_grad]
    cotangents = [torch.randn(root.shape, dtype=_double(root.dtype)).to(root.dtype) for root in roots]
    gradients = torch.autograd.grad(roots, leaves, cotangents, allow_unused=True) if leaves and roots else ()
    memory = [_memory(tensor) for tensor in arguments]
    shares = [_memory(each) in memory and memory.index(_memory(each)) for each in _tensors(results)]
    outcome = {"results": results, "gradients": gradients, "arguments": arguments, "arguments in results": shares}
    return tree_map_only(Tensor, Tensor.detach, outcome)


def _tensors(values) -> list[Tensor]:
    """All tensors, including the parameters and buffers of modules."""
    tensors = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, nn.Module):
            tensors += [*leaf.parameters(), *leaf.buffers()]
        elif isinstance(leaf, Tensor):
            tensors.append(leaf)
    return tensors


def _memory(tensor: Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() or None


def _copied(values):
    """Copies with equal strides and `requires_grad`."""
    copies = copy.deepcopy(tree_map_only(Tensor, Tensor.detach, values))
    for ours, theirs in zip(_tensors(copies), _tensors(values), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    return copies


def in_double(values):
    def double(value):
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            return value.detach().to(_double(value.dtype)).requires_grad_(value.requires_grad)
        if isinstance(value, nn.Module):
            return copy.deepcopy(value).double()
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    return tree_map(double, values)


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def described(value: Any, with_strides: bool) -> str:
    if not isinstance(value, Tensor):
        return str(value)
    strides = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]
    return f"{value.dtype} {list(value.shape)}" + f" strides {strides}" * bool(with_strides and value.numel())


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    except AssertionError:
        return False
    return True


def _is_less_accurate(ours: Tensor, theirs: Tensor, exact: Callable[[], Tensor]) -> str | None:
    """Description of the difference, or None if the result is accurate enough."""
    apart = f"differs by {(ours.to(_double(ours.dtype)) - theirs.to(_double(ours.dtype))).abs().max().item():.2g}"
    finite = theirs.isfinite()
    if not (ours.is_floating_point() or ours.is_complex()) or not _is_close(ours[~finite], theirs[~finite]):
        return apart
    try:
        right = exact()
    except Exception:  # the function can't run in fp64
        return apart
    errors = [(each.to(_double(each.dtype)) - right)[finite].abs().max().item() for each in (ours, theirs)]
    if errors[0] <= 2 * errors[1]:
        return None
    return f"{apart}: from fp64 by {errors[0]:.2g}, eager by {errors[1]:.2g}"
