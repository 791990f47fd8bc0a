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


def _callers_in_the_package() -> int:
    """Number of this package's frames that are importing this module; warnings count no others of an import."""
    names, frame = [], sys._getframe(1)
    while frame is not None and (name := frame.f_globals.get("__name__", "")).startswith((PACKAGE, "importlib.")):
        names.append(name)
        frame = frame.f_back
    return sum(name.startswith(PACKAGE) for name in names)


library, missing = _load()
if library is None:
    text = f"torch_reformer makes no plans, and its calls cost more: {missing}"
    warnings.warn(text, stacklevel=1 + _callers_in_the_package())


def _nothing(*arguments) -> None:
    """Replacement for the library's functions; as they do for calls left to Python, it returns None."""


conv2d = library.conv2d if library else _nothing
