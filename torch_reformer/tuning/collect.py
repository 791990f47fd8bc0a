"""Times every applicable candidate of each problem on this machine, and writes a database that a selector can learn
from.

If it was interrupted, or ran out of its minutes, the same command continues where it stopped. Under torchrun the
problems are distributed over the processes, each of which should have its own cores. Each process writes ``DB.rankR``,
and the last one to finish merges these files into DB (``--merge`` does this by hand).
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tqdm import tqdm

from ..problem import DIRECTIONS, LAYOUTS, TORCH_DTYPES
from ..runtime.files import check_writable
from ..selector.problems import Task, read_tasks
from ..selector.timing_database import Database, merge, part_path, parts
from .measure import Measurement, applicable, measure
from .measure_epilogue import compile_kernels, kernels, measure_epilogue
from .workload import device_name, usable_device

SAVE_SECONDS = 10  # the most work that can be lost
COMPILED_AT_ONCE = 500  # tasks whose kernels are compiled before the first of them is timed


def _listed(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        values = text.upper().split(",")
        if unknown := [word for word in values if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return values

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not minutes >= 0:  # also true for NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes")
    return minutes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--problems",
        type=Path,
        metavar="FILE",
        help="JSON objects, find-db keys or MIOpenDriver commands, one per line; a key may be followed by + and a "
        "program that runs after the convolution or product, such as +bias.relu: it is then timed fused and separately",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DB", help="find-db text; .xz and .bz2 compress")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu (default), or cuda for GPUs of either vendor")
    parser.add_argument("--batch", type=_positive, metavar="N", help="batch size, instead of that of the problems")
    parser.add_argument(
        "--dtype", type=str.upper, choices=list(TORCH_DTYPES), help="data type, instead of that of the problems"
    )
    parser.add_argument(
        "--directions", type=_listed(DIRECTIONS), help="such as F,B,W; instead of those of the problems"
    )
    parser.add_argument("--layouts", type=_listed(LAYOUTS), help="such as NCHW,NHWC; instead of those of the problems")
    parser.add_argument("--threads", type=_positive, help="number of CPU threads (default: torch's number)")
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N problems")
    parser.add_argument(
        "--repeats", type=_positive, default=5, metavar="N", help="minimum number of repeats of each timing (5)"
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=math.inf, metavar="M", help="start no further problem after this time"
    )
    parser.add_argument("--merge", action="store_true", help="only merge the existing parts DB.rank* into DB")


def _pending(tasks: list[Task], known: Iterable[Database], device: torch.device) -> list[Task]:
    """Tasks that no database covers. A database covers a task if it has timings of exactly the applicable solvers, or
    of exactly the ways to run an epilogue with the kernels that would be chosen now."""
    measured = {key: record for database in known for key, record in database.records.items()}

    def is_measured(task: Task) -> bool:
        if (record := measured.get(str(task))) is None:
            return False
        if task.epilogue:
            return record.algorithms == kernels(*task, device)
        return record.times.keys() == applicable(task.problem, device).keys()

    return [task for task in tasks if not is_measured(task)]


def _measured(task: Task, repeats: int, device: torch.device) -> Measurement:
    return measure_epilogue(*task, repeats, device) if task.epilogue else measure(task.problem, repeats, device)


def _collect(
    tasks: list[Task], total: int, database: Database, repeats: int, device: torch.device, seconds: float
) -> int:
    """Measure tasks into the database, starting none after `seconds`. Returns the number of tasks that could not be
    run."""
    skipped, measured, disturbed, saved = 0, 0, 0, time.monotonic()
    end = saved + seconds
    bar = tqdm(total=total, initial=total - len(tasks), unit="problem", mininterval=0.5, dynamic_ncols=True)
    try:
        for number, task in enumerate(tasks):
            if time.monotonic() >= end:
                break
            if number % COMPILED_AT_ONCE == 0 and any(pending.epilogue for pending in tasks):
                upcoming = tasks[number : number + COMPILED_AT_ONCE]
                compile_kernels([pending for pending in upcoming if pending.epilogue], device)
            bar.set_postfix_str(str(task))
            try:
                measurement = _measured(task, repeats, device)
            except ValueError as error:
                skipped += 1
                tqdm.write(f"left out: {task}: {error}", file=sys.stderr)
            else:
                database.add(measurement.record, measurement.wrong)
                measured += 1
                disturbed += measurement.disturbed
                for solver, what in measurement.wrong.items():
                    tqdm.write(f"WRONG: {task}: {solver}: {what}", file=sys.stderr)
            bar.update()
            if time.monotonic() - saved > SAVE_SECONDS:
                database.save()
                saved = time.monotonic()
        else:
            database.complete = True
    finally:  # also after an interruption
        bar.close()
        database.save()
        if disturbed:
            print(
                f"warning: other programs disturbed the timing of {disturbed} of {measured} problems, whose times "
                "may be too long: stop them, and collect into a new database",
                file=sys.stderr,
            )
    return skipped


def _report(database: Database, skipped: int = 0) -> int:
    timings = sum(len(record.timings) for record in database.records.values())
    print(f"{database.path}: {len(database.records)} problems, {timings} timings")
    if skipped:
        print(f"{skipped} problems could not be run: see above")
    if not database.wrong:
        return 0
    print(f"WRONG RESULTS for {len(database.wrong)} problems, left out of the timings:", file=sys.stderr)
    for key, solvers in database.wrong.items():
        for solver, what in solvers.items():
            print(f"  {key}: {solver}: {what}", file=sys.stderr)
    return 1


def run(options: argparse.Namespace) -> int:
    """Return status 0; 1 if a solver computed wrong results, 130 if interrupted."""
    if options.threads:
        torch.set_num_threads(options.threads)  # a CPU's name contains its number of threads
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = usable_device(options.device, int(os.environ.get("LOCAL_RANK", 0)))
    name = device_name(device)
    if options.merge:
        merged = merge(options.out, device=name)
        assert merged is not None  # merge() returns None only if it is given a number of ranks
        return _report(merged)
    if options.problems is None:
        raise ValueError("--problems is missing: which problems should be timed?")
    tasks = read_tasks(options.problems, options.batch, options.dtype, options.directions, options.layouts)
    share = tasks[: options.limit][rank::world_size]
    check_writable(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    whole = Database(options.out, name)
    database = whole if world_size == 1 else Database(part_path(options.out, rank), name)
    pending = _pending(share, [whole, *parts(options.out, name)], device)

    # torchrun stops its processes by SIGTERM; this saves before exit
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    database.complete = False
    database.save()  # fails now if the file can't be written
    try:
        skipped = _collect(pending, len(share), database, options.repeats, device, 60 * options.minutes)
    except KeyboardInterrupt:
        print(f"interrupted; {database.path} has {len(database.records)} problems; the same command goes on")
        return 130
    if not database.complete:
        print(f"{database.path} has {len(database.records)} problems so far: the same command goes on")
    if world_size == 1:
        return _report(database, skipped)
    # Wrong results make the merging process fail, not this one, because torchrun would then stop the others.
    if merged := merge(options.out, world_size, name):
        return _report(merged)
    if database.complete:
        print(f"{database.path} is complete; the process that finishes last merges it into {options.out.name}")
    return 0
