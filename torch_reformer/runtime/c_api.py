"""The native library's C API (csrc/c_api.h) in ctypes: its structures and functions, which take no tensors.

Importing this module registers the operators' schemas and kernels with PyTorch.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

PATH = Path(__file__).parent.parent / "_C.abi3.so"
if not PATH.exists():
    raise ImportError(
        f"torch_reformer's native library is missing ({PATH.name}): build it with `make build` or "
        "`pip install --no-build-isolation -e .`, and do not import from a source tree that hides an installed package"
    )
torch.ops.load_library(PATH)
_lib = ctypes.CDLL(str(PATH))

ISAS = ("plain", "avx2", "avx512")  # reformer::Isa (csrc/device.h)


class Problem(ctypes.Structure):
    """Mirror of reformer::ConvProblem (csrc/conv/problem.h), member by member."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in "n c h w k r s".split()),
        *((f"{name}_{axis}", ctypes.c_int32) for name in ("pad", "stride", "dilation") for axis in "hw"),
        ("groups", ctypes.c_int32),
        *((name, ctypes.c_uint8) for name in ("direction", "dtype", "layout", "bias")),
    ]


class Candidate(ctypes.Structure):
    """Mirror of ReformerCandidate (csrc/c_api.h)."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("reason", ctypes.c_char_p),
        ("estimate_us", ctypes.c_double),
        ("workspace_bytes", ctypes.c_int64),
        ("solver", ctypes.c_int32),
        ("probability", ctypes.c_double),
        ("condition", ctypes.c_char_p),
    ]


class Selector(ctypes.Structure):
    """Mirror of ReformerSelector (csrc/c_api.h)."""

    _fields_ = [
        ("arch", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in "decides feature_version rows width hidden blocks candidates".split()),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("tensors", ctypes.POINTER(ctypes.c_void_p)),
    ]


class Config(ctypes.Structure):
    """Mirror of ReformerConfig (csrc/c_api.h)."""

    _fields_ = [
        ("forbidden", ctypes.POINTER(ctypes.c_int32)),
        ("workspace_limit", ctypes.c_int64),
        ("forbidden_count", ctypes.c_int32),
        ("forced", ctypes.c_int32),
        ("deterministic_only", ctypes.c_int32),
        ("allow_reduced_accuracy", ctypes.c_int32),
        ("epilogues", ctypes.c_int32),
    ]


class Epilogue(ctypes.Structure):
    """Mirror of ReformerEpilogue (csrc/c_api.h)."""

    _fields_ = [
        ("separate", ctypes.c_int32),
        ("fused", ctypes.c_int32),
        ("is_fused", ctypes.c_int32),
        ("has_features", ctypes.c_int32),
        ("probability", ctypes.c_double),
    ]


class GpuSpec(ctypes.Structure):
    """Mirror of reformer::GpuSpec (csrc/hip/devices.h)."""

    _fields_ = [
        ("architecture", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_char_p),
        ("units", ctypes.c_int32),
        ("shared_kib", ctypes.c_int32),
        ("has_tma", ctypes.c_bool),
        ("gb_per_s", ctypes.c_double),
        ("tflops", ctypes.c_double),
        ("tf32_tflops", ctypes.c_double),
        ("fp32_tflops", ctypes.c_double),
        ("fp64_tflops", ctypes.c_double),
    ]


def declare(name: str, result: type | None, *arguments: type):
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, arguments
    return function


error = declare("reformer_error", ctypes.c_char_p)
problem_parse = declare("reformer_problem_parse", ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(Problem))
problem_str = declare("reformer_problem_str", ctypes.c_char_p, ctypes.POINTER(Problem))
problem_kind = declare("reformer_problem_kind", ctypes.c_char_p, ctypes.POINTER(Problem))
device = declare("reformer_device", ctypes.c_char_p, ctypes.c_char_p)
solver_count = declare("reformer_solver_count", ctypes.c_int32)
solver_name = declare("reformer_solver_name", ctypes.c_char_p, ctypes.c_int32)
decide = declare("reformer_decide", ctypes.c_int32, ctypes.POINTER(Problem), ctypes.c_char_p)
decide_all = declare(
    "reformer_decide_all",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int32),
)
candidates = declare(
    "reformer_candidates",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(Candidate),
    ctypes.POINTER(ctypes.c_int32),
)
cost_class = declare("reformer_cost_class", ctypes.c_int32, ctypes.POINTER(Problem))
cost_terms = declare(
    "reformer_cost_terms", ctypes.c_int32, ctypes.POINTER(Problem), ctypes.c_char_p, ctypes.POINTER(ctypes.c_double)
)
epilogue = declare(
    "reformer_epilogue",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(Epilogue),
    ctypes.POINTER(ctypes.c_int32),
    ctypes.POINTER(ctypes.c_float),
)
feature_shape = declare("reformer_feature_shape", None, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32))
features = declare(
    "reformer_features",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.POINTER(ctypes.c_float),
)
product_features = declare(
    "reformer_product_features",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.POINTER(ctypes.c_float),
)
selector_check = declare("reformer_selector_check", ctypes.c_int32, ctypes.POINTER(Selector))
selector_set = declare("reformer_selector_set", ctypes.c_int32, ctypes.POINTER(Selector))
selector_remove = declare("reformer_selector_remove", ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32)
selector_candidates = declare("reformer_selector_candidates", ctypes.c_int32, ctypes.c_char_p)
selector_logits = declare(
    "reformer_selector_logits",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_float),
)
set_config = declare("reformer_set_config", ctypes.c_int32, ctypes.POINTER(Config))
SettingReader = ctypes.CFUNCTYPE(ctypes.c_int32)
set_tf32_reader = declare("reformer_set_tf32_reader", None, SettingReader)
set_deterministic_reader = declare("reformer_set_deterministic_reader", None, SettingReader)
allows_tf32 = declare("reformer_allows_tf32", ctypes.c_int32, ctypes.c_char_p)
gpu_specs = declare("reformer_gpu_specs", ctypes.POINTER(GpuSpec), ctypes.POINTER(ctypes.c_int32))
operation_count = declare("reformer_operation_count", ctypes.c_int32)
operation_name = declare("reformer_operation_name", ctypes.c_char_p, ctypes.c_int32)
operation_operands = declare("reformer_operation_operands", ctypes.c_int32, ctypes.c_int32)
intern_plan = declare("reformer_intern_plan", ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
release_plan = declare("reformer_release_plan", None, ctypes.c_int64)
interned_counts = declare(
    "reformer_interned_counts", None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64)
)
cache_counts = declare("reformer_cache_counts", None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))


def check(result):
    if result is None or (isinstance(result, int) and result < 0):
        raise ValueError(error().decode())
    return result
