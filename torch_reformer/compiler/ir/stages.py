"""Stages of compilation: they are printed on request, and left out if they fail.

``TORCH_LOGS="+torch_reformer"`` prints the graph after each stage.

No internal error of the compiler reaches a user. After an error, the graph is compiled again without the part that
failed: an optional stage, which only improves the plan; else the operators that could not be lowered, which PyTorch's
kernels then compute; else all optional stages. If there is nothing more to leave out, the graph is not planned. One
warning says what was left out. With ``TORCH_REFORMER_RAISE_ERRORS=1``, as in the package's tests, errors are raised.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from torch.fx import GraphModule, Node

from .fake_tensors import Unsupported
from .fx_utils import Snapshot
from .graph import Operation

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_MOST_NAMED = 3  # operators in a message
REPORT = 'Please report it, with what TORCH_LOGS="+torch_reformer" prints.'


class Failed(Exception):
    """An internal error of the compiler, which is the cause. nodes: nodes of PyTorch's graph at which it happened."""

    def __init__(self, stage: str, is_optional: bool, nodes: Iterable[Node]):
        super().__init__(stage)
        self.stage, self.is_optional, self.nodes = stage, is_optional, tuple(dict.fromkeys(nodes))

    def __str__(self) -> str:
        of_nodes = f" of {names_of(self.nodes)}" if self.nodes else ""
        return f"{self.stage}{of_nodes} ({type(self.__cause__).__name__}: {self.__cause__})"


class _Attempt:
    """The stages and nodes, by their names, that the compilation of one graph leaves out."""

    def __init__(self):
        self.stages: set[str] = set()
        self.nodes: set[str] = set()
        self.leaves_all_out = False

    def leave_out(self, failure: Failed) -> bool:
        """Leave out what has failed; False if there is nothing more to leave out."""
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
_warned: set[str] = set()  # stages that a warning has named


def reset() -> None:
    """Allow each warning to be given again."""
    _warned.clear()


def has_left_out() -> bool:
    """True if a stage or operator of any graph was left out since the last reset."""
    return bool(_warned)


def raises() -> bool:
    """True if internal errors are raised."""
    return os.environ.get("TORCH_REFORMER_RAISE_ERRORS") == "1"


def warn_of(failures: list[Failed], instead: str) -> None:
    """Warn of failures, and what is done instead, unless earlier warnings have named all of their stages."""
    if any(failure.stage not in _warned for failure in failures):
        _warned.update(failure.stage for failure in failures)
        causes = "; in ".join(map(str, failures))
        warnings.warn(f"an internal error of torch_reformer in {causes}: {instead}. {REPORT}", stacklevel=3)


def optional(stage: Callable[..., _T], subject, *args) -> _T | None:
    """Run an optional stage. Returns its result, or None if it is left out."""
    attempt, name = _attempt.get(), stage.__name__
    if attempt and (attempt.leaves_all_out or name in attempt.stages):
        return None
    with blamed(name, is_optional=True):
        result = stage(subject, *args)
    show(name, subject)
    return result


def required(stage: Callable[..., _T], subject, *args) -> _T:
    """Run a stage without which results would be wrong."""
    result = stage(subject, *args)
    show(stage.__name__, subject)
    return result


@contextlib.contextmanager
def blamed(stage: str, origins: Iterable[Node | Operation] = (), is_optional: bool = False) -> Iterator[None]:
    """Context whose errors become `Failed`, of the stage and of these nodes or of the operations' nodes."""
    try:
        yield
    except (Unsupported, Failed):
        raise
    except Exception as error:
        if _attempt.get() is None:
            raise
        nodes = (origin.node if isinstance(origin, Operation) else origin for origin in origins)
        raise Failed(stage, is_optional, (node for node in nodes if node is not None)) from error


def or_whole(rule: Callable) -> Callable:
    """Wrap a decomposition such that it keeps the operator if it fails, or goes by a size that depends on values."""

    @functools.wraps(rule)
    def run(*args, **kwargs):
        try:
            return rule(*args, **kwargs)
        except Exception as error:
            from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # slow to import

            if isinstance(error, GuardOnDataDependentSymNode):
                return NotImplemented
            if raises():
                raise
            failure = Failed(f"the decomposition {rule.__name__}", True, ())
            failure.__cause__ = error
            warn_of([failure], "the operator is not decomposed")
            return NotImplemented

    return run


def is_left_out(node: Node) -> bool:
    """True if the node is left to PyTorch, as a step of the plan, because a stage failed with it."""
    attempt = _attempt.get()
    return attempt is not None and node.name in attempt.nodes


def attempted(make: Callable[[], _T], module: GraphModule) -> _T:
    """Result of `make`, which compiles a graph, repeated without the parts that fail.

    Raises:
        Unsupported: there was nothing more to leave out; the graph is unchanged.
    """
    if raises():
        return make()
    before, attempt, failures = Snapshot(module.graph), _Attempt(), []
    token = _attempt.set(attempt)
    try:
        while True:
            try:
                with blamed("planning"):
                    result = make()
                break
            except Failed as failure:
                _log.info("left out: %s", failure, exc_info=failure.__cause__)
                failures.append(failure)
                module.graph = before.graph()
                if not attempt.leave_out(failure):
                    raise Unsupported(f"an internal error in {failures[0]}. {REPORT}") from failure.__cause__
            except Unsupported:
                module.graph = before.graph()  # what stages made of it may be right in a plan only
                raise
    finally:
        _attempt.reset(token)
    without_nodes = "PyTorch's kernels compute these operators"
    warn_of(failures, without_nodes if attempt.nodes else "the graph is planned without it")
    return result


def names_of(nodes: Iterable[Node]) -> str:
    """Names of the nodes' operators, and the lines of the user's code that call them."""
    texts = dict.fromkeys(f"{getattr(node.target, '__name__', node.target)}{place_of(node)}" for node in nodes)
    more = [f"{len(texts) - _MOST_NAMED} more"] if len(texts) > _MOST_NAMED else []
    return ", ".join([*texts][:_MOST_NAMED] + more)


def place_of(node: Node) -> str:
    """The line of the user's code that a node comes from, in brackets; empty if that is not known."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").strip().splitlines()]
    places = [i for i, line in enumerate(lines) if line.startswith("File ")]
    return f" [{': '.join(lines[places[-1] : places[-1] + 2])}]" if places else ""


def show(stage: str, subject) -> None:
    """Log the graph or other subject that a stage has changed, if debug logs are on."""
    if _log.isEnabledFor(logging.DEBUG):
        graph = getattr(subject, "graph", None)
        text = str(graph) if isinstance(subject, GraphModule) else str(subject)
        _log.debug("after %s:\n%s", stage, text)
