"""Installs the package from a folder of wheels, by pip and nothing else, for several Pythons and torches, and prints a
table of what works: with a compiler (the first import and the next ones), and without. Every row has to have a plan or
one sentence that says why not.

    python .ci/try_wheel.py dist .venv/bin/python /elsewhere/bin/python

Each Python must have torch, tqdm and pip; nothing is written into its environment."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = """
import sys, warnings, torch
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import torch_reformer
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    reports = []
    step = torch.compile(model, backend="reformer", options={"report": reports.append})
    x = torch.randn(4, 8)
    step(x).square().mean().backward()
    torch.testing.assert_close(step(x), model(x))
texts = [str(each.message) for each in warned if "torch_reformer makes no plans" in str(each.message)]
print(torch.__version__, f"{len(reports)} plans", texts[0] if texts else "", sep="|")
sys.exit(0 if len(reports) >= 2 or texts else 1)
"""


def run(python: str, script: str, **environment: str) -> tuple[subprocess.CompletedProcess, float]:
    start = time.perf_counter()
    done = subprocess.run([python, "-c", script], env=os.environ | environment, capture_output=True, text=True, cwd="/")
    return done, time.perf_counter() - start


def import_ratio(python: str, **environment: str) -> float:
    """CPU seconds to import torch and the package over torch's alone; medians of seven processes, in turns."""
    seconds: dict[str, list[float]] = {"import torch": [], "import torch, torch_reformer": []}
    for _ in range(7):
        for script, times in seconds.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(python, script, **environment)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    alone, both = map(statistics.median, seconds.values())
    return both / alone


def rows(index: Path, python: str, times_imports: bool) -> list[tuple[str, ...]]:
    result = []
    with tempfile.TemporaryDirectory() as folder:
        site = f"{folder}/site"
        wheels_only = ["--no-deps", "--no-index", "--find-links", str(index), "--only-binary=:all:"]
        install = [python, "-m", "pip", "install", "-q", *wheels_only, "--target", site, "torch_reformer"]
        subprocess.run(install, check=True)
        version = run(python, "import platform; print(platform.python_version())")[0].stdout.strip()
        here = {"PYTHONPATH": site, "PYTHONDONTWRITEBYTECODE": "", "TORCH_REFORMER_CACHE_DIR": f"{folder}/none"}
        cases = [
            ("no compiler", here | {"CXX": "no-such-compiler"}),
            ("compiler, first", here | {"TORCH_REFORMER_CACHE_DIR": f"{folder}/cache"}),
            ("compiler, again", here | {"TORCH_REFORMER_CACHE_DIR": f"{folder}/cache"}),
        ]
        for name, environment in cases:
            done, seconds = run(python, MODEL, **environment)
            torch, plans, said = (done.stdout.strip().splitlines() or ["||"])[-1].split("|")
            said = said or next((line for line in done.stderr.splitlines() if "torch_reformer:" in line), "")
            if done.returncode:
                said = f"FAILED: {done.stderr.strip().splitlines()[-1:]}"
            result.append((version, torch, name, plans, f"{seconds:.0f} s", said.replace(folder, "...")))
        if times_imports:
            ratio = import_ratio(python, **cases[-1][1])
            result.append((version, result[-1][1], "import over torch's", "", f"{ratio:.2f}", ""))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("index", type=Path, help="a folder of wheels")
    parser.add_argument("pythons", nargs="+", metavar="python")
    parser.add_argument("--imports", action="store_true", help="also compare the time to import with torch's")
    options = parser.parse_args()
    print("| Python | torch | case | plans | time | said |\n|---|---|---|---|---|---|")
    failed = False
    for python in options.pythons:
        for row in rows(options.index.resolve(), os.path.abspath(python), options.imports):
            print("|", " | ".join(row), "|", flush=True)
            failed |= row[-1].startswith("FAILED")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
