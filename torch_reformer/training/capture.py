"""One plan of a training step: the backend that torch.compile calls with the graph of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from ..compiler.backend import compile_step
from ..compiler.joint_graph.start_collectives import start_collectives
from ..compiler.joint_graph.whole_step import without_factor
from ..compiler.pipeline import pre_grad
from .averaging import Average, Unaveraged, Weights
from .data_parallel import DataParallel
from .scaling import Scaling
from .update import State, Update, like


def clipped(grads: Sequence[Tensor], most: float) -> list[Tensor]:
    """Gradients as torch.nn.utils.clip_grad_norm_ leaves them: one pass for the norms, one for the products."""
    total = nn.utils.get_total_norm(grads, foreach=False)
    factor = torch.clamp(most / (total + 1e-6), max=1.0)
    return [grad * factor.to(grad.dtype) for grad in grads]


class StepBackend:
    """A backend for torch.compile that runs the whole step for the graph of a loss.

    Args:
        update: the update; None if the step gives gradients only.
        share: the factor of the loss, one over the number of micro-batches.
        sums: gradients of earlier micro-batches by parameter; None if there is one micro-batch.
        is_last: whether the update follows.
        keep: what gets the gradients by parameter; None if nobody does.
        scaling: of the loss, if it is scaled.
        average: of weights, if the plan updates one after the update.
        replicas: of a model in DDP, whose gradients are reduced; None for other models.
        compile: gives a function that runs a graph.
    """

    def __init__(
        self,
        trained: set[nn.Parameter],
        update: Update | None,
        *,
        clip: float | None,
        share: float,
        sums: dict[nn.Parameter, Tensor] | None,
        is_last: bool,
        keep: Callable[[list[nn.Parameter], list[Tensor]], None] | None,
        scaling: Scaling | None,
        average: Average | None,
        replicas: DataParallel | None,
        mode: str | None,
        budget: float,
        compile: Callable,
    ):
        self._trained, self._update, self._clip, self._share = trained, update, clip, share
        self._sums, self._is_last, self._keep, self._mode, self._compile = sums, is_last, keep, mode, compile
        self._budget, self._scaling, self._average, self._replicas = budget, scaling, average, replicas

    def __call__(self, module: GraphModule, inputs: list[Any]) -> Callable:
        pre_grad(module)
        nodes = module.graph.find_nodes(op="placeholder")
        real = [node.meta["grapharg"].example for node in nodes]
        fake_mode = detect_fake_mode(inputs)
        examples = [_fake(tensor, fake_mode) for tensor in inputs]
        places = [place for place, tensor in enumerate(real) if isinstance(tensor, Tensor) and tensor in self._trained]
        places, loss = self._with_gradients(module, examples, places)
        params = [real[place] for place in places]
        update = self._update if self._is_last else None
        sums = [self._sum(param) for param in params] if self._sums is not None else []
        own = State(update, params) if update else None
        state = own.tensors() if own else []
        average = self._average if update else None
        weights = average.weights() if average else None
        averaged = self._besides(weights, real) if weights else []
        # Inputs that keep their addresses come first: parameters and buffers, sums, state and averaged weights.
        first = [place for place, value in enumerate(real) if _is_static(value)]
        rest = [place for place, value in enumerate(real) if not _is_static(value)]
        scaling, one = self._scaling, params[0].new_ones((), dtype=loss.dtype, device=loss.device)
        # The gradient of the loss, and the number of steps since it changed, if it is a scale.
        scales = scaling.tensors(loss.device) if scaling else [one]
        after_state = len(first) + len(sums) + len(state)
        tangent = after_state + len(averaged)
        fixed = tangent + len(scales)
        extra = [
            fake_mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in (*sums, *state, *averaged, *scales)
        ]
        fakes = [*_detached(examples, first), *extra, *_detached(examples, rest)]
        same = [(place, real[place]) for place in (first if weights else places)]
        at = {place: number for number, place in enumerate([*first, *[None] * len(extra), *rest])}
        results = len(_results(module))
        layouts = _layouts([*(real[place] for place in first), *state, *averaged])

        def step(*flat):
            inputs = [flat[at[place]] for place in range(len(real))]
            grads, outputs = self._gradients(module, inputs, places, flat[tangent])
            before = flat[len(first) : len(first) + len(sums)]
            with torch.no_grad():
                if sums and self._is_last:
                    grads = [sum + grad for sum, grad in zip(before, grads, strict=True)]
                if self._replicas and self._is_last:
                    means = self._replicas.reduced(self._trained, params, grads)
                    grads = [like(mean, grad) for mean, grad in zip(means, grads, strict=True)]
                found = []
                if scaling and self._is_last:
                    grads, bad = scaling.unscaled(grads, flat[tangent])
                    found = [bad]
                if self._clip is not None and self._is_last:
                    grads = clipped(grads, self._clip)
            return [*outputs, *grads, *found]

        gives_grads = self._keep is not None and self._is_last

        def append(graph_module: GraphModule) -> int:
            """Add what writes in place after all else. Drop gradients that nobody gets, and return their number."""
            if not scaling:
                without_factor(graph_module, tangent)
            start_collectives(graph_module.graph)
            graph, output = graph_module.graph, graph_module.graph.output_node()
            nodes = graph.find_nodes(op="placeholder")
            outputs = _results(graph_module)
            grads = outputs[results : results + len(params)]
            found = outputs[-1] if scaling and self._is_last else None
            before = nodes[len(first) : len(first) + len(sums)]
            if update:
                owned = [nodes[at[place]] for place in places]
                inputs = nodes[len(first) + len(sums) : after_state]
                update.append(graph, list(zip(params, owned, grads, strict=True)), inputs, found)
            if average and weights:
                node_of = dict(zip(averaged, nodes[after_state:tangent], strict=True))
                node_of |= {real[place]: nodes[at[place]] for place in first}
                average.append(graph, weights, [node_of[tensor] for tensor in weights.tensors], owned)
            if found:
                scaling.append(graph, nodes[tangent], nodes[tangent + 1], found)
            if sums:
                with graph.inserting_before(output):
                    if self._is_last:
                        graph.call_function(torch.ops.aten._foreach_zero_.default, (list(before),))
                    else:
                        graph.call_function(torch.ops.aten._foreach_add_.List, (list(before), grads))
            kept = _results(graph_module)[: results + (len(params) if gives_grads else 0)]
            output.args = (kept,)
            return len(outputs) - len(kept)

        compiled = compile_step(
            step,
            fakes,
            append,
            fixed=fixed,
            tangent=tangent,
            results=results,
            budget=self._budget,
            mode=self._mode,
            compile=self._compile,
        )

        def run(*args):
            state = own.tensors() if own else ()
            scales = scaling.tensors(one.device) if scaling else (one,)
            if any(args[place] is not tensor for place, tensor in same) or (weights and weights.have_changed()):
                raise ChangedParameters
            fixed = [args[place] for place in first]
            # Dynamo looks at the loss's inputs only, and not at parameters' strides in torch 2.11.
            if _layouts([*fixed, *state, *averaged]) != layouts:
                raise ChangedParameters
            with torch.no_grad():
                flat = [*fixed, *sums, *state, *averaged, *scales, *(args[place] for place in rest)]
                outputs = compiled(*flat)
                if update:
                    torch.autograd.graph.increment_version([*params, *state, *(weights.averaged if weights else ())])
                if average:
                    average.note()
            if gives_grads and self._keep:
                self._keep(params, list(outputs[results : results + len(params)]))
            return tuple(outputs[:results])

        return run

    def _sum(self, param: nn.Parameter) -> Tensor:
        if param not in self._sums or _layouts([self._sums[param]]) != _layouts([param]):
            self._sums[param] = torch.zeros_like(param, requires_grad=False)
        return self._sums[param]

    @staticmethod
    def _besides(weights: Weights, real: list) -> list[Tensor]:
        """Tensors of the weights that are no inputs of the loss."""
        inputs = {id(value): value for value in real}
        if not all(_is_static(inputs[id(tensor)]) for tensor in weights.tensors if id(tensor) in inputs):
            raise Unaveraged("the loss takes weights as arguments")
        return [tensor for tensor in weights.tensors if id(tensor) not in inputs]

    def _with_gradients(self, module: GraphModule, examples: list, places: list[int]) -> tuple[list[int], Tensor]:
        """Those of the places whose inputs the loss depends on, and the fake loss."""
        with detect_fake_mode(examples), torch.enable_grad():
            leaves = {place: examples[place].detach().clone().requires_grad_() for place in places}
            copies = [leaves.get(place, _copied(tensor)) for place, tensor in enumerate(examples)]
            loss = module(*copies)[0]
            if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
                raise ValueError("a training step needs a loss that is one number and depends on parameters")
            grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return [place for place, grad in zip(places, grads, strict=True) if grad is not None], loss

    def _gradients(
        self, module: GraphModule, inputs: list, places: list[int], tangent: Tensor
    ) -> tuple[Sequence[Tensor], list]:
        with torch.enable_grad():
            leaves = {place: inputs[place].detach().requires_grad_() for place in places}
            outputs = module(*(leaves.get(place, tensor) for place, tensor in enumerate(inputs)))
            loss = outputs[0] if self._share == 1 else outputs[0] * self._share
            grads = torch.autograd.grad(loss, list(leaves.values()), tangent.to(loss.dtype))
        with torch.no_grad():
            shaped = [like(grad, inputs[place]) for grad, place in zip(grads, places, strict=True)]
        return shaped, [output.detach() if isinstance(output, Tensor) else output for output in outputs]


class ChangedParameters(Exception):
    """The model has other parameters, or its state others in memory, than those that its plan was made for."""


def _fake(value: Any, fake_mode: Any) -> Any:
    """The value as Dynamo traced it: with the symbols of its sizes."""
    if not isinstance(value, Tensor) or (isinstance(value, FakeTensor) and value.fake_mode is fake_mode):
        return value
    context = TracingContext.get().tensor_to_context.get(value)
    return fake_mode.from_tensor(value, static_shapes=context is None, symbolic_context=context)


def _layouts(tensors: Sequence[Tensor]) -> list[tuple]:
    return [(tensor.stride(), tensor.dtype) for tensor in tensors]


def _results(module: GraphModule) -> list[Any]:
    results: Any = module.graph.output_node().args[0]
    return list(results)


def _is_static(tensor: Any) -> bool:
    """True for parameters and buffers, which Dynamo marks."""
    return isinstance(tensor, nn.Parameter) or getattr(tensor, "_dynamo_static_input_type", None) is not None


def _detached(examples: list, places: list[int]) -> list:
    return [examples[place].detach() if isinstance(examples[place], Tensor) else examples[place] for place in places]


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
