"""Weights files: a selector's tensors with all that is needed to use and to judge it.

A file is written by ``torch.save`` and read with ``weights_only=True``. Its dictionary has ``tensors``, the state of a
:class:`~torch_reformer.selector.model.Reformer` for one device, and ``metadata``: the architecture, the version of the
features, the candidates in order, the model's sizes, what it was trained on and how, and its scores on problems of
geometries that it has never seen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import _native
from .model import Reformer

FOLDER = Path(__file__).parent / "weights"
VARIABLE = "TORCH_REFORMER_WEIGHTS"


@dataclass
class Weights:
    metadata: dict
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        return self.metadata["architecture"]

    @property
    def candidates(self) -> list[str]:
        return self.metadata["candidates"]

    def experience(self, probability: float) -> str | None:
        """What became of choices as probable as this one on problems of geometries that it was never trained on."""
        bins = [found for found in self.metadata["confidence"] if found["from"] <= probability and found["problems"]]
        if not bins:
            return None
        found = bins[-1]
        return (
            f"of {found['problems']:,} held-out problems with such a choice it was the fastest in "
            f"{found['right']:.0%}, and {found['slowdown_if_wrong'] - 1:.1%} slower than that in the others"
        )

    def model(self) -> Reformer:
        rows = self.tensors["embedding"].shape[0]
        model = Reformer(rows, len(self.candidates), **self.metadata["model"])
        model.load_state_dict(self.tensors)
        return model.eval()

    def activate(self) -> None:
        """Lets these weights decide for every device of their architecture, in this process."""
        _active[self.architecture] = self
        _native.set_selector(
            self.architecture,
            feature_version=self.metadata["feature_version"],
            candidates=self.candidates,
            tensors=self.tensors,
            **self.metadata["model"],
        )

    def save(self, path: str | os.PathLike) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        torch.save({"metadata": self.metadata, "tensors": self.tensors}, temporary)
        os.replace(temporary, path)


_active: dict[str, Weights] = {}  # by architecture


def deciding(architecture: str) -> Weights | None:
    """The weights that decide for an architecture in this process, if they came from a file."""
    weights, current = _active.get(architecture), _native.selector(architecture)
    return weights if weights and current and current["tensors"] is weights.tensors else None


def load(path: str | os.PathLike) -> Weights:
    """Reads a weights file.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is no weights file, or one for another version of the features.
    """
    path = Path(path)
    path.stat()
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        weights = Weights(content["metadata"], content["tensors"])
        version = weights.metadata["feature_version"]
    except Exception as error:  # torch.load fails in many ways
        raise ValueError(f"{path} is no weights file of torch_reformer, or is damaged: {error}") from error
    here = _native.feature_shape().version
    if version != here:
        raise ValueError(
            f"{path} was trained on version {version} of the features, and this torch_reformer has version {here}: "
            "train it anew with `python -m torch_reformer train --timings DB "
            f"--arch {weights.architecture} --out {path}`"
        )
    return weights


def shipped(architecture: str) -> Path | None:
    """The package's own weights for an architecture (``cpu``, ``gfx908``, ...), if there are any."""
    path = FOLDER / f"{architecture}.pt"
    return path if path.exists() else None


def given() -> dict[str, Path]:
    """The files that TORCH_REFORMER_WEIGHTS names, by their architecture. Raises as :func:`load` does."""
    paths = [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]
    return {load(path).architecture: path for path in paths}


def find(architecture: str) -> Path | None:
    """The file that decides for an architecture: the user's own, or the package's, or none."""
    return given().get(architecture) or shipped(architecture)


def activate() -> None:
    """Makes the selectors of this machine decide: the CPU's, and all that the user names."""
    for path in {"cpu": shipped("cpu"), **given()}.values():
        if path:
            load(path).activate()
