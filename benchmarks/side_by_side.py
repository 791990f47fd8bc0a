"""Work on several cases by a process each, which prepare side by side and are timed one after another."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.multiprocessing as multiprocessing


class Turn:
    """The right to be timed: no other process prepares or is timed meanwhile."""

    def __init__(self, context, count: int, seconds: float):
        self._ready, self._lock, self._seconds = context.Barrier(count), context.Lock(), seconds

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Wait until all processes are prepared, or for some seconds, and then for the turn."""
        with contextlib.suppress(threading.BrokenBarrierError):  # a process has died, or takes too long
            self._ready.wait(self._seconds)
        with self._lock:
            yield


def results(work: Callable[[str, Turn], Any], cases: Sequence[str], seconds: float) -> Iterator[tuple[str, Any]]:
    """Results of work(case, turn), as they come; an exception is the result if one was raised, or if a process died.

    Args:
        work: a function that can be pickled.
        seconds: after which cases are timed although others are not yet prepared.
    """
    context = multiprocessing.get_context("spawn")
    turn, found = Turn(context, len(cases), seconds), context.Queue()
    processes = [context.Process(target=_reported, args=(work, case, turn, found)) for case in cases]
    for process in processes:
        process.start()
    left = set(cases)
    while left and (any(process.is_alive() for process in processes) or not found.empty()):
        with contextlib.suppress(queue.Empty):
            case, result = found.get(timeout=1)
            left.remove(case)
            yield case, result
    for process in processes:
        process.join()
    for case in sorted(left):
        yield case, RuntimeError("its process ended without a result")


def _reported(work: Callable[[str, Turn], Any], case: str, turn: Turn, found: queue.Queue) -> None:
    try:
        result = work(case, turn)
    except Exception as error:  # the other cases go on
        result = RuntimeError(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        with turn.taken():
            pass
    found.put((case, result))
