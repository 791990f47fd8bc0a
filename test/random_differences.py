"""Differences of a compiled random graph (random_graphs.py) from eager, by its own and by fp64."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import warnings
from collections.abc import Callable

import torch
from against_eager import described, in_double, outcome, without_dynamo
from random_graphs import Graph
from random_operators import overlaps
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

NAMES = ("results", "gradients", "arguments")


def differences(graph: Graph, compile: Callable = without_dynamo) -> list[str] | None:
    """Differences between the compiled graph and eager, a sentence each; None if eager raises.

    An element may be as far from fp64's as twice the farthest of eager's, by which inputs that are hardly different
    count, too, and by the rounding of its type."""
    function, args = graph.made()
    try:
        eager = outcome(function, args)
    except RuntimeError:
        return None
    plans: list = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ours = outcome(compile(function, plans.append), args)
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
    sentences = [
        str(warning.message)
        for warning in caught
        if "torch_reformer" in str(warning.message) or "a graph runs without a plan" in str(warning.message)
    ]
    others: list[dict] = []
    # Eager multiplies infinity and NaN by weights of 0, too. On CPUs, its gradient of an instance norm has NaN in
    # planes that have none if it gets one that is transposed.
    is_finite = re.search(r"mode='\w*(linear|cubic)|instance_norm", str(graph)) is not None
    for name in ("results", "arguments", "gradients", "arguments in results"):
        if len(ours[name]) != len(eager[name]):
            sentences.append(f"{len(ours[name])} {name}, not {len(eager[name])}")
        for i, (one, right) in enumerate(zip(ours[name], eager[name], strict=False)):
            with_strides = name != "gradients"
            if described(one, with_strides) != described(right, with_strides):
                if name == "results" and described(one, with_strides) == _fake_results(graph)[i]:
                    continue  # PyTorch traces with these strides
                sentences.append(f"{name}[{i}]: {described(one, with_strides)}, not {described(right, with_strides)}")
            elif isinstance(right, Tensor) and not _equal(one, right):
                others = others or _references(graph)
                if others and (text := _difference(one, right, [each[name][i] for each in others], is_finite)):
                    sentences.append(f"{name}[{i}]: {text}")
    return sentences


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(12345.0), other.nan_to_num(12345.0)) and torch.equal(one.isnan(), other.isnan())


def _fake_results(graph: Graph) -> list[str]:
    """Descriptions of the results by PyTorch's fake tensors, whose strides are not always eager's."""
    function, args = graph.made()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return [described(result, True) for result in function(*map(mode.from_tensor, args))]


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).double() if dtype.is_floating_point else tensor.to(dtype)


def _wide(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.double() if dtype.is_floating_point else tensor.to(dtype)


def _references(graph: Graph) -> list[dict]:
    """Outcomes of eager in fp64, where casts round and where they do not, and in the own type where arguments and
    results of lines are hardly different."""
    found = []
    for cast in (_rounded, _wide):
        function, args = graph.made(cast)
        with contextlib.suppress(RuntimeError):  # of norms of what is computed of truth values, in fp32 as before
            found.append(outcome(function, in_double(args)))
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        function, args = graph.made(after=functools.partial(_change, random=random))
        for arg in args:
            _change(arg, random)
        found.append(outcome(function, args))
    return found


def _change(tensor: Tensor, random: torch.Generator) -> None:
    """Change the last place of each element by up to one."""
    if tensor.is_floating_point() and not overlaps(tensor):
        factors = 1 + torch.randint(-1, 2, tensor.shape, generator=random) * torch.finfo(tensor.dtype).eps
        tensor.data.copy_(tensor.data.double() * factors)


def _difference(ours: Tensor, eager: Tensor, others: list[Tensor], is_finite: bool) -> str | None:
    """Description of the difference, or None if the result is accurate enough.

    Args:
        is_finite: only finite elements of eager's count.
    """
    if not ours.is_floating_point():
        right = [eager, *others]
        wrong = torch.stack([ours != each for each in right]).all(0)
        return f"{int(wrong.sum())} elements differ" if wrong.any() else None
    exact, *near = (each.double() for each in others)
    ours, own, kind = ours.double(), eager.double(), torch.finfo(eager.dtype)
    near = torch.stack([own, *near])
    same = [(ours == each) | (ours.isnan() & each.isnan()) for each in (exact, *near)]
    finite = near.isfinite() & exact.isfinite()
    error = torch.where(finite, near - exact, 0.0).abs().amax().item() if exact.numel() else 0.0
    largest = torch.where(exact.isfinite(), exact, 0.0).abs().amax().item()
    places = {16: 2, 32: 16, 64: 1 << 20}[kind.bits]
    allowed = 2 * error + 2 * kind.eps * exact.abs() + places * kind.eps * max(1.0, largest)
    close = (ours - exact).abs() <= allowed
    beyond = (exact.abs() >= kind.max * (1 - kind.eps)) & (ours == exact.sign() * math.inf)
    wrong = ~(torch.stack(same).any(0) | close | beyond)
    if is_finite or kind.max < 1e5:  # fp16 overflows in eager, where a kernel computes in fp32
        wrong &= own.isfinite()
    if not wrong.any():
        return None
    place = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ: [{place}] is {ours[place].item():.9g}, eager's "
        f"{own[place].item():.9g}, fp64's {exact[place].item():.9g} (eager's error {error:.2g})"
    )
