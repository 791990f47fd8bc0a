"""Shows what is installed and which settings are in force: the first thing to send with a bug report."""

from __future__ import annotations

import argparse
import os
import platform
import textwrap
from collections.abc import Iterable
from pathlib import Path

import torch

from ..runtime import aten, config, native
from ..selector import weights_file
from ..version import VERSION


def gpus() -> list[str]:
    """Name and architecture of each GPU that torch sees."""
    names = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        arch = getattr(properties, "gcnArchName", "").partition(":")[0] if torch.version.hip else ""
        names.append(f"{properties.name} ({arch or f'sm_{properties.major}{properties.minor}'})")
    return names


def settings_lines() -> list[str]:
    """One line per setting: its name, the value in force, and its environment variable with its value."""
    lines = []
    for name, value in vars(config.settings()).items():
        shown = ", ".join(value) if isinstance(value, tuple) else value
        shown = "none" if shown in (None, "") else str(shown)
        lines.append(_setting_line(name, shown))
    return [*lines, _setting_line("isa", native.device(None).split("-")[1])]


def _setting_line(name: str, shown: str) -> str:
    variable = f"TORCH_REFORMER_{name.upper()}"
    return f"  {name:17}{shown:12} {variable} {os.environ.get(variable, 'is not set')}"


def weights_lines() -> list[str]:
    """Lines naming the weights files that decide: for the CPU, and for all architectures for which the user or the
    package has weights."""
    shipped = {path.stem for path in weights_file.FOLDER.glob("*.pt")}
    paths = {name: weights_file.find(name) for name in sorted({"cpu", *shipped, *weights_file.given()})}
    lines = [f"{name}: {'the static rule decides' if path is None else _origin(path)}" for name, path in paths.items()]
    return [f"{title:16}{line}" for title, line in zip(["weights", *[""] * len(lines)], lines, strict=False)]


def _origin(path: Path) -> str:
    return f"the package's {path.name}" if path.parent == weights_file.FOLDER else str(path)


def _wrapped(title: str, names: Iterable[str]) -> list[str]:
    """Lines of names after a title, no longer than a terminal's."""
    text = f"{title:16}{', '.join(names)}"
    return textwrap.wrap(text, 100, subsequent_indent=" " * 16, break_on_hyphens=False)


def info() -> str:
    hits, misses = native.cache_counts()
    lines = [
        f"torch_reformer  {VERSION}",
        f"torch           {torch.__version__}",
        f"Python          {platform.python_version()}",
        f"CPU             {native.device(None)}",
        f"GPUs            {', '.join(gpus()) or 'none'}",
        *weights_lines(),
        f"torch's library {aten.missing or 'built for torch ' + aten.library.torch_version}",
        *_wrapped("solvers", config.solvers()),
        f"decision cache  {hits} hits, {misses} misses in this thread",
        "",
        "configuration",
        *settings_lines(),
    ]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: this command has none."""


def run(options: argparse.Namespace) -> int:
    print(info())
    return 0
