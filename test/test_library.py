"""The native library needs nothing but torch's stable C ABI and the C and C++ run-time libraries."""

import os
import re
import shutil
import subprocess

import pytest
from marks import needs_aten

from torch_reformer.runtime import aten, c_api

# Tools of binutils, which every compiler brings along.
readelf = pytest.mark.skipif(
    not shutil.which("readelf") and not os.environ.get("CI"), reason="readelf (binutils) is not installed"
)

NEEDED = {"libc10.so", "libtorch.so", "libtorch_cpu.so", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6"}
NEEDED |= {"libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libgomp.so.1"}


def dynamic(option: str) -> str:
    command = ["readelf", "--wide", "--dyn-syms" if option == "symbols" else "--dynamic", str(c_api.PATH)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols() -> dict[str, bool]:
    """Every dynamic symbol without its version, and whether the library defines it."""
    defined = {}
    for line in dynamic("symbols").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit():
            defined[fields[7].split("@")[0]] = fields[6] != "UND"
    return defined


@readelf
def test_needed_libraries():
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic("libraries")))
    assert needed <= NEEDED, "in particular no libpython and no GPU library"


@readelf
def test_torch_is_used_by_its_stable_abi_only():
    undefined = {name for name, defined in symbols().items() if not defined}
    assert any(name.startswith("aoti_torch_") for name in undefined)
    torchs = {name for name in undefined if re.search(r"N2at|N3c10|5torch|caffe2|pybind11", name)}
    assert not torchs, "C++ symbols of torch change from release to release"
    assert not {name for name in undefined if re.match(r"_?Py[A-Z_]", name)}, "Python's symbols"
    assert not {name for name in undefined if re.match(r"(cu|hip|cuda|nvrtc|hiprtc|hsa_|cublas|cudnn)[A-Z]", name)}


@readelf
def test_undefined_symbols_are_known():
    """Besides torch's: C++ (mangled), its run-time library, and lower-case functions of the C library."""
    known = re.compile(r"(aoti_torch_|torch_|_Z|__|_Unwind_|_ITM_|GOMP_|[a-z][a-z0-9_]*$)")
    assert not {name for name, defined in symbols().items() if name and not defined and not known.match(name)}


@readelf
def test_exported_symbols():
    """Only names of csrc/exports.map: a C++ run-time library within the library would otherwise mix with torch's."""
    exported = {name for name, defined in symbols().items() if defined}
    assert {"reformer_candidates", "reformer_set_config"} <= exported
    assert not {name for name in exported if not name.startswith("reformer_")}


def test_one_library_for_every_python():
    assert c_api.PATH.name == "_C.abi3.so"


@needs_aten
def test_the_library_for_the_torch_at_hand_loads():
    """It uses no symbol of the other library, which exports its C API alone. In CI it has to be there: the tests that
    need it would be skipped without."""
    assert aten.library is not None, aten.missing
