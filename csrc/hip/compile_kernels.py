"""Compiles csrc/hip/*/*.hip into the package: for this machine's GPUs, or for those that REFORMER_ARCHS names.

setup.py calls build(). Beside the code objects (<package>/kernels/<stem>.<architecture>.co or .cubin) go the sources,
from which kernels that were not compiled here are compiled at run time. What is up to date, by the time of its last
change, is left alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
# Architectures that kernels are packaged for, and whether they have TMA (devices.def).
HAS_TMA = {
    code: tma == "true"
    for code, tma in re.findall(
        r'^REFORMER_GPU\("\w+", "[^"]+", "(\w+)", \d+, \d+, (true|false), ',
        (HERE / "devices.def").read_text(),
        re.MULTILINE,
    )
}
ARCHITECTURES = tuple(sorted(HAS_TMA))
VARIABLE = "REFORMER_ARCHS"
DEVICE_FILES = {"gfx": Path("/dev/kfd"), "sm_": Path("/dev/nvidia0")}  # the driver makes these for a vendor's GPUs
AMD_FLAGS = (
    "-x hip -std=c++17 -O3 -Wall --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib "
    "-mcode-object-version=5"
).split()
# Files that are not for all architectures: some are compiled with a program's text after them, at run time only.
NEEDS_TMA = {"tma_depthwise", "tma_gemm", "tma_windows"}
NEEDS_TEXT = {"stitch", "stitch_rows", "stitch_tiles"}
NVIDIA_FLAGS = "-x cu -std=c++17 -O3 -cubin".split()


def kernels() -> list[Path]:
    """The files of kernels; no two have the same stem."""
    return sorted(HERE.rglob("*.hip"))


def sources() -> list[Path]:
    """Everything that device code is made of: the kernels' files and all that they include."""
    return sorted(set().union(*map(_files_of, kernels())))


def is_packaged(stem: str, arch: str) -> bool:
    """Whether the package can have the file's code object for the architecture."""
    return stem not in NEEDS_TEXT and (stem not in NEEDS_TMA or HAS_TMA.get(arch, False))


def architectures() -> tuple[str, ...]:
    """What REFORMER_ARCHS asks for ("gfx942 sm_90a"; empty for none), or else what the GPUs in sight run."""
    asked = os.environ.get(VARIABLE)
    return in_sight() if asked is None else tuple(asked.replace(",", " ").split())


def _output_of(*command: str) -> str:
    """What it prints; nothing if it isn't installed."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout


def _of_rocm(path: str) -> str:
    return str(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / path)


def in_sight() -> tuple[str, ...]:
    """Those of ARCHITECTURES that a GPU of this machine runs: all of its vendor's where no tool says what it is."""
    runnable = {"gfx": set(), "sm_": set()}
    for tool in ("rocm_agent_enumerator", _of_rocm("bin/rocm_agent_enumerator")):
        runnable["gfx"].update(re.findall(r"^gfx[1-9]\w+$", _output_of(tool), re.MULTILINE))
    capabilities = _output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    for major, minor in re.findall(r"^(\d+)\.(\d)$", capabilities, re.MULTILINE):
        # As csrc/jit/code_objects.cpp looks for them.
        runnable["sm_"].update([f"sm_{major}{minor}a", *(f"sm_{major}{lesser}" for lesser in range(int(minor) + 1))])
    unknown = [vendor for vendor, file in DEVICE_FILES.items() if not runnable[vendor] and file.exists()]
    return tuple(arch for arch in ARCHITECTURES if arch in runnable[arch[:3]] or arch[:3] in unknown)


def _compiles_for_amd(clang: str) -> bool:
    """Whether it is clang >= 17 (gfx942) that has AMD's GPUs among its targets and finds the linker that they need."""
    version = re.search(r"clang version (\d+)", _output_of(clang, "--version"))
    return (
        version is not None
        and int(version[1]) >= 17
        and "amdgcn" in _output_of(clang, "--print-targets")
        and shutil.which(_output_of(clang, "-print-prog-name=ld.lld").strip()) is not None
    )


