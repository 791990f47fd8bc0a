"""Reports as artifacts of PyTorch's structured trace (``TORCH_TRACE=FOLDER``), which tlparse shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._logging import trace_structured
from torch._logging._internal import trace_log

from .report import Report


def traced(report: Callable[[Report], Any] | None) -> Callable[[Report], Any] | None:
    """The function that gets reports, such that they are traced, too. Unchanged if PyTorch writes no trace."""
    if not trace_log.handlers:
        return report

    def trace(made: Report) -> None:
        description = {"name": "reformer_report", "encoding": "string"}
        trace_structured("artifact", metadata_fn=lambda: description, payload_fn=lambda: str(made))
        if report:
            report(made)

    return trace
