"""Losses that log. Dynamo splits a graph where a logger is called, which a training step of one plan cannot be."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from torch._dynamo import config
from torch._dynamo.exc import Unsupported

_LEVELS = "debug", "info", "warning", "warn", "error", "critical", "fatal", "exception", "log"
_OF_TRANSFORMERS = "_once", "_advice"  # endings of methods that it adds
# Methods that give nothing, and only write messages. Others stay calls, which split the graph.
_METHODS = [level + ending for level in _LEVELS for ending in ("", *_OF_TRANSFORMERS)]
_REASON = "logging.Logger method"  # begins Dynamo's message; test_training_loggers.py fails if it changes


def without_loggers(compiled: Callable) -> Callable:
    """The compiled function, whose plans write no messages of loggers. A warning says so."""

    def run(*args) -> Any:
        try:
            return compiled(*args)
        except Unsupported as error:  # raised while the call is traced, before anything runs
            if _REASON not in str(error):
                raise
            methods = {vars(logging.Logger).get(name) for name in _METHODS} - {None}
            with config.patch(ignore_logging_functions=config.ignore_logging_functions | methods):
                results = compiled(*args)
            warnings.warn("messages of loggers are left out of planned training steps", stacklevel=5)
            return results

    return run
