"""GPUs whose memory is the host's, for tests on machines without one.

With host_gpu.cpp, a PyTorch built for CPUs computes with tensors of cuda:0 and cuda:1, by the CPU's kernels.

    host_gpu.run('assert torch.ones(3, device="cuda").sum() == 3')  # in a process of its own
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path

HERE = Path(__file__).parent


def build() -> Path:
    """Compile the library for this torch, and return its path."""
    import compiled
    from torch.utils.cpp_extension import include_paths

    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", *(f"-isystem{path}" for path in include_paths())]
    return compiled.made("host_gpu.so", ["g++", *flags], HERE / "host_gpu.cpp")


def fake_hip() -> Path:
    """HIP's library without a GPU: gfx942 is device 0, gfx90a device 1, and launches do nothing."""
    import compiled

    return compiled.made("libamdhip64.so.7", ["cc", "-shared", "-fPIC", "-O1"], HERE / "hip" / "fake_hip.c")


def load(library: str | os.PathLike, driver: str | os.PathLike | None = None) -> None:
    """Import torch so that it finds two GPUs, NVIDIA's by default.

    Nothing may have imported torch before.

    Args:
        library: path of host_gpu.cpp's library.
        driver: path of a HIP driver, which is loaded into the process; the GPUs are then AMD's.
    """
    folder = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    ctypes.CDLL(str(folder / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)
    host = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    hip = driver is not None
    if hip:
        ctypes.CDLL(str(driver), ctypes.RTLD_GLOBAL)
    # Autograd's engine has a thread per GPU; if the process ended by an error it would wait for them.
    os.environ["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"] = "0"
    import torch

    def properties(device):
        return types.SimpleNamespace(
            name=f"{'AMD Instinct MI300X' if hip else 'NVIDIA H100'} of the host",
            major=9,
            minor=4 if hip else 0,
            gcnArchName=("gfx942", "gfx90a")[device] if hip else "",
            total_memory=1 << 36,
            multi_processor_count=304 if hip else 132,
            warp_size=64 if hip else 32,
        )

    def exchange():  # a new function for each use, since torch.compile has them in a table
        return lambda device: host.host_gpu_exchange(device)

    torch.version.hip = "6.2" if hip else None
    # Functions that torch.cuda calls and a PyTorch for CPUs lacks.
    torch._C._cuda_getDeviceCount = lambda: 2
    torch._C._cuda_getDevice = lambda: host.host_gpu_current()
    torch._C._cuda_setDevice = exchange()
    torch._C._cuda_synchronize = lambda: None
    torch._C._cuda_memoryStats = lambda device: {}
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch.cuda._exchange_device, torch.cuda._maybe_exchange_device = exchange(), exchange()
    torch.cuda._get_device_properties = properties
    torch.cuda.device_count = lambda: 2
    torch.cuda.current_stream = lambda device=None: torch.accelerator.current_stream(device)
    torch.cuda.default_generators = (torch.default_generator,) * 2
    torch.cuda._initialized = True


def run(code: str, hip: bool = False) -> str:
    """Output of the code in a process with the GPUs (AMD's if `hip` is set), torch, nn and F.

    Raises:
        AssertionError: the code fails; the message is its error output.
    """
    driver = str(fake_hip()) if hip else None
    prelude = f"import host_gpu\nhost_gpu.load({str(build())!r}, {driver!r})\n"
    prelude += "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    # Exit at once: Python does not know autograd's GPU threads, and would not end in order with them.
    end = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(code) + end]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
