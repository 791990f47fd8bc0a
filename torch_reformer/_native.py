"""The native library: loads it, and reads through ctypes what does not involve tensors (problems, candidates, config).

Importing this module registers the operators' schemas and kernels with PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

PATH = Path(__file__).parent / "_C.abi3.so"
if not PATH.exists():
    raise ImportError(
        f"torch_reformer's native library is missing ({PATH.name}): build it with `make build` or "
        "`pip install --no-build-isolation -e .`, and do not import from a source tree that hides an installed package"
    )
torch.ops.load_library(PATH)
_lib = ctypes.CDLL(str(PATH))


class Problem(ctypes.Structure):
    """Mirrors reformer::ConvProblem (csrc/conv_problem.h), member by member."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in "n c h w k r s".split()),
        *((f"{name}_{axis}", ctypes.c_int32) for name in ("pad", "stride", "dilation") for axis in "hw"),
        ("groups", ctypes.c_int32),
        *((name, ctypes.c_uint8) for name in ("direction", "dtype", "layout", "bias")),
    ]


class Candidate(ctypes.Structure):
    """Mirrors ReformerCandidate (csrc/c_api.h)."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("refusal", ctypes.c_char_p),
        ("estimate_us", ctypes.c_double),
        ("workspace_bytes", ctypes.c_int64),
    ]


class Config(ctypes.Structure):
    """Mirrors ReformerConfig (csrc/c_api.h)."""

    _fields_ = [
        ("forbidden", ctypes.c_uint64),
        ("workspace_limit", ctypes.c_int64),
        ("forced", ctypes.c_int32),
        ("deterministic_only", ctypes.c_int32),
        ("allow_reduced_accuracy", ctypes.c_int32),
    ]


def _declare(name: str, result: type | None, *arguments: type):
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, arguments
    return function


_error = _declare("reformer_error", ctypes.c_char_p)
_problem_parse = _declare("reformer_problem_parse", ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(Problem))
_problem_str = _declare("reformer_problem_str", ctypes.c_char_p, ctypes.POINTER(Problem))
_problem_kind = _declare("reformer_problem_kind", ctypes.c_char_p, ctypes.POINTER(Problem))
_device = _declare("reformer_device", ctypes.c_char_p, ctypes.c_char_p)
_solver_count = _declare("reformer_solver_count", ctypes.c_int32)
_solver_name = _declare("reformer_solver_name", ctypes.c_char_p, ctypes.c_int32)
_decide = _declare("reformer_decide", ctypes.c_int32, ctypes.POINTER(Problem), ctypes.c_char_p)
_candidates = _declare(
    "reformer_candidates", ctypes.c_int32, ctypes.POINTER(Problem), ctypes.c_char_p, ctypes.POINTER(Candidate)
)
_cost_class = _declare("reformer_cost_class", ctypes.c_int32, ctypes.POINTER(Problem))
_cost_terms = _declare(
    "reformer_cost_terms", ctypes.c_int32, ctypes.POINTER(Problem), ctypes.c_char_p, ctypes.POINTER(ctypes.c_double)
)
_feature_shape = _declare("reformer_feature_shape", None, ctypes.POINTER(ctypes.c_int32))
_features = _declare(
    "reformer_features",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.POINTER(ctypes.c_float),
)
_set_config = _declare("reformer_set_config", ctypes.c_int32, ctypes.POINTER(Config))
_cache_counts = _declare("reformer_cache_counts", None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))


def _check(result):
    if result is None or (isinstance(result, int) and result < 0):
        raise ValueError(_error().decode())
    return result


def problem_parse(key: str) -> Problem:
    problem = Problem()
    _check(_problem_parse(key.encode(), ctypes.byref(problem)))
    return problem


def problem_str(problem: Problem) -> str:
    return _check(_problem_str(ctypes.byref(problem))).decode()


def problem_kind(problem: Problem) -> str:
    return _problem_kind(ctypes.byref(problem)).decode()


def device(text: str | None) -> str:
    return _check(_device(text.encode() if text else None)).decode()


def solver_names() -> list[str]:
    return [_solver_name(index).decode() for index in range(_solver_count())]


def decide(problem: Problem, device: str | None = None) -> int:
    """The index of the chosen solver in solver_names()."""
    return _check(_decide(ctypes.byref(problem), device.encode() if device else None))


def candidates(problem: Problem, device: str | None) -> tuple[list[Candidate], int]:
    """All candidates in the order of solver_names(), and the index of the chosen one."""
    array = (Candidate * _solver_count())()
    chosen = _check(_candidates(ctypes.byref(problem), device.encode() if device else None, array))
    return list(array), chosen


def cost_class(problem: Problem) -> int:
    """The CPU cost model's class of the problem (csrc/cpu/cost.h)."""
    return _cost_class(ctypes.byref(problem))


def cost_terms(problem: Problem, device: str | None) -> tuple[float, float, float]:
    """The terms of the CPU cost model: flop, bytes and 1, in microseconds of the nominal machine."""
    terms = (ctypes.c_double * 3)()
    _check(_cost_terms(ctypes.byref(problem), device.encode() if device else None, terms))
    return tuple(terms)


class FeatureShape(NamedTuple):
    """Of the sequence that the selector reads (csrc/cpu/selector/features.h)."""

    version: int
    tokens: int
    terms: int  # of each token
    rows: int  # of the embedding matrix


def feature_shape() -> FeatureShape:
    shape = (ctypes.c_int32 * 4)()
    _feature_shape(shape)
    return FeatureShape(*shape)


def features(problems: Iterable[Problem], device: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the embedding matrix (int32) and their weights (fp32), ``[problem, token, term]``."""
    problems = list(problems)
    shape = len(problems), *feature_shape()[1:3]
    rows, weights = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    name = device.encode() if device else None
    for problem, row, weight in zip(problems, rows, weights, strict=True):
        row_pointer = ctypes.cast(row.data_ptr(), ctypes.POINTER(ctypes.c_int32))
        weight_pointer = ctypes.cast(weight.data_ptr(), ctypes.POINTER(ctypes.c_float))
        _check(_features(ctypes.byref(problem), name, row_pointer, weight_pointer))
    return rows, weights


def set_config(
    forbidden: int,
    forced: int,
    workspace_limit: int,
    deterministic_only: bool,
    allow_reduced_accuracy: bool,
) -> None:
    values = Config(forbidden, workspace_limit, forced, deterministic_only, allow_reduced_accuracy)
    _check(_set_config(ctypes.byref(values)))


def cache_counts() -> tuple[int, int]:
    """Hits and misses of the calling thread's decision cache."""
    hits, misses = ctypes.c_int64(), ctypes.c_int64()
    _cache_counts(ctypes.byref(hits), ctypes.byref(misses))
    return hits.value, misses.value
