"""Compiled graphs in PyTorch's cache (AOTAutogradCache): a later process that compiles the same graph gets its plans
right after Dynamo, without AOTAutograd and without planning.

The cache is in ``TORCHINDUCTOR_CACHE_DIR``, is written atomically, and is off if ``TORCHINDUCTOR_AUTOGRAD_CACHE`` is 0.
Its keys do not contain the code of operators and functions that come with neither PyTorch nor this package: graphs that
call such code are compiled anew in each process."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, check_node_safe
from torch._inductor import config as inductor_config
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule, Node

from ..analysis.report import Report
from ..fusion.ilp import milp
from ..ir.stages import has_left_out

# Operators in these namespaces come with PyTorch, whose version is part of the cache's keys, or with this package.
NAMESPACES = {"aten", "prim", "prims", "rngprims", "quantized", "quantized_decomposed", "mkldnn", "profiler"}
NAMESPACES |= {"c10d", "c10d_functional", "_c10d_functional", "_dtensor", "inductor", "reformer"}
PACKAGE = Path(__file__).parents[2]
_reports: ContextVar[Callable[[Report], Any] | None] = ContextVar("reports", default=None)


class Compiled(OutputCode):
    """Base of what AOTAutograd calls to run a graph: takes a list of arguments and empties it. The cache pickles it."""

    def __init__(self):
        self._boxed_call = True  # tells AOTAutograd that arguments come in a list

    def prepare_for_serialization(self) -> None:
        if has_left_out():  # a later process may be able to plan all of it, and shall warn otherwise
            raise BypassAOTAutogradCache("an internal error left out a part of a plan")

    def set_triton_bundle(self, triton_bundle) -> None:
        pass

    def post_compile(self, example_inputs, constants, graph_kwargs) -> None:
        self.is_loaded()

    def is_loaded(self) -> None:
        """Called once it is loaded from the cache, for all of a graph."""
        self.start()

    def start(self) -> None:
        """Make it ready to run, after it is made or loaded."""


class Uncached(Compiled):
    """A function that runs a graph, and that the cache does not keep."""

    def __init__(self, run: Callable[[list], list]):
        super().__init__()
        self._run = run

    def __call__(self, args: list) -> list:
        return self._run(args)

    def prepare_for_serialization(self) -> None:
        raise BypassAOTAutogradCache("it has no plan, or several")


@functools.cache
def _package() -> str:
    """Hash of the package's state: its code, and the tables by which plans are chosen."""
    files = sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".so", ".json"))
    states = [(str(path.relative_to(PACKAGE)), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return hashlib.sha256(repr(states).encode()).hexdigest()


_package()  # now, while the files are the code that is loaded


def _attention_kernels() -> list[bool]:
    """For each of PyTorch's attention kernels, whether it is enabled. PyTorch's own cache key lacks this."""
    cuda = torch.backends.cuda
    kinds = cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled
    return [is_enabled() for is_enabled in kinds]


def has_foreign_code(module: GraphModule) -> bool:
    """True if a graph of Dynamo's, or one inside it (a checkpoint's, say), calls code of which the cache's key has only
    the name. It might have had another gradient when the cache was filled. PyTorch checks only functions, and only
    those of the outer graph."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    try:
        for node in nodes:
            check_node_safe(node)
    except (BypassAOTAutogradCache, AttributeError):  # the latter for methods of tensors, such as x.data = y
        return True
    return any(map(_is_foreign_operator, nodes))


def _has_floats(module: GraphModule) -> bool:
    """True if a graph of Dynamo's has floats that change from call to call, which it gives as tensors of one element.
    AOTAutograd makes a constant of such a float where an operator needs its value, and finds the graph again for other
    floats, as its key has no values of tensors."""
    return any(
        node.target == "item" and isinstance(node.meta.get("example_value"), torch.SymFloat)
        for inner in module.modules()
        if isinstance(inner, GraphModule)
        for node in inner.graph.nodes
    )


def _is_foreign_operator(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace not in NAMESPACES
    return isinstance(node.target, torch._ops.OpOverloadPacket) and (
        node.target._qualified_op_name.split("::")[0] not in NAMESPACES
    )


@contextmanager
def cached_by(module: GraphModule, mode: str | None, report: Callable[[Report], Any] | None) -> Iterator[None]:
    """Context in which a graph of Dynamo's is compiled: adds the package's state and these options to the cache's
    key."""
    key = f"{_package()} {mode} {report is not None} {milp.name()} {_attention_kernels()}"
    keys = inductor_config.unsafe_marked_cacheable_functions | {"torch_reformer": key}
    is_cached = functorch_config.enable_autograd_cache and not has_foreign_code(module) and not _has_floats(module)
    token = _reports.set(report)
    try:
        with (
            inductor_config.patch(unsafe_marked_cacheable_functions=keys),
            functorch_config.patch(bundled_autograd_cache=True, enable_autograd_cache=is_cached),
        ):
            yield
    finally:
        _reports.reset(token)


def reporting() -> Callable[[Report], Any] | None:
    """The function that gets reports while a graph is compiled, for graphs that are loaded from the cache."""
    return _reports.get()