def find_clang() -> str | None:
    names = [_of_rocm("llvm/bin/clang++"), *(f"clang++-{version}" for version in range(25, 16, -1)), "clang++"]
    return next((path for path in map(shutil.which, names) if path and _compiles_for_amd(path)), None)


def find_nvcc() -> str | None:
    cuda = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which(str(cuda / "bin/nvcc"))


def command(compiler: str, arch: str, source: Path, result: Path) -> list[str]:
    if arch.startswith("gfx"):
        return [compiler, *AMD_FLAGS, f"--offload-arch={arch}", "-c", str(source), "-o", str(result)]
    return [compiler, *NVIDIA_FLAGS, f"-arch={arch}", str(source), "-o", str(result)]


def _compile(compiler: str, arch: str, source: Path, result: Path) -> None:
    temporary = result.with_suffix(".tmp")  # an interrupted compiler leaves nothing that looks up to date
    done = subprocess.run(command(compiler, arch, source, temporary), capture_output=True, text=True)
    if done.returncode:
        temporary.unlink(missing_ok=True)
        raise SystemExit(
            f"{compiler} can't compile {source.name} for {arch} (set {VARIABLE} to the architectures you want, or to "
            f"nothing):\n{done.stdout}{done.stderr}"
        )
    print(done.stderr, end="")  # warnings
    temporary.replace(result)


def _files_of(source: Path) -> set[Path]:
    """The file and all that it includes."""
    found, left = set(), [source]
    while left:
        path = Path(os.path.normpath(left.pop()))
        if path.exists() and path not in found:  # the emulator's is not among them
            found.add(path)
            left += [path.parent / name for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)]
    return found


def _copy_sources(folder: Path) -> None:
    wanted = {folder / source.relative_to(HERE): source for source in sources()}
    for path in folder.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()
    for path, source in wanted.items():
        if not path.exists() or path.read_bytes() != source.read_bytes():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)


def build(folder: Path) -> None:
    """Fills a package's folder of kernels, and says in a line what it holds then."""
    wanted, asked = architectures(), VARIABLE in os.environ
    compilers = {"gfx": find_clang(), "sm_": find_nvcc()}
    missing = [arch for arch in wanted if compilers.get(arch[:3]) is None]
    allowed = wanted if asked else ARCHITECTURES  # existing code objects of these stay, if they are up to date
    if missing and asked:
        raise SystemExit(
            f"{VARIABLE} asks for {', '.join(missing)}, and there is no compiler for that: gfx... needs clang >= 17 "
            "with lld (Debian: clang-19 and lld-19), sm_... needs nvcc"
        )
    _copy_sources(folder / "src")

    expected, jobs = set(), []
    for source in kernels():
        newest = max(path.stat().st_mtime for path in [Path(__file__), *_files_of(source)])
        for arch in allowed:
            if not is_packaged(source.stem, arch):
                continue
            compiler = compilers.get(arch[:3]) if arch in wanted else None
            result = folder / f"{source.stem}.{arch}.{'co' if arch.startswith('gfx') else 'cubin'}"
            fresh = result.exists() and result.stat().st_mtime > newest
            if fresh or compiler:
                expected.add(result)
            if compiler and not fresh:
                jobs.append((compiler, arch, source, result))
    for path in folder.iterdir():
        if path.is_file() and path not in expected:
            path.unlink()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: _compile(*job), jobs))

    packaged = [arch for arch in allowed if any(path.name.split(".")[1] == arch for path in expected)]
    if missing:
        rest = f"; no compiler for {', '.join(missing)}: compiled at first use there"
    elif not wanted and not asked:
        rest = f"; no GPU in sight: compiled at first use on a machine with one, or here if {VARIABLE} names it"
    else:
        rest = ""
    counts = f"{len(jobs)} compiled, {len(expected) - len(jobs)} up to date"
    print(f"GPU kernels: {', '.join(packaged) or 'none'} ({counts}){rest}")
