"""Templates on disk, beside PyTorch's cache of compiled graphs: a later process makes no plan for sizes that an earlier
one has made a template for.

PyTorch's cache keeps a graph when it is compiled. Templates are made later, when sizes are seen: each is a file in a
folder, whose name the cache keeps with the graph. The cache's key has the state of the package."""

from __future__ import annotations

import hashlib
import logging
import pickle
import uuid
from pathlib import Path

from torch._inductor.codecache import write_atomic
from torch._inductor.runtime.cache_dir_utils import cache_dir

from .template import Template

_log = logging.getLogger(__name__)


class StoredTemplates:
    """The templates of one graph that processes have stored. It pickles.

    Args:
        most: the number of templates that are kept.

    Attributes:
        is_used: True if the graph is in PyTorch's cache.
    """

    def __init__(self, most: int):
        self._name, self._most, self.is_used = uuid.uuid4().hex, most, False
        self._known: set[str] = set()  # files that this process has written or read

    def __getstate__(self):
        return vars(self) | {"is_used": True, "_known": set()}

    def _folder(self) -> Path:
        return Path(cache_dir()) / "reformer" / self._name

    def read(self) -> list[Template]:
        """Templates that other processes have stored since the last call."""
        if not self.is_used:
            return []
        paths = [path for path in sorted(self._folder().glob("*.template")) if path.name not in self._known]
        self._known.update(path.name for path in paths)
        return [template for path in paths[: self._most] if (template := _read(path))]

    def write(self, template: Template) -> None:
        if not self.is_used:
            return
        name = f"{hashlib.sha256(template.holds.code.encode()).hexdigest()}.template"
        self._known.add(name)
        try:
            if len([*self._folder().glob("*.template")]) < self._most:
                write_atomic(str(self._folder() / name), pickle.dumps(template), make_dirs=True)
        except Exception as error:  # the disk is full, say, or a constant does not pickle
            _log.info("a template is not stored: %s", error)


def _read(path: Path) -> Template | None:
    """A stored template; None if the file is gone or damaged."""
    try:
        return pickle.loads(path.read_bytes())
    except Exception as error:
        _log.info("a stored template is not read: %s: %s", path, error)
        return None
