"""Build what tests need compiled: the emulator's libraries, planners and GPU code objects, each only once.

Results stay in build/tests under a digest of the command, the compiler's version and the text of every included file,
so that no other run or process compiles them again. `make clean` removes them.
"""

import functools
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "csrc" / "hip"))
import compile_kernels  # noqa: E402

CACHE = ROOT / "build" / "tests"
CACHE.mkdir(parents=True, exist_ok=True)


# Flags for AddressSanitizer and UndefinedBehaviorSanitizer; libraries built so need sanitizer_environment().
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


class CompilerError(RuntimeError):
    """The compiler failed or printed a warning."""


def output_of(*command: object) -> str:
    words = [str(word) for word in command]
    environment = {**os.environ, "LD_PRELOAD": ""}  # compilers need no sanitizers
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode or done.stderr:
        raise CompilerError(f"{shlex.join(words)}\n{done.stderr}")
    return done.stdout


def sanitizer_environment(*compiler: str) -> dict[str, str]:
    """Environment variables of a Python process that loads sanitized libraries."""
    libraries = [output_of(*compiler, f"-print-file-name={name}").strip() for name in ("libasan.so", "libubsan.so")]
    return {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


@functools.cache
def _version(compiler: str) -> str:
    return output_of(compiler, "--version")


@functools.cache
def _included(path: Path) -> tuple[bytes, tuple[str, ...]]:
    """A file's text and the names that it includes in quotation marks."""
    text = path.read_bytes()
    return text, tuple(name.decode() for name in re.findall(rb'^\s*#\s*include "(.+)"', text, re.MULTILINE))


def _files(source: Path, folders: list[Path]) -> set[Path]:
    """The source and every file that it may include, found in the including files' folders or those of -I."""
    found, left = set(), [source.resolve()]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            candidates = [Path(folder, name) for name in _included(path)[1] for folder in (path.parent, *folders)]
            left += [candidate.resolve() for candidate in candidates if candidate.is_file()]
    return found


def _stored(name: str, digest: "hashlib._Hash", make: Callable[[Path], object]) -> Path:
    stem, _, suffixes = name.partition(".")
    result = CACHE / f"{stem}-{digest.hexdigest()[:16]}.{suffixes}"
    if not result.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            unfinished = Path(folder, result.name)
            make(unfinished)
            unfinished.rename(result)
    return result


def made(name: str, command: list, source: Path, instead: Callable[[], Path] | None = None) -> Path:
    """Run `command` with the source and -o, and return the output file `name`, with the digest before its suffixes.

    Args:
        instead: writes the file that is compiled in the source's place, where that is generated from the source.

    Raises:
        CompilerError: the compiler fails or prints a warning.
    """
    words = [str(word) for word in command]
    folders = [Path(word[2:]) for word in words if word.startswith("-I")]
    digest = hashlib.sha256(repr([words, _version(words[0])]).encode())
    for path in sorted(_files(source, folders)):
        digest.update(_included(path)[0])
    return _stored(name, digest, lambda file: output_of(*words, instead() if instead else source, "-o", file))


def code_object(compiler: str, architecture: str, source: Path, *flags: object) -> Path:
    """A file of kernels, compiled for a GPU as compile_kernels.py does."""
    *command, _, _, _ = compile_kernels.command(compiler, architecture, source, Path("result"))
    suffix = "co" if architecture.startswith("gfx") else "cubin"
    return made(f"{source.stem}.{architecture}.{suffix}", [*command, *flags], source)


def one_kernel(file: str, entry: str) -> Path:
    """A source with one kernel of csrc/hip/<file>.hip: `entry` is what the macro X expands to."""
    text = f'#define REFORMER_ENTRY {entry}\n#include "{ROOT}/csrc/hip/{file}.hip"\n'
    return written(f"{Path(file).name}.hip", text)


def written(name: str, text: str) -> Path:
    """A file with this text."""
    return _stored(name, hashlib.sha256(text.encode()), lambda file: file.write_text(text))
