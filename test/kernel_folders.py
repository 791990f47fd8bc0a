"""Folders of kernels for tests of the GPU runtime: the kernel of test/hip beside the package's device headers."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch_reformer
from torch_reformer.runtime import gpu

TEST = Path(__file__).parent
HIP = TEST.parent / "csrc" / "hip"
SCALE = gpu.Entry("test/scale", "scale_fp32_3", "fp32, 3")


def make(folder: Path) -> Path:
    shutil.copytree(HIP / "device", folder / "src" / "device")
    (folder / "src" / "test").mkdir()
    for path in (TEST / "hip").glob("scale.*"):
        shutil.copy(path, folder / "src" / "test")
    return folder


@contextlib.contextmanager
def used(folder: Path) -> Iterator[Path]:
    gpu.set_kernels_folder(folder)
    yield folder
    gpu.set_kernels_folder(Path(torch_reformer.__file__).parent / "kernels")


def load_nvrtc() -> bool:
    """Load NVRTC from the wheel nvidia-cuda-nvrtc, as torch for CUDA does; return False if it isn't installed."""
    for folder in map(Path, sys.path):
        for library in folder.glob("nvidia/*/lib/libnvrtc.so.*"):
            ctypes.CDLL(str(library))
            return True
    return False
