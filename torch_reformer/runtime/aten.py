"""The library for the torch at hand (csrc/aten): calls at what PyTorch's own cost. Where it is missing, the package's
Python does what it does.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import torch

from . import native

PACKAGE = "torch_reformer"
VERSION = ".".join(torch.__version__.split(".")[:2])
BUILD = "build it with `pip install --no-build-isolation .`, or `make build` in the source tree"


def _load() -> tuple[ModuleType | None, str]:
    """The library, or None and why there is none."""
    name = f"_aten_{VERSION.replace('.', '_')}"
    try:
        library = importlib.import_module(f"{PACKAGE}.{name}")
        library.connect(str(native.PATH))
        return library, ""
    except ModuleNotFoundError:
        others = [path.name.split(".")[0] for path in sorted(Path(native.PATH).parent.glob("_aten_*.so"))]
        found = ", ".join(sorted({other.removeprefix("_aten_").replace("_", ".") for other in others}))
        was = f"it was built for torch {found} or for another Python" if found else "it was not built"
        return None, f"there is no library for torch {VERSION}: {was}; {BUILD}"
    except (ImportError, RuntimeError) as error:
        return None, f"the library for torch {VERSION} can't be loaded ({error}); {BUILD}"


library, missing = _load()


def _nothing(*arguments) -> None:
    """Stands in for the library's functions, which return None for calls that they leave to Python."""


conv2d = library.conv2d if library else _nothing
