"""Losses that log. Dynamo splits a graph where a logger is called, which a training step of one plan cannot be."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from torch._dynamo import config
from torch._dynamo.exc import Unsupported


def without_loggers(compiled: Callable) -> Callable:
    """The compiled function, whose plans call no loggers. A warning says so."""

    def run(*args) -> Any:
        try:
            return compiled(*args)
        except Unsupported as error:  # raised before anything runs
            if "logging.Logger method" not in str(error):
                raise
            warnings.warn("messages of loggers are left out of planned training steps", stacklevel=5)
            methods = {method for method in vars(logging.Logger).values() if callable(method)}  # others may add some
            with config.patch(ignore_logging_functions=config.ignore_logging_functions | methods):
                return compiled(*args)

    return run
