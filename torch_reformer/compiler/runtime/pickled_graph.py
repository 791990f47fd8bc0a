"""FX graphs as bytes, for later processes."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler, Options, _SymNodePickleData
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ..ir.custom_ops import DONATED, USER_CAST
from ..ir.fake_tensors import real_tensors
from ..ir.fx_utils import copied

# Notes of nodes that stages read, and that are pickled. Others may hold anything.
NOTES = {"val", "stack_trace", "source_fn_stack", "fwd_source_fn_stack", DONATED, USER_CAST}


class _Pickler(GraphPickler):
    def reducer_override(self, obj):
        if isinstance(obj, (torch.SymFloat, torch.SymBool)):
            return _number, (type(obj), _SymNodePickleData(obj.node), self._unpickle_state)
        return super().reducer_override(obj)


def _number(kind: type, data: _SymNodePickleData, state):
    return kind(data._to_sym_node())


def pickled(module: GraphModule, notes: Container[str] = NOTES) -> bytes:
    """The graph with these notes of its nodes.

    Raises:
        BypassAOTAutogradCache: a part of it does not pickle.
    """
    bare = GraphModule(module, copied(module.graph))
    bare.meta = {}
    try:
        with real_tensors():  # of a module's constants
            return _Pickler.dumps(bare, Options(ops_filter=None, node_metadata_key_filter=notes.__contains__))
    except Exception as error:
        raise BypassAOTAutogradCache(f"a part of a graph does not pickle: {error}") from error


def unpickled(data: bytes) -> GraphModule:
    """The graph, with symbols of its own."""
    with real_tensors():
        module = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(module, GraphModule)
    return module
