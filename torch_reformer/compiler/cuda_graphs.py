"""CUDA graphs of what a compiled graph runs, by PyTorch's own (cudagraph trees): ``mode="reduce-overhead"``."""

from __future__ import annotations

from collections.abc import Callable

from torch._dynamo.backends import cudagraphs
from torch._guards import TracingContext
from torch._inductor import cudagraph_trees
from torch._inductor.cudagraph_utils import get_placeholder_info, log_cudagraph_skip_and_bump_counter
from torch._inductor.utils import count_tangents
from torch.fx import GraphModule

Run = Callable[[list], list]


class CudaGraphs:
    """Those of one of Dynamo's graphs: of its forward, then of its backward. Without a GPU, or where PyTorch says that
    none may be recorded, what would be recorded runs as it is."""

    def __init__(self):
        self._device: int | None = None  # of the forward's

    def forward(self, run: Run, module: GraphModule, inputs: list, is_inference: bool) -> Run:
        # Parameters and buffers stay where they are: they need no copies.
        fixed = TracingContext.get().fw_metadata.static_input_indices
        if self._is_skipped(module, len(fixed)):
            return run
        self._device = cudagraphs.get_device_index(module)
        return self._recorded(run, module, inputs, fixed, is_inference=is_inference, is_backward=False)

    def backward(self, run: Run, module: GraphModule, inputs: list) -> Run:
        if self._device is None:
            return run
        fixed = range(count_tangents(module))  # what the forward saved lies in the graphs' memory
        if not self._is_skipped(module, len(fixed)):
            return self._recorded(run, module, inputs, fixed, is_inference=False, is_backward=True)
        manager = cudagraph_trees.get_manager(self._device, create_if_none_exists=False)

        def announced(inputs: list) -> list:
            manager.set_to_running_backward()
            return run(inputs)

        return announced

    @staticmethod
    def _is_skipped(module: GraphModule, fixed: int) -> bool:
        why = cudagraphs.check_for_skip(module, fixed)
        if why:
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {why}")
        return bool(why)

    def _recorded(self, run: Run, module: GraphModule, inputs: list, fixed, **which: bool) -> Run:
        return cudagraph_trees.cudagraphify_impl(
            run,
            inputs,
            fixed,
            device_index=self._device,
            stack_traces=cudagraphs.get_stack_traces(module),
            placeholders=get_placeholder_info(module.graph),
            mutated_input_idxs=cudagraphs.find_input_mutations(module.graph),
            **which,
        )
