"""Compiles csrc/hip/*/*.hip into the package, for the GPUs of this machine or for the architectures in REFORMER_ARCHS.

setup.py calls build(). The code objects (<package>/kernels/<stem>.<architecture>.co or .cubin) are accompanied by the
sources, from which kernels that were not compiled here are compiled at run time. Files that are up to date, by their
modification times, are not compiled again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
# Architectures that kernels are packaged for, and True if they have TMA (devices.def).
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
DEVICE_FILES = {"gfx": Path("/dev/kfd"), "sm_": Path("/dev/nvidia0")}  # created by the vendor's driver if it has a GPU
AMD_FLAGS = (
    "-x hip -std=c++17 -O3 -Wall --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib "
    "-mcode-object-version=5"
).split()
# Kernels that are not compiled for all architectures: some need TMA, others are compiled at run time only, with a
# program's text appended.
NEEDS_TMA = {"tma_depthwise", "tma_gemm", "tma_windows"}
NEEDS_TEXT = {"stitch", "stitch_rows", "stitch_tiles"}
NVIDIA_FLAGS = "-x cu -std=c++17 -O3 -cubin".split()


def kernels() -> list[Path]:
    """Kernel files; no two have the same stem."""
    return sorted(HERE.rglob("*.hip"))


def sources() -> list[Path]:
    """All source files of device code: the kernel files and everything that they include."""
    return sorted(set().union(*map(_files_of, kernels())))


def is_packaged(stem: str, arch: str) -> bool:
    """True if the package can contain the file's code object for the architecture."""
    return stem not in NEEDS_TEXT and (stem not in NEEDS_TMA or HAS_TMA.get(arch, False))


def architectures() -> tuple[str, ...]:
    """Architectures in REFORMER_ARCHS ("gfx942 sm_90a"; empty for none), or else those of this machine's GPUs."""
    asked = os.environ.get(VARIABLE)
    return in_sight() if asked is None else tuple(asked.replace(",", " ").split())


def _output_of(*command: str) -> str:
    """Output of a command; empty if the command isn't installed."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True).stdout


def _of_rocm(path: str) -> str:
    return str(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / path)


def in_sight() -> tuple[str, ...]:
    """Those of ARCHITECTURES that a GPU of this machine can run; all of a vendor's if its driver is present, but no
    tool that names the GPU."""
    runnable = {"gfx": set(), "sm_": set()}
    for tool in ("rocm_agent_enumerator", _of_rocm("bin/rocm_agent_enumerator")):
        runnable["gfx"].update(re.findall(r"^gfx[1-9]\w+$", _output_of(tool), re.MULTILINE))
    capabilities = _output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    for major, minor in re.findall(r"^(\d+)\.(\d)$", capabilities, re.MULTILINE):
        # csrc/jit/code_objects.cpp looks for code objects in the same way.
        runnable["sm_"].update([f"sm_{major}{minor}a", *(f"sm_{major}{lesser}" for lesser in range(int(minor) + 1))])
    unknown = [vendor for vendor, file in DEVICE_FILES.items() if not runnable[vendor] and file.exists()]
    return tuple(arch for arch in ARCHITECTURES if arch in runnable[arch[:3]] or arch[:3] in unknown)


def _compiles_for_amd(clang: str) -> bool:
    """True if this is clang >= 17 (which gfx942 needs) with AMD GPUs among its targets and the linker that they
    need."""
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
    temporary = result.with_suffix(".tmp")  # an interrupted compiler must not leave a file that looks up to date
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
    """The file and all files that it includes."""
    files, left = set(), [source]
    while left:
        path = Path(os.path.normpath(left.pop()))
        if path.exists() and path not in files:  # the emulator's header does not exist here
            files.add(path)
            left += [path.parent / name for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)]
    return files


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
    """Fill a package's folder of kernels, and print a one-line summary."""
    wanted, asked = architectures(), VARIABLE in os.environ
    compilers = {"gfx": find_clang(), "sm_": find_nvcc()}
    missing = [arch for arch in wanted if compilers.get(arch[:3]) is None]
    # existing code objects for these architectures stay if they are up to date
    allowed = wanted if asked else ARCHITECTURES
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
