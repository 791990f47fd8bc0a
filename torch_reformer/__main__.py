"""Command line: ``python -m torch_reformer COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .compiler import cli
from .runtime import cache
from .selector import adapt, replay, train
from .tuning import collect, explain, info, verify


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_reformer", description="A compiler of PyTorch training steps, and its choice of kernels."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module, help in (
        ("info", info, "versions, devices, configuration"),
        ("explain", explain, "which kernel is chosen for a problem, and why"),
        ("collect", collect, "time every candidate of each problem on this machine"),
        ("verify", verify, "run every candidate on sample problems, and compare the results with exact ones"),
        ("plan", cli, "what the compiler makes of a model: kernels, bytes, expected times"),
        ("train", train, "train a selector on databases of timings"),
        ("adapt", adapt, "train a selector further, on other timings"),
        ("replay", replay, "what a selector would have chosen on databases of timings, and its cost"),
        ("cache", cache, "the GPU kernels that were compiled at run time"),
    ):
        command = commands.add_parser(name, help=help, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Invalid input prints a message on stderr and gives status 2, an
    interruption 130."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    options.arguments = arguments
    try:
        return options.run(options)
    except (ValueError, OSError) as error:
        is_of_file = isinstance(error, OSError) and error.filename is not None
        message = f"{error.filename}: {error.strerror}" if is_of_file else error
        print(f"torch_reformer {options.command}: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"torch_reformer {options.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
