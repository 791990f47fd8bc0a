"""Native library for the installed version of torch (csrc/aten), whose calls cost as little as PyTorch's own. Without
it, the package's Python code does the same work, and the compiler makes no plans."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from types import ModuleType

from . import c_api, libraries
from .compile_library import TORCH, CannotCompile, module_name

PACKAGE = "torch_reformer"


def _load() -> tuple[ModuleType | None, str]:
    """Load the library. Returns (library, "") or (None, why there is none)."""
    name = f"{PACKAGE}.{module_name('aten')}"
    try:
        spec = importlib.util.spec_from_file_location(name, libraries.find("aten"))
        assert spec and spec.loader
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        library.connect(str(c_api.PATH))
        sys.modules[name] = library
        return library, ""
    except CannotCompile as error:
        return None, f"there is no library for torch {TORCH}: {error}"
    except (ImportError, RuntimeError) as error:
        return None, f"the library for torch {TORCH} can't be loaded ({error})"


library, missing = _load()
if library is None:
    warnings.warn(f"torch_reformer makes no plans, and its calls cost more: {missing}", stacklevel=2)


def _nothing(*arguments) -> None:
    """Replacement for the library's functions; as they do for calls left to Python, it returns None."""


conv2d = library.conv2d if library else _nothing
