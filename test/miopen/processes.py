"""Run code in processes of its own, each with the stub of MIOpen and a fake HIP."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

TEST = Path(__file__).parent.parent


def run(folder: Path, code: str, given: bytes = b"", **environment: str) -> subprocess.CompletedProcess:
    """Run code after miopen/caller.py, with the libraries of the folder. GPU 0 is a gfx908, GPU 1 a gfx90a."""
    environment = os.environ | {
        "FAKE_HIP": str(folder / "libamdhip64.so.7"),
        "MIOPEN": str(folder / "libMIOpen.so.1"),
        "FAKE_HIP_ARCHS": "gfx908,gfx90a",
        "PYTHONPATH": os.pathsep.join([str(TEST), *sys.path]),
        **environment,
    }
    code = "from miopen.caller import *\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], input=given, env=environment, capture_output=True)


def works(folder: Path, code: str, given: bytes = b"", **environment: str) -> bytes:
    """Standard output of the code, which must not fail."""
    done = run(folder, code, given, **environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def aborts(folder: Path, code: str, sentence: str, **environment: str) -> None:
    """Check that the code ends by abort() after this message."""
    done = run(folder, code, **environment)
    assert done.returncode == -signal.SIGABRT and sentence in done.stderr.decode(), done.stderr.decode()
