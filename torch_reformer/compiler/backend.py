"""The backend of ``torch.compile(model, backend="reformer")``: its options, and how AOTAutograd is called."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import numbers
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import (
    SerializableAOTDispatchCompiler,
    aot_function,
    aot_module_simplified,
    make_boxed_func,
)
from torch._guards import TracingContext
from torch.fx import GraphModule

from .analysis.breaks import break_of
from .analysis.trace import traced
from .decompositions.table import decompositions
from .decompositions.tracing import tracing
from .ir.stages import reset
from .joint_graph.whole_step import mark_update, whole_step
from .pipeline import compile_graph, partition, pre_grad
from .runtime.compiled import Compiled, Uncached, cached_by

if TYPE_CHECKING:
    from .analysis.report import Report
    from .runtime.cuda_graphs import CudaGraphs


_AOT_OPTIONS = {
    "partition_fn": partition,
    "decompositions": decompositions(),
    "keep_inference_input_mutations": True,
}
_AOT_CONFIG = {
    "guess_tangent_strides_as_outputs": True,  # off in torch 2.11
    # Compile the backward before the forward runs: later, its tensors would take memory beside the saved ones.
    "force_non_lazy_backward_lowering": True,
}
MODES = (None, "default", "reduce-overhead")
# Modes of Inductor's, which times kernels in them, and those with and without CUDA graphs here.
_OTHER_MODES = {"max-autotune": "reduce-overhead", "max-autotune-no-cudagraphs": "default"}
OPTIONS = ("report", "memory_budget")


def reformer(module: GraphModule, inputs: list, *, mode: str | None = None, options: dict[str, Any] | None = None):
    """Compile one of Dynamo's graphs: the backend that torch.compile calls.

    Args:
        mode: None, "default", or "reduce-overhead", which records CUDA graphs, under PyTorch's conditions for them.
            "max-autotune" is taken for "reduce-overhead", "max-autotune-no-cudagraphs" for "default", with a warning:
            nothing is timed here.
        options: ``report``: a function, such as print, that gets the report (analysis/report.py) of each planned graph.
            ``memory_budget``: a number from 0 to 1, the share of what forwards would otherwise save for their backwards
            that they may save. PyTorch's partition recomputes the rest
            (torch._functorch.config.activation_memory_budget).

    Raises:
        ValueError: for an unknown mode or option, a report that is no function, or a memory budget that is no number
            from 0 to 1.
    """
    mode = known_mode(mode)
    _check_options(options or {})
    graphs = None
    if mode == "reduce-overhead":
        from .runtime.cuda_graphs import CudaGraphs  # imports much of Inductor

        graphs = CudaGraphs()
    pre_grad(module)
    report = _with_break(traced((options or {}).get("report")), break_of(module))
    budget = check_memory_budget((options or {}).get("memory_budget", functorch_config.activation_memory_budget))
    config = _AOT_CONFIG | {"activation_memory_budget": budget}
    compiler = aot_autograd(**_compilers(report, graphs), **_AOT_OPTIONS)
    with functorch_config.patch(config), cached_by(module, mode, report), _compiling():
        return compiler(module, inputs)


def _with_break(report: Callable[[Report], Any] | None, broken: str | None) -> Callable[[Report], Any] | None:
    """The function that gets reports, such that they tell of the break of their graph."""
    if report is None or broken is None:
        return report
    return lambda plain: report(dataclasses.replace(plain, broken=broken))


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Context in which AOTAutograd traces and this package plans. Python's collector of cyclic garbage pauses, which
    would go through all nodes of all graphs many times: a fifth of the time of a large model."""
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with tracing():
            yield
    finally:
        if is_collecting:
            gc.enable()


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            from torch._inductor import list_options  # imports much of Inductor

            of_inductor = ", which is Inductor's" if name in list_options() else ""
            raise ValueError(f"backend 'reformer' has no option {name!r}{of_inductor}; it has {', '.join(OPTIONS)}")
    report = options.get("report")
    if report is not None and not callable(report):
        raise ValueError(f"backend 'reformer': report must be a function, such as print, got {report!r}")


def known_mode(mode: str | None) -> str | None:
    """The mode of this backend for a mode of torch.compile.

    Raises:
        ValueError: there is no such mode.
    """
    if mode in _OTHER_MODES:
        _warn_of_mode(mode)
        return _OTHER_MODES[mode]
    if mode not in MODES:
        raise ValueError(f"backend 'reformer': mode must be one of {(*MODES, *_OTHER_MODES)}, got {mode!r}")
    return mode


@functools.cache
def _warn_of_mode(mode: str) -> None:
    instead = _OTHER_MODES[mode]
    warnings.warn(f"backend 'reformer' chooses kernels without timing: mode {mode!r} is {instead!r} here", stacklevel=4)


def check_memory_budget(budget: float) -> float:
    if not isinstance(budget, numbers.Real) or isinstance(budget, bool) or not 0 <= budget <= 1:
        raise ValueError(f"backend 'reformer': memory_budget must be a number from 0 to 1, got {budget!r}")
    return float(budget)


_numbers = itertools.count()


