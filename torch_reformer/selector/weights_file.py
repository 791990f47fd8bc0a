"""Weights files: a selector's tensors, with everything needed to use and to assess it.

A file is written by ``torch.save`` and read with ``weights_only=True``. Its dictionary has ``tensors``, the state of a
:class:`~torch_reformer.selector.model.Reformer` for one device, and ``metadata``: the architecture, the version of the
features, the candidates in order, the model's sizes, its training data and recipe, and its scores on problems of
geometries never trained on.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..problem import ConvProblem
from ..runtime import native
from ..runtime.files import read_regular, write_bytes
from .dataset import FOLDS, architecture, decided
from .model import Reformer
from .timings import Record

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
    def decides(self) -> str:
        """Kind of decision (``native.DECIDES``)."""
        return self.metadata.get("decides", "kernels")  # missing in files of earlier versions

    @property
    def name(self) -> str:
        """Name of the package's own file of this kind: ``sm_90``, ``sm_90-products``."""
        return name_of(self.architecture, self.decides)

    def check_records(self, records: Collection[Record]) -> None:
        """Raise ``ValueError`` if the records are not of the kind that these weights decide."""
        if records and (decides := decided(records)) != self.decides:
            raise ValueError(f"these weights decide about {self.decides}, but the records are of {decides}")

    @property
    def candidates(self) -> list[str]:
        return self.metadata["candidates"]

    def experience(self, probability: float, problem: ConvProblem, device: str) -> str:
        """Sentence on how good choices of this probability were on problems of geometries never trained on."""
        if unknown := self._unmeasured(problem, device):
            return f"how often such a choice is right is not known: {unknown}"
        scores = [scores for scores in self.metadata["confidence"] if scores["from"] <= probability][-1]
        if not scores["problems"]:
            return "how often such a choice is right is not known: no held-out problem had one"
        held_out = f"{scores['problems']:,} held-out problems with such a choice"
        if scores["right"] == 1:
            return f"in all of {held_out} it was the fastest"
        return (
            f"of {held_out} it was the fastest in {scores['right']:.0%}, "
            f"and {scores['slowdown_if_wrong'] - 1:.1%} slower than that in the others"
        )

    def margin(self) -> str | None:
        """Sentence on the advantage of PyTorch's own kernel over others (train.favour); None if it has none."""
        advantage = self.metadata.get("advantage", 1)  # missing in files of earlier versions
        if advantage == 1:
            return None
        gain = advantage ** (1 / self.metadata["recipe"]["sharpness"]) - 1
        return (
            f"a kernel other than PyTorch's is chosen only if it seems {gain:.0%} faster, since estimates have errors"
        )

    def _unmeasured(self, problem: ConvProblem, device: str) -> str | None:
        """Reason why nothing is known about such a problem on this device; None if it resembles the training data."""
        arch = device.partition(":")[0]  # GPUs of one architecture share weights
        sources = [source for source in self.metadata["timings"] if source["device"].partition(":")[0] == arch]
        if not sources:
            return f"it was not measured on {device}"
        if not any(problem.dtype in source["dtypes"] for source in sources):
            return f"there are no measurements of {problem.dtype}"
        if max(map(math.prod, (problem.input_size, problem.weight_size, problem.output_size))) >= 2**31:
            return "it was not measured on tensors of 2^31 elements and more"
        return None

    def model(self) -> Reformer:
        rows = self.tensors["embedding"].shape[0]
        model = Reformer(rows, len(self.candidates), **self.metadata["model"])
        model.load_state_dict(self.tensors)
        return model.eval()

    def activate(self) -> None:
        """Let these weights decide for every device of their architecture, in this process.

        Raises:
            ValueError: if these are weights for the CPU that know none of the solvers.
        """
        if self.architecture == "cpu" and set(self.candidates).isdisjoint(native.solver_names()):
            raise ValueError(
                f"the weights for cpu know {', '.join(self.candidates[:3])} and so on, but none of this package's "
                "solvers: train them on timings of `python -m torch_reformer collect`"
            )
        native.set_selector(self.architecture, **self._description())
        _active[self.name] = self

    def _description(self) -> dict:
        return {
            "feature_version": self.metadata["feature_version"],
            "candidates": self.candidates,
            "tensors": self.tensors,
            "decides": self.decides,
            **self.metadata["model"],
        }

    def check(self) -> None:
        """Raise ``ValueError`` with what does not fit. Files from elsewhere are not trusted."""
        _check_metadata(self.metadata)
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, Tensor) or tensor.dtype != torch.float32 or not _finite(tensor):
                raise ValueError(f"{name} is not a tensor of finite float32 numbers")
        native.check_selector(self.architecture, **self._description())

    def save(self, path: str | os.PathLike) -> None:
        save(path, {"metadata": self.metadata, "tensors": self.tensors})


def name_of(architecture: str, decides: str) -> str:
    return architecture if decides == "kernels" else f"{architecture}-{decides}"


