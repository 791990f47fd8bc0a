"""What runs a graph, as PyTorch's cache of compiled graphs (AOTAutogradCache) keeps it: a later process that compiles
the same graph has its plans after Dynamo, without AOTAutograd and without planning. The cache is PyTorch's: in
``TORCHINDUCTOR_CACHE_DIR``, written atomically, and off where ``TORCHINDUCTOR_AUTOGRAD_CACHE`` is 0. Its keys do not
have the code of operators and functions that come with neither PyTorch nor this package: graphs with such are compiled
anew in each process."""

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

# Operators of these come with PyTorch, whose version is part of the cache's keys, or with this package.
NAMESPACES = {"aten", "prim", "prims", "rngprims", "quantized", "quantized_decomposed", "mkldnn", "profiler"}
NAMESPACES |= {"c10d", "c10d_functional", "_c10d_functional", "_dtensor", "inductor", "reformer"}
PACKAGE = Path(__file__).parents[2]
_reports: ContextVar[Callable[[Report], Any] | None] = ContextVar("reports", default=None)


class Compiled(OutputCode):
    """What runs a graph: it takes a list, which it empties. The cache keeps what pickle does."""

    def __init__(self):
        self._boxed_call = True  # says so to AOTAutograd

    def prepare_for_serialization(self) -> None:
        pass

    def set_triton_bundle(self, triton_bundle) -> None:
        pass

    def post_compile(self, example_inputs, constants, graph_kwargs) -> None:
        self.is_loaded()

    def is_loaded(self) -> None:
        """Called where the cache had it."""


class Uncached(Compiled):
    """A function that the cache does not keep."""

    def __init__(self, run: Callable[[list], list]):
        super().__init__()
        self._run = run

    def __call__(self, args: list) -> list:
        return self._run(args)

    def prepare_for_serialization(self) -> None:
        raise BypassAOTAutogradCache("it has no plan, or several")


@functools.cache
def _package() -> str:
    """Another one for each state of the package."""
    files = sorted(each for each in PACKAGE.rglob("*") if each.suffix in (".py", ".so", ".json"))
    states = [(str(each.relative_to(PACKAGE)), each.stat().st_mtime_ns, each.stat().st_size) for each in files]
    return hashlib.sha256(repr(states).encode()).hexdigest()


_package()  # of the code that is loaded


def _kernels_of_attention() -> list[bool]:
    """Which of PyTorch's may be taken: its own key has not this."""
    cuda = torch.backends.cuda
    kinds = cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled
    return [each() for each in kinds]


def has_foreign_code(module: GraphModule) -> bool:
    """True if a graph of Dynamo's, or one within it (of a checkpoint, say), calls what the cache's key knows by name
    only: it might have had another gradient when the cache was filled. PyTorch asks this of functions in the outer
    graph, and of no operators."""
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    try:
        for node in nodes:
            check_node_safe(node)
    except BypassAOTAutogradCache:
        return True
    return any(map(_is_foreign_operator, nodes))


def _is_foreign_operator(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace not in NAMESPACES
    return isinstance(node.target, torch._ops.OpOverloadPacket) and (
        node.target._qualified_op_name.split("::")[0] not in NAMESPACES
    )


@contextmanager
def cached_by(module: GraphModule, mode: str | None, report: Callable[[Report], Any] | None) -> Iterator[None]:
    """Where a graph of Dynamo's is compiled: the cache's key has the state of the package and these options."""
    key = f"{_package()} {mode} {report is not None} {milp.name()} {_kernels_of_attention()}"
    keys = inductor_config.unsafe_marked_cacheable_functions | {"torch_reformer": key}
    is_cached = functorch_config.enable_autograd_cache and not has_foreign_code(module)
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
    """That function, for a graph that the cache had."""
    return _reports.get()
