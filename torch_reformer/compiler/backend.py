"""``torch.compile(model, backend="reformer")``: registration, options, and what happens to a graph, in order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from . import dropout
from .decompositions import decompositions
from .execute import executable

MODES = (None, "default")
OPTIONS = ("report",)


def reformer(module: GraphModule, inputs: list, *, mode: str | None = None, options: dict[str, Any] | None = None):
    """The backend.

    Args:
        mode: None or "default".
        options: ``report``: a function that gets the report (report.py) of each graph that is planned, such as print.

    Raises:
        ValueError: for a mode or an option that there is not.
    """
    if mode not in MODES:
        raise ValueError(f"backend 'reformer': mode must be one of {MODES}, got {mode!r}")
    for name in options or ():
        if name not in OPTIONS:
            raise ValueError(f"backend 'reformer' has no option {name!r}; it has {', '.join(OPTIONS)}")
    with functorch_config.patch(guess_tangent_strides_as_outputs=True):  # off in torch 2.11
        return _backend((options or {}).get("report"))(module, inputs)


@functools.lru_cache(64)
def _backend(report: Callable | None):
    compiler = functools.partial(compiled, report=report)
    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        inference_compiler=compiler,
        partition_fn=_partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )


def _partition(joint: GraphModule, inputs, **options) -> tuple[GraphModule, GraphModule]:
    dropout.save_keys(joint)
    return min_cut_rematerialization_partition(joint, inputs, **options)


def compiled(module: GraphModule, inputs: list, report: Callable | None = None) -> Callable[[list], list]:
    run = executable(module, report)
    run._boxed_call = True  # it takes a list, which it empties
    return run
