"""Plan graphs of CPU tensors by the rules of GPUs', so that their plans can run on machines without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from torch_reformer.compiler import pipeline
from torch_reformer.compiler.decompositions import scatter_reduce
from torch_reformer.compiler.fusion import anchor_products, group, iteration_order
from torch_reformer.compiler.ir import attention_choice, through_maps
from torch_reformer.compiler.joint_graph import expand_products, max_pool_indices, pad_mm
from torch_reformer.compiler.lowering import whole_comparisons

_TABLES = (
    *((through_maps, "DEVICES"), (group, "DEVICES"), (iteration_order, "DEVICES")),
    *((max_pool_indices, "_DEVICES"), (pad_mm, "DEVICES"), (expand_products, "DEVICES")),
    *((attention_choice, "DEVICES"), (whole_comparisons, "DEVICES")),
)


@contextmanager
def as_on_hopper(least: int = 0) -> Iterator[None]:
    """Context in which graphs of CPU tensors are planned as on an H200, and products of at least so many elements may
    have programs."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(pipeline, "gpu_of", lambda graph: "sm_90")
        changes.setattr(anchor_products, "_LEAST", least)
        yield


@contextmanager
def as_on_gpus() -> Iterator[None]:
    """Context in which CPU tensors are read through maps of their axes and transposed, and more."""
    with pytest.MonkeyPatch.context() as changes:
        for module, name in _TABLES:
            changes.setattr(module, name, ("cpu", "cuda"))
        changes.setattr(scatter_reduce, "NAMES_DIMENSION", set())
        yield
