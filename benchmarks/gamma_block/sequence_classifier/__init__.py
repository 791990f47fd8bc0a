"""The classifier of texts of gamma_block.py in C++, on the library's Γ-blocks. It is compiled at its first use, into
build/: the library itself has no use for it.
"""

from __future__ import annotations

import fcntl
import functools
import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

from torch_reformer.runtime.native import _block_shapes, _dense, _isa

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
LIBRARY_SOURCES = ["cpu/gemm/kernel.cpp", "selector/packing.cpp", "device.cpp"]
FLAGS = ["-O3", "-std=c++17", "-fvisibility=hidden", "-ffp-contract=fast"]  # as in setup.py


@functools.cache
def _compiled() -> ModuleType:
    # ninja may be that of the virtual environment, which need not be activated.
    os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")
    build = ROOT / "build" / "sequence_classifier"
    build.mkdir(parents=True, exist_ok=True)
    sources = [*sorted(FOLDER.glob("*.cpp")), *(ROOT / "csrc" / name for name in LIBRARY_SOURCES)]
    with (build / "one_at_a_time").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (build / "lock").unlink(missing_ok=True)  # load()'s own, of a process that was killed: it would wait forever
        return cpp_extension.load(
            "sequence_classifier",
            [str(source) for source in sources],
            extra_cflags=FLAGS,
            extra_include_paths=[str(FOLDER), str(ROOT / "csrc")],
            build_directory=str(build),
        )


class SequenceClassifier:
    """Words and learned positions, Γ-blocks, mean over the positions, linear layer. It computes on the calling thread
    alone, and one thread may call it at a time.

    Args:
        tensors: the state_dict(). They are copied.

    Raises:
        ValueError: for shapes that do not fit.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        words, width = tensors["embedding.weight"].shape
        longest, self.classes = len(tensors["positions"]), len(tensors["head.weight"])
        blocks, hidden = sum(name.endswith(".taps") for name in tensors), len(tensors["blocks.0.up.weight"])
        shapes = {
            **{"positions": (longest, width), "embedding.weight": (words, width)},
            **_block_shapes(width, hidden, blocks),
            **{"head.weight": (self.classes, width), "head.bias": (self.classes,)},
        }
        dense = _dense(f"classifier of {blocks} blocks", shapes, tensors)
        addresses = [tensor.data_ptr() for tensor in dense]
        self._native = _compiled().SequenceClassifier(words, longest, width, hidden, blocks, self.classes, addresses)

    def logits(self, words: torch.Tensor, isa: str | None = None) -> torch.Tensor:
        """``[class]`` of one text's ``words`` (int64, ``[length]``). ``isa`` (``plain``, ``avx2``, ``avx512``) is the
        instruction set to compute with: this machine's best if None.
        """
        if words.dtype != torch.int64 or words.ndim != 1:
            raise ValueError(f"words must be int64 [length], got {words.dtype} {list(words.shape)}")
        words, result = words.cpu().contiguous(), torch.empty(self.classes)
        self._native.logits(words.data_ptr(), len(words), _isa(isa), result.data_ptr())
        return result
