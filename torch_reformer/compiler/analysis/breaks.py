"""Graph breaks: where and why a graph of Dynamo's ends before its function does, and what that costs."""

from __future__ import annotations

import importlib
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import GraphModule

# Folders of code that is not the user's: PyTorch's, the compiler's and importlib's.
_FOLDERS = (os.path.dirname(torch.__file__), str(Path(__file__).parents[1]), os.path.dirname(importlib.__file__))


def break_of(module: GraphModule) -> str | None:
    """Where and why a graph of Dynamo's is broken off, and the tensors that what follows reads from memory, which a
    single graph might not store. None if the graph ends where its function does."""
    reason = module.compile_subgraph_reason
    if not reason or not reason.graph_break:
        return None
    if reason.reason.startswith("generic_jump"):
        why = "a branch goes by a tensor's values"
    else:
        why = explained(reason.reason)
    return f"{user_line(reason.user_stack)}{why}{_passed_on(module)}"


def _passed_on(module: GraphModule) -> str:
    """The tensors that a graph passes to what follows, as the rest of a sentence; empty if there are none."""
    values = [node.meta.get("example_value") for node in module.graph.output_node().all_input_nodes]
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        return ""
    sizes = [tensor.numel() * tensor.itemsize for tensor in tensors]
    size = f" of {sum(sizes) / 1e6:.2f} MB" if all(isinstance(each, int) for each in sizes) else ""
    return f"; {len(tensors)} {'tensor' if len(tensors) == 1 else 'tensors'}{size} must be stored for what follows"


def first_line(error: object) -> str:
    """The first line of an error's message, or the name of its type if there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def explained(message: str) -> str:
    """The first line of a message of Dynamo's, and its explanation."""
    found = re.search(r"Explanation: (.*)", message)
    return ": ".join([first_line(message), *(found.groups() if found else ())])


def user_line(frames: Sequence[traceback.FrameSummary], of_project: bool = False) -> str:
    """The last line of the user's code in a stack, as a prefix "file:line: "; empty if there is none.

    Args:
        of_project: skip installed packages, unless nothing else is there.
    """
    folders = tuple(folder + os.sep for folder in _FOLDERS)
    frames = [frame for frame in frames if not frame.filename.startswith((*folders, "<"))]
    frames = [frame for frame in frames if of_project and "site-packages" not in frame.filename] or frames
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
