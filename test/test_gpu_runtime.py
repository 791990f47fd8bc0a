"""Devices and launches, with drivers that pretend to have GPUs (test/hip/fake_*.c), each test in its own process."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import kernel_folders
import pytest

TEST = Path(__file__).parent

PRELUDE = """
import ctypes, os, threading
import pytest
import kernel_folders
from kernel_folders import SCALE
from pathlib import Path
fake = ctypes.CDLL(os.environ["FAKE"])
from torch_reformer.runtime import gpu
folder = Path(os.environ["FOLDER"])
gpu.set_kernels_folder(folder)
def launch(entry=SCALE, **options):
    gpu.launch(entry, (ctypes.c_int * 4)(7, 0, 0, 0), threads=256, **options)
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fakes")
    for name, soname in ("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so.7"):
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-Wl,-soname,{soname}"]
        subprocess.run([*command, TEST / "hip" / f"fake_{name}.c", "-o", folder / soname], check=True)
    return folder


@pytest.fixture
def kernels(tmp_path):
    return kernel_folders.make(tmp_path / "kernels")


def pretend(library: Path, kernels: Path, code: str) -> None:
    """Run code in a process with a fake driver."""
    environment = os.environ | {
        "FAKE": str(library),
        "FOLDER": str(kernels),
        "PYTHONPATH": os.pathsep.join([str(TEST), str(TEST.parent), *sys.path]),
        "TORCH_REFORMER_CACHE_DIR": str(kernels / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def cuda(fakes, kernels):
    return lambda code: pretend(fakes / "libcuda.so.1", kernels, code)


@pytest.fixture
def hip(fakes, kernels):
    return lambda code: pretend(fakes / "libamdhip64.so.7", kernels, code)


def test_devices_of_cuda(cuda):
    cuda("""
        assert [gpu.architecture(device) for device in range(3)] == ["sm_90", "sm_86", "sm_120"]
        assert [gpu.device(device) for device in range(3)] == ["sm_90:H100", "sm_86", "sm_120"]
        for device in -1, 3, 64:
            with pytest.raises(ValueError, match="CUDA: cuDeviceGetAttribute: |there is no GPU"):
                gpu.architecture(device)
    """)


def test_a_launch(cuda, kernels):
    (kernels / "scale.sm_90a.cubin").write_bytes(b"\x7fELFfake scale_fp32_3")
    cuda("""
        fake.fake_last_shape.restype = ctypes.POINTER(ctypes.c_uint * 5)
        fake.fake_last_stream.restype = ctypes.c_void_p
        launch(blocks=(2, 3, 4), shared_bytes=99, stream=1234)
        assert list(fake.fake_last_shape().contents) == [2, 3, 4, 256, 99]
        assert (fake.fake_last_stream(), fake.fake_last_argument()) == (1234, 7)
        launch(blocks=(2, 3, 8), shared_bytes=9, stream=4321, cluster=4)
        assert list(fake.fake_last_shape().contents) == [2, 3, 8, 256, 9] and fake.fake_last_cluster() == 4
        assert (fake.fake_last_stream(), fake.fake_last_argument(), fake.fake_last_pdl()) == (4321, 7, 0)
        launch(pdl=True)
        assert (fake.fake_last_cluster(), fake.fake_last_pdl()) == (0, 1)
        launch(pdl=True, cluster=2)
        assert (fake.fake_last_cluster(), fake.fake_last_pdl()) == (2, 1)
        assert fake.fake_largest_shared() == 232448 - 1024
        assert fake.fake_capture_mode() == 0, "the thread's capture mode is as it was"
        for _ in range(10):
            launch()
        assert (fake.fake_loads(), fake.fake_launches()) == (1, 14)
        fake.fake_drop_context()  # as in a thread in which torch has done nothing yet
        launch()
        assert (fake.fake_loads(), fake.fake_launches()) == (1, 15)
    """)


def test_no_kernel_begins_early_before_hopper(cuda, kernels):
    (kernels / "scale.sm_86.cubin").write_bytes(b"\x7fELFfake scale_fp32_3")
    cuda("""
        launch(pdl=True, device=1)
        assert fake.fake_last_pdl() == 0
    """)


def test_packaged_code_by_architecture(cuda, kernels):
    (kernels / "scale.sm_80.cubin").write_bytes(b"\x7fELFfake scale_fp32_3")
    (kernels / "scale.sm_90.cubin").write_bytes(b"\x7fELFfake nothing")
    (kernels / "scale.sm_90a.cubin").write_bytes(b"\x7fELFfake scale_fp32_3")
    cuda("""
        launch(device=0)
        launch(device=1)  # 8.6 runs code for 8.0
        assert fake.fake_loads() == 2
        assert gpu.unavailable("sm_90") is None and gpu.unavailable("sm_89") is None
        if why := gpu.unavailable("sm_120"):
            assert why.startswith("no kernels for sm_120 are packaged, and NVRTC (")
            with pytest.raises(ValueError, match="scale_fp32_3 is not packaged for sm_120, and NVRTC"):
                launch(device=2)
        assert gpu.unavailable("gfx942").startswith("no kernels for gfx942 are packaged, and hipRTC (")
    """)


def test_threads_load_once(cuda, kernels):
    names = " ".join(f"k{i}" for i in range(50))
    (kernels / "scale.sm_90a.cubin").write_bytes(b"\x7fELFfake " + names.encode())
    cuda("""
        entries = [gpu.Entry("test/scale", f"k{i}", "") for i in range(50)]
        def work():
            for _ in range(20):
                for entry in entries:
                    launch(entry)  # each time at another address
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (fake.fake_loads(), fake.fake_launches()) == (1, 8000)
    """)


def test_what_the_driver_refuses_is_compiled(cuda, kernels):
    """The package may have been built by a newer CUDA than the driver's."""
    (kernels / "scale.sm_90a.cubin").write_bytes(b"\x7fELFfake scale_fp32_3")
    cuda("""
        fake.fake_refuse_loads(1)
        if kernel_folders.load_nvrtc():
            launch()
            launch(gpu.Entry("test/scale", "scale_bf16_2", "bf16, 2"))  # not in the packaged code
            assert (fake.fake_loads(), fake.fake_launches()) == (3, 2)  # the packaged code was tried again
        elif gpu.unavailable("sm_120"):  # no NVRTC at all
            with pytest.raises(ValueError, match="CUDA: cuLibraryLoadData: no kernel image is available .209."):
                launch()
    """)


def test_hip(hip, kernels):
    (kernels / "scale.gfx942.co").write_bytes(b"\x7fELFfake scale_fp32_3")
    hip("""
        assert [gpu.architecture(device) for device in range(2)] == ["gfx942", "gfx90a"]
        launch()
        launch()
        assert fake.fake_launches() == 2
        with pytest.raises(ValueError, match="HIP: hipModuleLaunchKernel: illegal address .700."):
            gpu.launch(SCALE, (ctypes.c_int * 4)(7), threads=2048)
        with pytest.raises(ValueError, match="test/scale scale_fp32_3 is not packaged for gfx90a, and hipRTC"):
            launch(device=1)
    """)