def save(path: str | os.PathLike, content: dict) -> None:
    """Write by ``torch.save``, atomically."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_bytes(path, buffer.getvalue())


def read(path: str | os.PathLike) -> object:
    """Content that :func:`save` wrote. Raises ``OSError`` if the file can't be read or is not a regular file, and
    ``ValueError``, without the file's name, if it is damaged."""
    data = read_regular(path)
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load raises many kinds of errors, with messages of many lines
        raise ValueError("torch.load can't read it") from error


def _finite(tensor: Tensor) -> bool:
    """True if all elements are finite. Checked in parts small enough that PyTorch starts no threads: an import that
    starts threads would make a later fork hang."""
    return all(part.isfinite().all() for part in tensor.flatten().split(1 << 14))


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _few(value: object) -> bool:
    return _whole(value) and value < 100


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(**checks: Callable[[object], bool]) -> Callable[[object], bool]:
    """Check of a dictionary that has these keys, and perhaps others."""
    return lambda value: (
        isinstance(value, dict) and all(key in value and check(value[key]) for key, check in checks.items())
    )


def _text(value: object) -> bool:
    return isinstance(value, str) and value != ""


_METADATA = {
    "candidates": lambda value: _list_of(_text)(value) and len(set(value)) == len(value) > 0,
    "model": lambda value: _dict_of(width=_whole, hidden=_whole, blocks=_few)(value) and len(value) == 3,
    "folds": _dict_of(of=lambda value: value == FOLDS, test=_list_of(_whole)),
    "confidence": lambda value: (
        _list_of(_dict_of(**{"from": _number}, problems=_whole, right=_number, slowdown_if_wrong=_number))(value)
        and value[:1] != []
        and value[0]["from"] == 0
    ),
    "scores": _dict_of(problems=_whole, top1=_number, slowdown_geomean=_number),
    "timings": _list_of(_dict_of(device=_text, dtypes=_list_of(_text))),
}


def _check_metadata(metadata: dict) -> None:
    if architecture(metadata["architecture"]) != metadata["architecture"]:
        raise ValueError(f"{metadata['architecture']} is a device, not an architecture")
    if metadata.get("decides", "kernels") not in native.DECIDES:
        raise ValueError(f"its decides can't be {str(metadata['decides'])[:80]}")
    for name, fits in _METADATA.items():
        if not fits(metadata[name]):
            raise ValueError(f"its {name} can't be {str(metadata[name])[:80]}")


_active: dict[str, Weights] = {}  # by name


def deciding(name: str) -> Weights | None:
    """Weights of this name that decide in this process, if they came from a file."""
    if (weights := _active.get(name)) is None:
        return None
    current = native.selector(weights.architecture, weights.decides)
    return weights if current and current["tensors"] is weights.tensors else None


def load(path: str | os.PathLike) -> Weights:
    """Read a weights file.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is not a weights file, or is one for another version of the features.
    """
    version = None
    try:
        content = read(path)
        weights = Weights(content["metadata"], content["tensors"])
        version = weights.metadata["feature_version"]
        if version == native.feature_shape().version:
            weights.check()
            return weights
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{os.fspath(path)} is not a weights file of torch_reformer, or is damaged: {why}") from error
    raise ValueError(
        f"{os.fspath(path)} was trained on version {version} of the features, and this torch_reformer has version "
        f"{native.feature_shape().version}: train it anew with `python -m torch_reformer train --timings DB "
        f"--arch {weights.metadata.get('architecture')} --out {os.fspath(path)}`"
    )


def shipped(name: str) -> Path | None:
    """Path of the package's own weights of this name (``cpu``, ``gfx908``, ``sm_90-epilogues``), or None."""
    path = FOLDER / f"{name}.pt"
    return path if path.exists() else None


_given: dict[str, Path] = {}  # by name: the usable files that TORCH_REFORMER_WEIGHTS named at import


def given() -> dict[str, Path]:
    """Files that TORCH_REFORMER_WEIGHTS names and that could be used, by the names of their weights."""
    return dict(_given)


def find(name: str) -> Path | None:
    """File of the weights of this name that decide: the user's own, or the package's; None if there is neither."""
    return _given.get(name) or shipped(name)


def activate() -> None:
    """Activate the package's selectors, then those that the user names; of several with the same name the last one
    decides.

    A file that can't be used is skipped with a warning, so that the commands that would replace it can still run.
    """
    texts = os.environ.get(VARIABLE, "").split(os.pathsep)
    named = [Path(os.path.expanduser(text)).absolute() for text in texts if text.strip()]
    for path in [*sorted(FOLDER.glob("*.pt")), *named]:
        try:
            weights = load(path)
            weights.activate()
        except (OSError, ValueError) as error:
            who = VARIABLE if path in named else "the package"
            warnings.warn(f"{who} names {path} as weights, which is left out: {error}", stacklevel=2)
        else:
            if path in named:
                _given[weights.name] = path
