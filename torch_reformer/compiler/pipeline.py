"""Every stage of compilation, in order.

Dynamo's graph goes through :func:`pre_grad`. AOTAutograd traces its forward and backward (decompositions/table.py) as
one graph, which :func:`partition` splits; an inference graph skips that. :func:`plan` makes a plan of each.

A stage that is ``optional`` only improves the plan: it is left out if it fails (ir/stages.py). The other stages are
needed for correct results. Stages change a module's graph only: what runs the module by PyTorch's operators generates
its code first (``recompile()``). ``TORCH_LOGS="+torch_reformer"`` prints the graph after each stage.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule

from ..runtime import gpu as runtime_gpu
from .analysis.report import Report, report_of
from .codegen.emit_plan import EmittedPlan, emit_plan
from .decompositions.norms import keep_statistics_wide
from .fusion.anchor_products import anchor_products
from .fusion.fuse_concat import fuse_concats
from .fusion.fuse_copies import fuse_copies
from .fusion.fuse_gather import fuse_gathers
from .fusion.fuse_transposes import fuse_transposes
from .fusion.greedy import Fusion
from .fusion.horizontal import fuse_horizontally
from .fusion.ilp.planner import IlpSummary, cost_of, integer_program, seed_groups
from .fusion.iteration_order import choose_orders
from .fusion.recompute import recompute
from .fusion.reinplace import reinplace, reuse_buffers
from .fusion.schedule import Cyclic
from .fusion.verify import verify
from .ir.device_model import known_gpu
from .ir.fake_tensors import Unsupported
from .ir.fx_utils import is_static
from .ir.graph import Graph
from .ir.stages import attempted, optional, raises, required, show
from .joint_graph.append_parts import append_parts
from .joint_graph.cast_parts import cast_parts
from .joint_graph.cat_slices import cat_slices
from .joint_graph.chunk_losses import chunk_losses
from .joint_graph.copy_sources import copy_sources
from .joint_graph.expand_products import expand_products
from .joint_graph.flatten_in_memory_order import flatten_in_memory_order
from .joint_graph.fold_constants import fold_constants
from .joint_graph.gradient_strides import set_gradient_strides
from .joint_graph.hoist_loss_gradients import hoist_column_sums, hoist_loss_gradients
from .joint_graph.max_pool_indices import replace_max_pool_indices
from .joint_graph.memory_budget import partition_within_budget
from .joint_graph.mutated_inputs import save_reads_of_mutated_inputs
from .joint_graph.pack_saved import pack_saved
from .joint_graph.pad_mm import pad_before_saving, pad_mm
from .joint_graph.partition import recompute_broadcasts, recompute_gathers, save_compared_extremes, save_places
from .joint_graph.propagate_memory_format import propagate_memory_format
from .joint_graph.read_before_copies import read_before_copies
from .joint_graph.reduction_order import keep_order_in_reductions
from .joint_graph.rematerialize import rematerialize
from .joint_graph.save_random import save_random
from .joint_graph.split_addmm import split_addmm
from .joint_graph.swap_operands import swap_operands
from .joint_graph.trust_places import trust_places
from .joint_graph.user_casts import mark_user_casts
from .lowering.from_fx import lower_fx
from .passes import PASSES
from .pre_grad.attention_masks import simplify_masks
from .pre_grad.attention_operands import simplify_operands
from .pre_grad.attention_patterns import replace_written_attention
from .pre_grad.instance_norm import replace_instance_norm
from .pre_grad.join_projections import join_projections
from .pre_grad.own_convolutions import replace_own_convolutions
from .pre_grad.postpone_expands import postpone_expands
from .pre_grad.shared_heads import share_heads
from .runtime.compiled import Compiled
from .runtime.executable import Executable
from .runtime.pickled_tensors import pickle_buffers
from .runtime.run_graph import run_graph

FUSION_ROUNDS = 4  # at most, of horizontal fusion and recomputation
AFTER_FUSION = (fuse_copies, fuse_concats, fuse_transposes, fuse_gathers, choose_orders)  # applied to chosen groups


def pre_grad(module: GraphModule) -> None:
    """Rewrite Dynamo's graph, and those inside it, such as a checkpoint's, before autograd sees them."""
    of_attention = replace_written_attention, simplify_masks, simplify_operands, share_heads, join_projections
    for inner in [each for each in module.modules() if isinstance(each, GraphModule)]:
        required(replace_own_convolutions, inner)
        for rewrite in (replace_instance_norm, postpone_expands, *of_attention):
            attempted(functools.partial(optional, rewrite, inner), inner)


def partition(joint: GraphModule, inputs, packs: bool = True, **options) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph of a training step into its forward and its backward (AOTAutograd's ``partition_fn``).

    Args:
        packs: whether saved casts, and small saved tensors, are packed (joint_graph/pack_saved.py).
    """
    try:
        return attempted(lambda: _partition(joint, inputs, packs, **options), joint)
    except Unsupported as why:
        warnings.warn(f"what a forward saves for its backward is left to PyTorch's choice: {why}", stacklevel=2)
        return default_partition(joint, inputs, **options)


