"""Native library for the installed version of torch (csrc/aten), whose calls cost as little as PyTorch's own. Without
it, the package's Python code does the same work."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import torch

from . import c_api

PACKAGE = "torch_reformer"
VERSION = ".".join(torch.__version__.split(".")[:2])
BUILD = "build it with `pip install --no-build-isolation .`, or `make build` in the source tree"


def _load() -> tuple[ModuleType | None, str]:
    """Load the library. Returns (library, "") or (None, why there is none)."""
    name = f"_aten_{VERSION.replace('.', '_')}"
    try:
        library = importlib.import_module(f"{PACKAGE}.{name}")
        library.connect(str(c_api.PATH))
        return library, ""
    except ModuleNotFoundError:
        others = [path.name.split(".")[0] for path in sorted(Path(c_api.PATH).parent.glob("_aten_*.so"))]
        versions = ", ".join(sorted({other.removeprefix("_aten_").replace("_", ".") for other in others}))
        cause = f"it was built for torch {versions} or for another Python" if versions else "it was not built"
        return None, f"there is no library for torch {VERSION}: {cause}; {BUILD}"
    except (ImportError, RuntimeError) as error:
        return None, f"the library for torch {VERSION} can't be loaded ({error}); {BUILD}"


library, missing = _load()


def _nothing(*arguments) -> None:
    """Replacement for the library's functions; as they do for calls left to Python, it returns None."""


conv2d = library.conv2d if library else _nothing