def compile_in_place(model: nn.Module, mode: str | None, report: Callable) -> None:
    """Compile a model as model.compile() does, by this backend with a mode and a function that gets reports.

    model.compile() gives Dynamo a function of PyTorch's, which Dynamo skips, so that a model whose forward is PyTorch's
    own (a Sequential) would never be compiled. Here Dynamo gets a function whose code belongs to this model alone. So
    models share neither the limit on recompilations of a function, nor what Dynamo remembers of its arguments' sizes.
    """
    backend = functools.partial(reformer, mode=mode, options={"report": report})
    backend.reset = _reset
    call = model._call_impl
    hooks = model._forward_hooks, model._forward_pre_hooks, model._backward_hooks, model._backward_pre_hooks

    def forward(*args, **kwargs):
        for registered in hooks:
            len(registered)  # Dynamo guards what is read, so hooks that are registered later are called, too
        return call(*args, **kwargs)

    forward.__code__ = forward.__code__.replace(co_name=f"{type(model).__name__}_{next(_numbers)}")
    compiled = torch.compile(forward, backend=backend)

    def run(*args, **kwargs):
        return (call if torch.jit.is_tracing() else compiled)(*args, **kwargs)  # Dynamo refuses torch.jit.trace

    run.is_fused = True
    model._compiled_call_impl = run


def remove_compiled(module: nn.Module) -> None:
    """Undo compile_in_place(). Other compilations of the module stay."""
    if getattr(module._compiled_call_impl, "is_fused", False):
        module._compiled_call_impl = None


def compile_graphs(function: Callable, compiled: Callable) -> Callable:
    """The function, run by what `compiled` gives for each of its graphs, which are traced as for the backend, but
    without Dynamo."""

    def boxed(module: GraphModule, inputs: list):
        return make_boxed_func(compiled(module, inputs))

    def run(*args):
        with functorch_config.patch(_AOT_CONFIG), _compiling():
            return aot_function(function, fw_compiler=boxed, bw_compiler=boxed, **_AOT_OPTIONS)(*args)

    return run


def backend_of(compiled: Callable) -> Callable:
    """A backend for torch.compile that traces and splits graphs as this one does, and runs what `compiled` gives for
    each."""

    def boxed(module: GraphModule, inputs: list):
        return make_boxed_func(compiled(module, inputs))

    def backend(module: GraphModule, inputs: list):
        pre_grad(module)
        compiler = aot_autograd(fw_compiler=boxed, bw_compiler=boxed, inference_compiler=boxed, **_AOT_OPTIONS)
        config = _AOT_CONFIG | {"enable_autograd_cache": False}
        with functorch_config.patch(config), _compiling():
            return compiler(module, inputs)

    return backend


def compile_step(
    step: Callable[..., list],
    inputs: list,
    append: Callable[[GraphModule], int],
    fixed: int,
    tangent: int,
    results: int,
    budget: float,
    mode: str | None,
    compile: Callable[[GraphModule], Callable[[list], list]],
) -> Callable[..., list]:
    """Plan a function that computes gradients inside of itself, as one graph.

    Args:
        inputs: fake inputs, none of which requires a gradient.
        append: adds operators that write inputs in place to the end of the traced graph. It may drop the last results,
            and returns their number.
        fixed: the number of inputs that keep their addresses. They come first; only these may be written.
        tangent: position of the input that is the gradient of the loss.
        results: the number of the function's results before the gradients.
        budget: as the option ``memory_budget``.
        compile: gives a function that runs a graph, as pipeline.compile_graph().
    """
    graphs = None
    if mode == "reduce-overhead":
        from .runtime.cuda_graphs import CudaGraphs  # imports much of Inductor

        graphs = CudaGraphs()

    def compiler(module: GraphModule, inputs: list) -> Compiled:
        module = whole_step(module, inputs, tangent, results, functools.partial(partition, packs=False))
        # Now constants are on the GPU, where they are read.
        recorded = graphs.step(module, inputs, fixed) if graphs else None
        dropped = append(module)
        mark_update(module)
        run = compile(module)
        run = recorded(run, module) if recorded else run
        return Uncached(lambda args: [*run(args), *[None] * dropped])  # AOTAutograd counts the results

    class Step(nn.Module):
        def forward(self, *args):
            return step(*args)

    config = _AOT_CONFIG | {"enable_autograd_cache": False, "activation_memory_budget": budget}
    options = {name: value for name, value in _AOT_OPTIONS.items() if name != "partition_fn"}
    with functorch_config.patch(config), _compiling(), torch.no_grad():
        return aot_module_simplified(Step(), inputs, compiler, inference_compiler=compiler, **options)


def _reset() -> None:
    """Repeat warnings from now on, and drop CUDA graphs. torch._dynamo.reset() calls it."""
    reset()
    _warn_of_mode.cache_clear()
    if trees := sys.modules.get("torch._inductor.cudagraph_trees"):
        trees.reset_cudagraph_trees()


reformer.reset = _reset


def _allow_retained_graphs() -> None:
    """Let a graph run backward twice. AOTAutograd forbids it if the forward's trace says that the backward overwrites
    saved tensors. An Executable finds out by itself whether the graph is retained (runtime/executable.py)."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None and context.fw_metadata.bw_donated_idxs:
        context.fw_metadata.bw_donated_idxs.clear()


def _compilers(report: Callable | None, graphs: CudaGraphs | None) -> dict[str, SerializableAOTDispatchCompiler]:
    """Functions that AOTAutograd calls with a graph and its inputs, by the names of its arguments."""

    def forward(module: GraphModule, inputs: list, is_inference: bool = False) -> Compiled:
        run = compile_graph(module, report)
        return graphs.forward(run, module, inputs, is_inference) if graphs else run

    def backward(module: GraphModule, inputs: list) -> Compiled:
        _allow_retained_graphs()
        run = compile_graph(module, report)
        return graphs.backward(run, module, inputs) if graphs else run

    inference = functools.partial(forward, is_inference=True)
    compilers = {"fw_compiler": forward, "bw_compiler": backward, "inference_compiler": inference}
    return {name: SerializableAOTDispatchCompiler(Compiled, compiler) for name, compiler in compilers.items()}
