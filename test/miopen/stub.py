"""Build the stub of MIOpen (this folder) and the fake HIP that it calls (test/hip/fake_hip.c)."""

from pathlib import Path

import compiled
from miopen.controls import Stub

__all__ = ["Stub", "build", "build_hip"]

FOLDER = Path(__file__).parent
FLAGS = ["-fPIC", "-pthread", "-O1", "-Wall", "-Wextra", "-Werror"]


def build(
    folder: Path,
    sanitize: bool = False,
    soname: str = "libMIOpen.so.1",
    defines: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Path:
    """Build the library `soname` in `folder` and return its path.

    Args:
        defines: macros; STUB_DECOY makes a library whose every function ends the process.
        without: functions that the library lacks.
    """
    missing = [f"{name}=missing_{name}" for name in without]
    macros = [f"-D{macro}" for macro in (*defines, *missing)]
    flags = ["g++", "-std=c++17", "-fvisibility=hidden", *FLAGS, *macros, *(compiled.SANITIZERS if sanitize else [])]
    objects = [compiled.made(f"{file.stem}.o", [*flags, "-c"], file) for file in sorted(FOLDER.glob("*.cpp"))]
    return _linked(folder, soname, [*flags, *objects, "-ldl"])


def build_hip(folder: Path, sanitize: bool = False) -> Path:
    """Build the fake HIP in `folder` and return its path; FAKE_HIP_ARCHS="gfx908,gfx90a" lists its GPUs."""
    flags = ["cc", *FLAGS, *(compiled.SANITIZERS if sanitize else [])]
    return _linked(folder, "libamdhip64.so.7", [*flags, FOLDER.parent / "hip" / "fake_hip.c"])


def _linked(folder: Path, soname: str, command: list) -> Path:
    compiled.output_of(*command, "-shared", f"-Wl,-soname,{soname}", "-o", folder / soname)
    return folder / soname
