"""Stages of compilation: printed on request, and left out where they fail.

``TORCH_LOGS="+torch_reformer"`` prints what each stage has made of a graph.

No error of the compiler's own reaches a user. What has failed is left out, and the graph is compiled again without:
an optional stage, which only makes the plan a better one; else the operators that could not be lowered, which PyTorch's
kernels compute then; else all optional stages. Where nothing is left to leave out, the graph is not planned. One
warning says what was left out. With ``TORCH_REFORMER_RAISE_ERRORS=1``, as in the package's tests, errors are raised.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from torch.fx import Graph, GraphModule, Node

from .fake_tensors import Unsupported
from .graph import Operation

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_MOST_NAMED = 3  # operators in a message
REPORT = 'Please report it, with what TORCH_LOGS="+torch_reformer" prints.'


class Failed(Exception):
    """An error of the compiler's own, which is the cause. nodes: of PyTorch's graph, where it came from."""

    def __init__(self, stage: str, is_optional: bool, nodes: Iterable[Node]):
        super().__init__(stage)
        self.stage, self.is_optional, self.nodes = stage, is_optional, tuple(dict.fromkeys(nodes))

    def __str__(self) -> str:
        of = f" of {told(self.nodes)}" if self.nodes else ""
        return f"{self.stage}{of} ({type(self.__cause__).__name__}: {self.__cause__})"


class _Attempt:
    """What is left out of the compilation of one graph: stages and nodes by their names."""

    def __init__(self):
        self.stages: set[str] = set()
        self.nodes: set[str] = set()
        self.leaves_all_out = False

    def leave_out(self, failure: Failed) -> bool:
        """Inputs out what has failed; False if there is nothing to leave out."""
        nodes = {node.name for node in failure.nodes} - self.nodes
        if failure.is_optional:
            self.stages.add(failure.stage)
        elif nodes:
            self.nodes |= nodes
        elif not self.leaves_all_out:
            self.leaves_all_out = True
        else:
            return False
        return True


_attempt: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)
_warned: set[str] = set()  # of which stages


def reset() -> None:
    """Lets warnings be given again."""
    _warned.clear()


def has_left_out() -> bool:
    """True if a stage or operator was left out since the last reset, of whatever graph."""
    return bool(_warned)


def raises() -> bool:
    """True if errors are raised."""
    return os.environ.get("TORCH_REFORMER_RAISE_ERRORS") == "1"


def warn_of(failures: list[Failed], instead: str) -> None:
    """Warns if there are new ones."""
    if any(each.stage not in _warned for each in failures):
        _warned.update(each.stage for each in failures)
        causes = "; in ".join(map(str, failures))
        warnings.warn(f"an internal error of torch_reformer in {causes}: {instead}. {REPORT}", stacklevel=3)


def optional(stage: Callable[..., _T], subject, *args) -> _T | None:
    """What the stage gives, or None if it is left out."""
    attempt, name = _attempt.get(), stage.__name__
    if attempt and (attempt.leaves_all_out or name in attempt.stages):
        return None
    with blamed(name, is_optional=True):
        result = stage(subject, *args)
        if raises() and hasattr(subject, "verify"):  # in tests only
            subject.verify()
    show(name, subject)
    return result


@contextlib.contextmanager
def blamed(stage: str, origins: Iterable[Node | Operation] = (), is_optional: bool = False) -> Iterator[None]:
    """Where an error is this stage's, or that of these nodes, or of those that the operations come from."""
    try:
        yield
    except (Unsupported, Failed):
        raise
    except Exception as error:
        if _attempt.get() is None:
            raise
        nodes = (each.node if isinstance(each, Operation) else each for each in origins)
        raise Failed(stage, is_optional, (node for node in nodes if node is not None)) from error


def or_whole(rule: Callable) -> Callable:
    """A decomposition that inputs the operator whole where it fails."""

    @functools.wraps(rule)
    def run(*args, **kwargs):
        try:
            return rule(*args, **kwargs)
        except Exception as error:
            if raises():
                raise
            failure = Failed(f"the decomposition {rule.__name__}", True, ())
            failure.__cause__ = error
            warn_of([failure], "the operator stays whole")
            return NotImplemented

    return run


def is_left_out(node: Node) -> bool:
    """True if PyTorch computes the node, as a plan's step."""
    attempt = _attempt.get()
    return attempt is not None and node.name in attempt.nodes


def attempted(make: Callable[[], _T], module: GraphModule) -> _T:
    """What `make` makes of a graph, if need be without what fails.

    Raises:
        Unsupported: nothing could be left out any more; the graph is as it was.
    """
    if raises():
        return make()
    before, attempt, failures = _copied(module.graph), _Attempt(), []
    token = _attempt.set(attempt)
    try:
        while True:
            try:
                with blamed("planning"):
                    found = make()
                break
            except Failed as failure:
                _log.info("left out: %s", failure, exc_info=failure.__cause__)
                failures.append(failure)
                module.graph = _copied(before)
                if not attempt.leave_out(failure):
                    raise Unsupported(f"an internal error in {failures[0]}. {REPORT}") from failure.__cause__
    finally:
        _attempt.reset(token)
    of_nodes = "PyTorch's kernels compute these operators"
    warn_of(failures, of_nodes if attempt.nodes else "the graph is planned without it")
    return found


def _copied(graph: Graph) -> Graph:
    """With what Dynamo notes of its graphs' inputs."""
    found = copy.deepcopy(graph)
    for node, own in zip(graph.nodes, found.nodes, strict=True):
        if hasattr(node, "_dynamo_source"):
            own._dynamo_source = node._dynamo_source
    return found


def told(nodes: Iterable[Node]) -> str:
    """Operators and where the user calls them."""
    texts = dict.fromkeys(f"{getattr(node.target, '__name__', node.target)}{place_of(node)}" for node in nodes)
    more = [f"{len(texts) - _MOST_NAMED} more"] if len(texts) > _MOST_NAMED else []
    return ", ".join([*texts][:_MOST_NAMED] + more)


def place_of(node: Node) -> str:
    """The line of the user's code that a node comes from, in brackets; nothing if that is not known."""
    lines = [each.strip() for each in (node.meta.get("stack_trace") or "").strip().splitlines()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    return f" [{': '.join(lines[places[-1] : places[-1] + 2])}]" if places else ""


def show(stage: str, subject) -> None:
    """Prints what a stage has changed, if that is asked for."""
    if _log.isEnabledFor(logging.DEBUG):
        graph = getattr(subject, "graph", None)
        text = str(graph) if isinstance(subject, GraphModule) else str(subject)
        _log.debug("after %s:\n%s", stage, text)
