"""Compiles the libraries that fit one torch and one Python only, from csrc/aten: PyTorch's C++ interface changes from
release to release. setup.py does so in a source tree; where a wheel was installed, libraries.py does at first use.

Imports nothing of the package, which setup.py can't import yet.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch

_PACKAGE = Path(__file__).parents[1]
# A wheel has the files in the package (setup.py copies them), a source tree has them beside it.
CSRC = (_PACKAGE if (_PACKAGE / "csrc").exists() else _PACKAGE.parent) / "csrc"
TORCH = ".".join(torch.__version__.split(".")[:2])
# The libraries of torch that each needs. The second stands in for a GPU (compiler/analysis/fake_gpu.py); it is loaded
# before Python starts, so without torch's Python part.
LIBRARIES = {"aten": ("c10", "torch", "torch_cpu", "torch_python"), "fake_gpu": ("c10", "torch_cpu")}
FLAGS = "-std=c++20 -O3 -g0 -fPIC -shared -fvisibility=hidden -Wall -Wextra".split()


class CannotCompile(RuntimeError):
    """The message says what is missing and what to do, in one sentence."""


class CompilerFailed(CannotCompile):
    """The message is all that the compiler printed."""


def module_name(library: str) -> str:
    return f"_{library}_{TORCH.replace('.', '_')}"


def file_name(library: str) -> str:
    return module_name(library) + sysconfig.get_config_var("EXT_SUFFIX")


def _units(library: str) -> list[Path]:
    return sorted(
        path for path in (CSRC / "aten").glob("*.cpp") if (path.stem == "fake_gpu") == (library == "fake_gpu")
    )


def sources(library: str) -> list[Path]:
    """All files of csrc that the library is made of."""
    files, left = set(), _units(library)
    while left:
        path = Path(os.path.normpath(left.pop()))
        if path not in files:
            files.add(path)
            for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE):
                left += [found for folder in (path.parent, CSRC) if (found := folder / name).exists()][:1]
    return sorted(files)


def copy_sources(folder: Path) -> None:
    """Copy the sources of all libraries to a folder that a package's csrc becomes."""
    for path in {path for library in LIBRARIES for path in sources(library)}:
        target = folder / path.relative_to(CSRC)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _compiler() -> list[str]:
    """The compiler's command: ``CXX``, as torch.utils.cpp_extension reads it, or ``c++``."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


def check_tools(library: str) -> None:
    """Raise CannotCompile if something that compiling needs is missing."""
    if not _units(library):
        raise CannotCompile("the package lacks its sources (torch_reformer/csrc); install it again")
    tools, packages = [], []
    if shutil.which(_compiler()[0]) is None:
        tools.append(f"a C++ compiler ({_compiler()[0]} is missing; CXX may name another)")
        packages.append("g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        tools.append(f"Python's headers ({header} is missing)")
        packages.append(f"python{sysconfig.get_python_version()}-dev")
    if tools:
        raise CannotCompile(
            f"compiling it needs {' and '.join(tools)}: apt install {' '.join(packages)} on Debian, Ubuntu"
        )


def compile_library(library: str, result: Path, flags: Sequence[str] = ()) -> str:
    """Compile a library into a file, which is replaced only if all goes well; returns the compiler's warnings.

    Raises:
        CannotCompile: as check_tools().
        CompilerFailed: the compiler refuses the sources.
    """
    check_tools(library)
    torch_folder, python_folder = Path(torch.__file__).parent, sysconfig.get_path("include")
    includes = [torch_folder / "include", torch_folder / "include/torch/csrc/api/include", python_folder]
    temporary = result.with_name(f".{result.name}.{os.getpid()}.tmp")
    command = [
        *(*_compiler(), *FLAGS, *flags),
        *("-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={module_name(library)}"),
        *(f"-I{CSRC}", *(f"-isystem{folder}" for folder in includes)),  # torch's headers cause warnings
        *("-x", "c++", "-", "-o", str(temporary)),
        *(f"-L{torch_folder / 'lib'}", *(f"-l{name}" for name in LIBRARIES[library])),
    ]
    # One translation unit: torch's headers, which take most of the time, are read once.
    unit = "".join(f'#include "{path.relative_to(CSRC)}"\n' for path in _units(library))
    try:
        done = subprocess.run(command, input=unit, capture_output=True, text=True)
        output = done.stdout + done.stderr
        if done.returncode:
            raise CompilerFailed(f"{shlex.join(command)}\n{output}")
        temporary.chmod(0o755)  # whatever the umask: libraries.py refuses files that others may write to
        os.replace(temporary, result)
    finally:
        temporary.unlink(missing_ok=True)
    return output
