"""Parallel compilation of many kernels before the first of them is launched, with one process per core, while this
process goes on."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tqdm import tqdm

from . import gpu

_WORKER = Path(__file__).with_name("rtc_worker.py")


# One batch of kernels at a time has all cores, beside the thread that plans the next graph.
_batches = ThreadPoolExecutor(1, "torch_reformer_compile_ahead")


class Ahead(NamedTuple):
    """Kernels that are being compiled: how many, and what ends when they are."""

    count: int
    batch: Future[None] | None

    def wait(self) -> None:
        """Return once they are compiled."""
        if self.batch is not None:
            self.batch.result()


def compile_ahead(architecture: str, run: Callable[[], None]) -> Ahead:
    """Begin to compile the kernels that a function would launch in this thread, without launching any. A terminal shows
    the progress if it takes longer than three seconds.

    A kernel that can't be compiled is skipped: whoever launches it gets the compiler's log. One that is launched before
    it is compiled is compiled twice.
    """
    missing = gpu.note_launches(architecture, run)
    if len(missing) < 2:
        return Ahead(len(missing), None)  # launching a single kernel compiles it just as fast
    return Ahead(len(missing), _batches.submit(_compile, architecture, missing))


def _compile(architecture: str, missing: list[gpu.Missing]) -> None:
    with _workers(gpu.compiler(architecture), min(len(missing), os.cpu_count() or 1)) as compile:
        jobs = {compile(kernel): kernel for kernel in missing}
        bar = tqdm(as_completed(jobs), "compiling kernels", len(jobs), leave=False, disable=None, delay=3)
        for done in bar:
            if isinstance(code := done.result(), bytes):
                gpu.add_compiled(jobs[done].entry, architecture, code)


@contextmanager
def _workers(compiler: gpu.Compiler, count: int) -> Iterator[Callable[[gpu.Missing], Future]]:
    """Start processes that compile; yields a function that takes a kernel and returns a future of its code, or of None
    if it can't be compiled."""
    command = [sys.executable, "-I", str(_WORKER)]
    idle: SimpleQueue[subprocess.Popen] = SimpleQueue()

    def compiled(kernel: gpu.Missing) -> bytes | None:
        worker = idle.get()
        assert worker.stdin and worker.stdout  # both are pipes
        try:
            pickle.dump((*compiler, kernel.name, kernel.source), worker.stdin)
            worker.stdin.flush()
            result = pickle.load(worker.stdout)
        except (OSError, EOFError):  # the process has ended
            return None
        finally:
            idle.put(worker)
        return result if isinstance(result, bytes) else None

    with ExitStack() as processes:  # each process ends when its stdin is closed
        for _ in range(count):
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            idle.put(processes.enter_context(worker))
        with ThreadPoolExecutor(count) as threads:
            yield lambda kernel: threads.submit(compiled, kernel)
