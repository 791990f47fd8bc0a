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

from tqdm import tqdm

from . import gpu

_WORKER = Path(__file__).with_name("rtc_worker.py")


# One batch of kernels at a time has all cores, beside the thread that plans the next graph.
_batches = ThreadPoolExecutor(1, "torch_reformer_compile_ahead")


def compile_ahead(architecture: str, run: Callable[[], None]) -> Future[int] | None:
    """Begin to compile the kernels that a function would launch in this thread, without launching any. A terminal shows
    the progress if it takes longer than three seconds.

    A kernel that can't be compiled is skipped: whoever launches it gets the compiler's log. One that is launched before
    it is compiled is compiled twice.

    Returns:
        the number of kernels, once they are compiled; None if fewer than two lack code, as launching a single one
        compiles it just as fast.
    """
    missing = gpu.note_launches(architecture, run)
    return _batches.submit(_compile, architecture, missing) if len(missing) > 1 else None


def _compile(architecture: str, missing: list[gpu.Missing]) -> int:
    with _workers(gpu.compiler(architecture), min(len(missing), os.cpu_count() or 1)) as compile:
        jobs = {compile(kernel): kernel for kernel in missing}
        bar = tqdm(as_completed(jobs), "compiling kernels", len(jobs), leave=False, disable=None, delay=3)
        for done in bar:
            if isinstance(code := done.result(), bytes):
                gpu.add_compiled(jobs[done].entry, architecture, code)
    return len(missing)


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