def _partition(joint: GraphModule, inputs, packs: bool, **options) -> tuple[GraphModule, GraphModule]:
    required(mark_user_casts, joint)
    required(keep_statistics_wide, joint)
    optional(fold_constants, joint)
    optional(replace_max_pool_indices, joint)
    has_static_sizes = is_static(joint)
    if has_static_sizes:
        optional(trust_places, joint)
        optional(expand_products, joint)
        optional(cast_parts, joint, False)
        optional(copy_sources, joint)
        optional(read_before_copies, joint)
        optional(swap_operands, joint)
        optional(split_addmm, joint)
        optional(set_gradient_strides, joint, options["num_fwd_outputs"])
        optional(keep_order_in_reductions, joint)
        optional(propagate_memory_format, joint, True)  # in both passes alike, so that saved tensors have one format
        optional(flatten_in_memory_order, joint)
    if functorch_config.donated_buffer:  # otherwise a backward may run again with the same saved tensors
        optional(hoist_loss_gradients, joint)
    if has_static_sizes:
        optional(pad_mm, joint)
        optional(chunk_losses, joint)
    required(save_reads_of_mutated_inputs, joint)
    required(save_random, joint)
    required(save_compared_extremes, joint)
    optional(save_places, joint)
    optional(recompute_broadcasts, joint)
    optional(recompute_gathers, joint)
    optional(rematerialize, joint)
    forward, backward = partition_within_budget(joint, inputs, **options)
    show("partition_within_budget, forward", forward)
    show("partition_within_budget, backward", backward)
    optional(hoist_column_sums, forward, backward)
    optional(pad_before_saving, forward, backward)
    optional(append_parts, forward, backward, options["num_fwd_outputs"])
    if packs:
        optional(pack_saved, forward, backward, options["num_fwd_outputs"])
    pickle_buffers(backward)
    return forward, backward


def compile_graph(module: GraphModule, report: Callable[[Report], Any] | None) -> Compiled:
    """Plan a forward, backward or inference graph of AOTAutograd's.

    Args:
        report: gets the report of each plan; a graph with symbolic sizes has several.
    """
    return run_graph(module, functools.partial(plan, reports=report is not None), report)


def plan(
    module: GraphModule,
    reports: bool = False,
    gpu: str | None = None,
    starts: bool = True,
) -> Executable:
    """Plan a graph whose sizes are known.

    Args:
        reports: whether the executable has a report.
        gpu: a key of device_model.GPUS: plan for this GPU, and compile nothing. None: plan for the graph's own device.
        starts: whether the kernels are compiled, if no GPU is given.

    Raises:
        Unsupported: no plan can compute the graph.
    """
    required(mark_user_casts, module)
    optional(fold_constants, module)
    optional(cast_parts, module)
    optional(expand_products, module)
    optional(copy_sources, module)
    optional(read_before_copies, module)
    optional(cat_slices, module)
    optional(swap_operands, module)
    optional(keep_order_in_reductions, module)
    optional(propagate_memory_format, module)
    optional(flatten_in_memory_order, module)
    optional(append_parts, module)
    graph, constants = lower_fx(module)
    show("lower_fx", graph)
    for rewrite in PASSES:
        optional(rewrite, graph)
    starts = starts and gpu is None
    gpu = gpu or gpu_of(graph)
    optional(anchor_products, graph, gpu)
    fusions, planned = _fuse(graph, gpu)
    fusion, emitted = _emit(graph, fusions)
    plan_report = report_of(graph, fusion, gpu, planned) if reports else None
    executable = Executable(module, graph, constants, fusion, planned, emitted, plan_report)
    if starts:
        executable.start()
    return executable


def _fuse(graph: Graph, gpu: str | None) -> tuple[list[Fusion], IlpSummary | None]:
    """Fusions of the graph, the best first and the greedy one last, and the outcome of the integer program."""
    fusion = Fusion(graph)
    fusion.run()
    show("greedy", fusion)
    start = time.process_time()
    atoms = optional(seed_groups, fusion)
    seconds = time.process_time() - start
    for _ in range(FUSION_ROUNDS):  # each may make the other possible
        merged, recomputed = _change(fuse_horizontally, fusion), _change(recompute, fusion)
        if not merged and not recomputed:
            break
    start = time.process_time()
    better, planned = (optional(integer_program, fusion, atoms, gpu) if atoms else None) or (None, None)
    seconds += time.process_time() - start
    fusions = [better, fusion] if better else [fusion]
    for candidate in fusions:
        for change in AFTER_FUSION:
            _change(change, candidate)
    if better and cost_of(better, gpu) >= cost_of(fusion, gpu):
        fusions, reason = [fusion], "with copies and gathers it costs no more"
        planned = replace(planned, plan_us=planned.greedy_us, refused=(*planned.refused, reason))
    return fusions, planned and replace(planned, seconds=seconds)


def _change(stage: Callable[[Fusion], bool | None], fusion: Fusion) -> bool | None:
    """Run an optional stage of fusion. In tests, where errors are raised, the fusion is verified after it."""
    result = optional(stage, fusion)
    if raises():
        verify(fusion)
    return result


def _emit(graph: Graph, fusions: list[Fusion]) -> tuple[Fusion, EmittedPlan]:
    """The plan of the first fusion whose kernels have an order. Writes in place are left out if they allow no order."""
    for in_place in (True, False):
        for candidate in fusions:
            fusion = candidate.copy()
            if in_place:
                optional(reinplace, fusion)
                optional(reuse_buffers, fusion)
            try:
                return fusion, emit_plan(graph, fusion)
            except Cyclic:
                pass
    raise Unsupported("the graph needs a tensor both before and after it changes it in place")


def gpu_of(graph: Graph) -> str | None:
    """The graph's GPU as a key of device_model.GPUS; None if it has none or no times of it are known."""
    gpus = [input.device.index or 0 for input in graph.inputs if input.device.type == "cuda"]
    architecture = runtime_gpu.architecture(gpus[0]) if gpus else None
    return known_gpu(architecture, torch.cuda.get_device_name(gpus[0])) if architecture else None
