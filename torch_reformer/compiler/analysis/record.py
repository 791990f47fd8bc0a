"""Record the graphs that torch.compile makes of a function, the reports of their plans, and where and why the function
broke a graph off."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map_only

from ..ir.fake_tensors import Unsupported
from .breaks import break_of, explained, first_line, user_line
from .report import Report


@dataclasses.dataclass
class RecordedGraph:
    """A graph that torch.compile makes of a function.

    Attributes:
        passes: for its forward and, if there is one, its backward, the plan's report, or why there is no plan.
        titles: of the passes.
        broken: where and why the graph ends before the function does, and what that costs; None if it does not.
    """

    passes: list[Report | Unsupported]
    broken: str | None
    titles: tuple[str, ...] = ("forward", "backward")

    def reports(self) -> list[Report]:
        """Reports of the passes.

        Raises:
            Unsupported: a pass has no plan.
        """
        for report in self.passes:
            if isinstance(report, Unsupported):
                raise report
        return list(self.passes)


class Stopped(Exception):
    """The function could not be recorded to its end, for a reason that is a full sentence. graphs: until there."""

    def __init__(self, reason: str, graphs: list[RecordedGraph]):
        super().__init__(reason)
        self.graphs = graphs


def record(
    function: Callable,
    inputs: Sequence,
    keywords: Mapping[str, Any],
    autocast: torch.dtype | None,
    backend: Callable[[GraphModule, list, list[Report | Unsupported]], Callable],
    replace: Callable[[Tensor], Tensor],
) -> list[RecordedGraph]:
    """Run a function's forward and backward by torch.compile, on other tensors.

    Args:
        autocast: the data type of torch.autocast around the function, if any.
        backend: called as backend(graph, inputs, passes) for each graph of Dynamo's. It gives a function that runs the
            graph, and appends to `passes`.
        replace: gives the tensor to use instead of an input, a parameter or a buffer of the function.

    Raises:
        Stopped: the function branches on values of tensors that have none, or fails.
    """
    graphs: list[RecordedGraph] = []

    def compiled(module: GraphModule, args: list) -> Callable:
        graphs.append(RecordedGraph([], break_of(module)))
        return backend(module, args, graphs[-1].passes)

    def call(*args, **named):  # in this module: Dynamo skips PyTorch's own forwards, such as a Sequential's
        return function(*args, **named)

    torch._dynamo.reset()  # Dynamo compiles a function only so many times
    args, named = tree_map_only(Tensor, replace, (tuple(inputs), dict(keywords)))
    with _uncompiled(function), _with_replaced_tensors(function, replace) as own:
        tensors = [leaf for leaf in tree_leaves((own, args, named)) if isinstance(leaf, Tensor)]
        device = tensors[0].device.type if tensors else "cpu"
        try:
            with torch.autocast(device, autocast) if autocast else contextlib.nullcontext():
                results = _tensors(torch.compile(call, backend=compiled, dynamic=False)(*args, **named))
            differentiable = [result for result in results if result.requires_grad]
            if differentiable:
                torch.autograd.backward(differentiable, list(map(torch.ones_like, differentiable)))
        except Exception as error:
            raise Stopped(_reason_of_error(error), graphs) from error
    return graphs


def record_step(
    step: Any,
    batch: Sequence,
    compiled: Callable[[GraphModule, list[Report | Unsupported]], Callable],
    replace: Callable[[Tensor], Tensor],
) -> list[RecordedGraph]:
    """Run a whole training step, which torch_reformer.training_step() made, on other tensors.

    Raises:
        Stopped: the loss branches on values of tensors that have none, or fails.
    """
    torch._dynamo.reset()
    try:
        passes = step.record(tuple(batch), compiled, replace)
    except Exception as error:
        raise Stopped(_reason_of_error(error), []) from error
    titles = ("whole step",) if len(passes) == 1 else ("micro-batch before the last", "last micro-batch and update")
    return [RecordedGraph(passes, None, titles)]


def _tensors(result) -> list[Tensor]:
    """Tensors in a model's result, and in the fields of its dataclasses."""
    leaves = tree_leaves(result)
    fields = [vars(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)] + [
        tensor for values in fields for tensor in _tensors(values)
    ]


@contextlib.contextmanager
def _with_replaced_tensors(function: Callable, replace: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Replace a module's parameters and buffers. Names that share a tensor share its replacement."""
    if not isinstance(function, nn.Module):
        yield []
        return
    replaced = {}
    for tensor in (*function.parameters(), *function.buffers()):
        new = replace(tensor)
        replaced[tensor] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    named = [*function.named_parameters(remove_duplicate=False), *function.named_buffers(remove_duplicate=False)]
    tensors = {name: replaced[tensor] for name, tensor in named}
    with torch.nn.utils.stateless._reparametrize_module(function, tensors):
        yield list(replaced.values())


@contextlib.contextmanager
def _uncompiled(function: Callable) -> Iterator[None]:
    """Call modules that are compiled in place (by fuse()) as they are written."""
    modules = list(function.modules()) if isinstance(function, nn.Module) else []
    compiled = [(module, vars(module).pop("_compiled_call_impl", None)) for module in modules]
    try:
        yield
    finally:
        for module, call in compiled:
            if call is not None:
                module._compiled_call_impl = call


def _reason_of_error(error: Exception) -> str:
    from torch._dynamo.exc import BackendCompilerFailed
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    if isinstance(error, BackendCompilerFailed):
        why = f"{type(error.inner_exception).__name__}: {first_line(error.inner_exception)}"
        return f"a graph could not be planned because of an error in torch_reformer; please report it: {why}"
    place = user_line(getattr(error, "real_stack", None) or traceback.extract_tb(error.__traceback__))
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return f"{place}the model goes by a tensor's values, which only --measure has ({error.func})"
    of_operator = re.search(r"got (\w+)\((['\"])(.*)\2\)", str(error))  # as Dynamo quotes an operator's error
    why = of_operator.expand(r"\1: \3") if of_operator else f"{type(error).__name__}: {explained(str(error))}"
    return f"{place}the model fails: {why}"
