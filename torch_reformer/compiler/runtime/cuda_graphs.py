"""Record compiled graphs as CUDA graphs, by PyTorch's cudagraph trees: ``mode="reduce-overhead"``.

Graphs with symbolic sizes are recorded once for each tuple of sizes, as torch.compile's are, and by its options
(torch._inductor.config.triton): PyTorch warns of more than ``cudagraph_dynamic_shape_warn_limit`` sizes, records those
in ``cudagraph_capture_sizes`` only, or, with ``cudagraph_skip_dynamic_graphs``, none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.backends import cudagraphs
from torch._guards import TracingContext
from torch._inductor import config, cudagraph_trees
from torch._inductor.cudagraph_utils import get_placeholder_info, log_cudagraph_skip_and_bump_counter
from torch._inductor.utils import count_tangents
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef

from .compiled import Compiled
from .executable import keeps_graph

_reinterpreted = torch._C._dynamo.guards._reinterpret_tensor  # by far the fastest way to make a view


class CudaGraphs:
    """CUDA graphs of the forward and then of the backward of one of Dynamo's graphs. Without a GPU, or if PyTorch finds
    that a graph may not be recorded, it runs unrecorded."""

    def __init__(self):
        self._device: int | None = None  # the forward's, if that is recorded

    def forward(self, run: Compiled, module: GraphModule, inputs: list, is_inference: bool) -> Compiled:
        # Parameters and buffers keep their addresses, and need no copies.
        fixed = TracingContext.get().fw_metadata.static_input_indices
        if self._is_skipped(module, inputs, len(fixed)):
            return run
        self._device = cudagraphs.get_device_index(module)
        return self._recorded(run, module, inputs, fixed, is_inference=is_inference, is_backward=False)

    def backward(self, run: Compiled, module: GraphModule, inputs: list) -> Compiled:
        if self._device is None:
            return run
        fixed = range(count_tangents(module))  # what the forward saved is in the CUDA graphs' memory
        announced = Announced(run, self._device)
        if self._is_skipped(module, inputs, len(fixed)):
            return announced
        recorded = self._recorded(run, module, inputs, fixed, is_inference=False, is_backward=True)
        return RecordedBackward(recorded, announced)

    def step(self, module: GraphModule, inputs: list, fixed: int) -> Callable[[Compiled, GraphModule], Compiled] | None:
        """A function that records what runs a whole training step, which writes the inputs that keep their addresses,
        and its graph as it is then; None if it may not be recorded."""
        if self._is_skipped(module, inputs, fixed):
            return None
        options = {
            "device_index": cudagraphs.get_device_index(module),
            "placeholders": get_placeholder_info(module.graph),
            "mutated_input_idxs": set(range(fixed)),
            "is_inference": True,
            "is_backward": False,
        }
        numbers = [*map(_is_number, inputs)]

        def recorded(run: Compiled, planned: GraphModule) -> Recorded:
            # One for each result of what runs, of which the graph may have lost some since it was checked.
            stack_traces = cudagraphs.get_stack_traces(planned)
            return Recorded(run, numbers, range(fixed), options | {"stack_traces": stack_traces})

        return recorded

    @staticmethod
    def _is_skipped(module: GraphModule, inputs: list, fixed: int) -> bool:
        why = cudagraphs.check_for_skip(module, fixed)
        if not why and config.triton.cudagraph_skip_dynamic_graphs and any(map(_is_number, inputs)):
            why = "skipping cudagraphs due to sizes that change (cudagraph_skip_dynamic_graphs)"
        if why:
            log_cudagraph_skip_and_bump_counter(why)
        return bool(why)

    def _recorded(self, run: Compiled, module: GraphModule, inputs: list, fixed: Sequence[int], **which) -> Compiled:
        options = {
            "device_index": self._device,
            "stack_traces": cudagraphs.get_stack_traces(module),
            "placeholders": get_placeholder_info(module.graph),
            "mutated_input_idxs": cudagraphs.find_input_mutations(module.graph),
            **which,
        }
        return Recorded(run, [*map(_is_number, inputs)], fixed, options)


def _is_number(input: Any) -> bool:
    """True for a whole number, such as a size, also if it is a symbol when the graph is compiled."""
    return isinstance(input, (int, torch.SymInt))


class _Wrapper(Compiled):
    def __init__(self, run: Compiled):
        super().__init__()
        self.run = run

    def prepare_for_serialization(self) -> None:
        self.run.prepare_for_serialization()

    def is_loaded(self) -> None:
        self.run.is_loaded()


class Recorded(_Wrapper):
    """A graph that is recorded at its first calls, and then replayed.

    PyTorch makes the results of each replay anew in Python that share memory, such as the statistics of a norm, and
    looks after each of them. So the recorded graph gives such memory once, and the results are made of that afterwards.

    Args:
        numbers: for each input, whether it is a whole number: for other ones the graph is recorded again.
        fixed: the positions of inputs that keep their addresses.
        options: further arguments of cudagraphify_impl.
    """

    def __init__(self, run: Compiled, numbers: list[bool], fixed: Sequence[int], options: dict[str, Any]):
        super().__init__(run)
        self._arguments = [1 if is_number else None for is_number in numbers], fixed, options
        self._numbers = [place for place, is_number in enumerate(numbers) if is_number]
        self._replay = None
        self._parts: dict[tuple, list[_Part]] = {}  # by the numbers among the inputs

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_replay": None, "_parts": {}}

    def __call__(self, args: list) -> list:
        if self._replay is None:
            inputs, fixed, options = self._arguments
            self._replay = cudagraph_trees.cudagraphify_impl(self._run, inputs, fixed, **options)
        numbers = self._key(args)
        results = list(self._replay(args))
        if parts := self._parts[numbers]:
            bases = {part.base: results[part.base] for part in parts}
            for part in parts:
                results[part.place] = _reinterpreted(bases[part.base], part.sizes, part.strides, part.offset)
        return results

    def _key(self, args: list) -> tuple:
        return tuple([args[place] for place in self._numbers])

    def _run(self, args: list) -> list:
        """The results, of which those that share memory are replaced by that memory and by None."""
        # Weak references, by which no new memory gets the number of an input's that is freed meanwhile.
        inputs = [StorageWeakRef(arg.untyped_storage()) for arg in args if isinstance(arg, Tensor)]
        numbers, given = self._key(args), {input.cdata for input in inputs}
        results = list(self.run(args))
        tensors = [(place, each) for place, each in enumerate(results) if isinstance(each, Tensor)]
        sharing: dict[tuple[int, torch.dtype], list[int]] = {}
        for place, tensor in tensors:
            if _memory(tensor) not in given and tensor.numel():
                sharing.setdefault((_memory(tensor), tensor.dtype), []).append(place)
        parts = []
        for places in sharing.values():
            if len(places) > 1:
                of_memory = [results[place] for place in places]
                results[places[0]] = _all_memory(of_memory[0])
                for place, part in zip(places, of_memory, strict=True):
                    parts.append(_Part(place, places[0], tuple(part.shape), part.stride(), part.storage_offset()))
                    if place != places[0]:
                        results[place] = None
        self._parts[numbers] = parts
        return results


class _Part(NamedTuple):
    """A result that is made of another one, which is all of the memory that they share."""

    place: int
    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _all_memory(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


class Announced(_Wrapper):
    """An unrecorded backward of a recorded forward: tells the cudagraph trees that the backward runs."""

    def __init__(self, run: Compiled, device: int):
        super().__init__(run)
        self._device = device

    def __call__(self, args: list) -> list:
        manager = cudagraph_trees.get_manager(self._device, create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return self.run(args)


class RecordedBackward(_Wrapper):
    """A recorded backward. As a replay may overwrite what the forward saved, the backward runs unrecorded if that is
    needed again (retain_graph=True)."""

    def __init__(self, recorded: Recorded, announced: Announced):
        super().__init__(recorded)
        self._announced = announced

    def __call__(self, args: list) -> list:
        return self._announced(args) if keeps_graph() else self.run(args)
