"""Resources of the kernels in a GPU's code object: registers, shared memory and spills."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple


class Resources(NamedTuple):
    registers: int  # per thread; AMD: vector registers, from gfx90a on with AGPRs
    shared_bytes: int  # static, per block
    stack_bytes: int  # per thread: scratch or local memory
    spills: int  # AMD: registers spilled to scratch, to AGPRs or, if scalar, to lanes of vector registers


def find_llvm(tool: str) -> str | None:
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    names = [str(rocm / "llvm/bin" / tool), *(f"{tool}-{version}" for version in range(25, 16, -1))]
    return next(filter(None, map(shutil.which, names)), None)


def amd_resources(path: Path) -> dict[str, Resources]:
    """Resources by kernel from the metadata, which `llvm-readelf --notes` prints as YAML."""
    command = [find_llvm("llvm-readelf"), "--notes", str(path)]
    notes = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for kernel in re.split(r"^  - ", notes.partition("amdhsa.kernels:")[2].partition("\namdhsa.")[0], flags=re.M)[1:]:
        words = dict(re.findall(r"^ *\.(\w+): +(\S+)$", kernel, flags=re.M))
        assert words["uses_dynamic_stack"] == "false"
        found[words["name"]] = Resources(
            int(words["vgpr_count"]),
            int(words["group_segment_fixed_size"]),
            int(words["private_segment_fixed_size"]),
            int(words["vgpr_spill_count"]) + int(words["sgpr_spill_count"]),
        )
    return found


def _elf_sections(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Size and contents of each section of a 64-bit ELF file; the contents are empty for sections without data in the
    file."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names_index = struct.unpack_from("<3H", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    sections = {}
    for name, kind, _, _, offset, size in headers:
        start = names + name
        text = data[start : data.index(b"\0", start)].decode()
        sections[text] = size, b"" if kind == 8 else data[offset : offset + size]  # 8: SHT_NOBITS
    return sections


def nvidia_resources(path: Path) -> dict[str, Resources]:
    """Resources by kernel from the section .nv.info, which `cuobjdump -res-usage` prints.

    The section is a list of attributes of 4 bytes (format, name, and size or value). An attribute of format 4 is
    followed by `size` bytes, here a symbol's number and a value.
    """
    sections = _elf_sections(path.read_bytes())
    symbols, strings = sections[".symtab"][1], sections[".strtab"][1]
    values: dict[str, dict[int, int]] = {}
    info, at = sections.get(".nv.info", (0, b""))[1], 0
    while at < len(info):
        kind, attribute, size = struct.unpack_from("<BBH", info, at)
        if kind == 4 and size == 8:
            symbol, value = struct.unpack_from("<II", info, at + 4)
            (name,) = struct.unpack_from("<I", symbols, 24 * symbol)
            values.setdefault(strings[name : strings.index(b"\0", name)].decode(), {})[attribute] = value
        at += 4 + (size if kind == 4 else 0)
    frame, registers, stack = 0x11, 0x2F, 0x12
    return {
        name: Resources(
            attributes[registers],
            sections.get(f".nv.shared.{name}", (0, b""))[0],
            max(attributes.get(frame, 0), attributes.get(stack, 0)),
            0,  # spilled registers are part of the stack frame
        )
        for name, attributes in values.items()
        if registers in attributes
    }


def resources(path: Path) -> dict[str, Resources]:
    """Resources by kernel; `path` is a .co file for AMD or a .cubin for NVIDIA."""
    return amd_resources(path) if path.suffix == ".co" else nvidia_resources(path)


def amd_opcodes(path: Path) -> dict[str, set[str]]:
    """Opcodes of each kernel."""
    arch = path.suffixes[-2][1:]
    command = [find_llvm("llvm-objdump"), "-d", f"--mcpu={arch}", "--no-show-raw-insn", str(path)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, set[str]] = {}
    for line in listing.splitlines():
        if match := re.match(r"^[0-9a-f]+ <(\w+)>:$", line):
            opcodes = found[match[1]] = set()
        elif match := re.match(r"^\s+(\w+)", line):
            opcodes.add(match[1])
    return found
