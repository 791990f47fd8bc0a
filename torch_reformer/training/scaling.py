"""The loss scaling of a torch.amp.GradScaler as part of a plan, without a look at its values by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.fx import Graph, Node

aten = torch.ops.aten


class Scaling:
    """A scaler as part of a plan: the loss's gradient is the scale, and the scale changes after the update."""

    def __init__(self, scaler: GradScaler):
        self.scaler = scaler

    def settings(self) -> list[Any]:
        """All that a plan has as constants."""
        scaler = self.scaler
        return [scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()]

    def tensors(self, device: torch.device) -> list[Tensor]:
        """The scale and the number of steps since it changed, which the scaler makes at its first use."""
        scaler: Any = self.scaler
        if scaler._scale is None:
            scaler.scale(torch.zeros((), device=device))
        return [scaler._scale, scaler._growth_tracker]

    @staticmethod
    def unscaled(grads: Sequence[Tensor], scale: Tensor) -> tuple[list[Tensor], Tensor]:
        """Gradients of the loss itself, and 1 if one of them is infinite or NaN, else 0."""
        bad = [torch.where(grad.abs() < float("inf"), 0.0, 1.0).sum() for grad in grads]
        found = (torch.stack(bad).sum() > 0).to(torch.float32)
        factor = scale.reciprocal()
        return [grad * factor.to(grad.dtype) for grad in grads], found

    def append(self, graph: Graph, scale: Node, steps: Node, found: Node) -> None:
        """Change the scale at the end of a graph."""
        with graph.inserting_before(graph.output_node()):
            graph.call_function(aten._amp_update_scale_.default, (scale, steps, found, *self.settings()))
