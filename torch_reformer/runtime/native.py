"""Native library: loads it, and calls through ctypes its functions that take no tensors (problems, candidates,
configuration).

Importing this module registers the operators' schemas and kernels with PyTorch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .arguments import shown

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
_decide_all = _declare(
    "reformer_decide_all",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int32),
)
_candidates = _declare(
    "reformer_candidates",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_char_p,
    ctypes.POINTER(Candidate),
    ctypes.POINTER(ctypes.c_int32),
)
_cost_class = _declare("reformer_cost_class", ctypes.c_int32, ctypes.POINTER(Problem))
_cost_terms = _declare(
    "reformer_cost_terms", ctypes.c_int32, ctypes.POINTER(Problem), ctypes.c_char_p, ctypes.POINTER(ctypes.c_double)
)
_epilogue = _declare(
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
_feature_shape = _declare("reformer_feature_shape", None, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32))
_features = _declare(
    "reformer_features",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int32),
    ctypes.POINTER(ctypes.c_float),
)
_selector_check = _declare("reformer_selector_check", ctypes.c_int32, ctypes.POINTER(Selector))
_selector_set = _declare("reformer_selector_set", ctypes.c_int32, ctypes.POINTER(Selector))
_selector_remove = _declare("reformer_selector_remove", ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32)
_selector_candidates = _declare("reformer_selector_candidates", ctypes.c_int32, ctypes.c_char_p)
_selector_logits = _declare(
    "reformer_selector_logits",
    ctypes.c_int32,
    ctypes.POINTER(Problem),
    ctypes.c_int64,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_float),
)
_set_config = _declare("reformer_set_config", ctypes.c_int32, ctypes.POINTER(Config))
_SettingReader = ctypes.CFUNCTYPE(ctypes.c_int32)
_set_tf32_reader = _declare("reformer_set_tf32_reader", None, _SettingReader)
_set_deterministic_reader = _declare("reformer_set_deterministic_reader", None, _SettingReader)
_allows_tf32 = _declare("reformer_allows_tf32", ctypes.c_int32, ctypes.c_char_p)
_gpu_specs = _declare("reformer_gpu_specs", ctypes.POINTER(GpuSpec), ctypes.POINTER(ctypes.c_int32))
_operation_count = _declare("reformer_operation_count", ctypes.c_int32)
_operation_name = _declare("reformer_operation_name", ctypes.c_char_p, ctypes.c_int32)
_operation_operands = _declare("reformer_operation_operands", ctypes.c_int32, ctypes.c_int32)
_intern_plan = _declare("reformer_intern_plan", ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
release_plan = _declare("reformer_release_plan", None, ctypes.c_int64)
_interned_counts = _declare(
    "reformer_interned_counts", None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64)
)
_cache_counts = _declare("reformer_cache_counts", None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))


def _check(result):
    if result is None or (isinstance(result, int) and result < 0):
        raise ValueError(_error().decode())
    return result


Problems = ctypes.Array | Iterable[Problem]


def _array(problems: Problems) -> ctypes.Array:
    if isinstance(problems, ctypes.Array):
        return problems
    problems = list(problems)
    return (Problem * len(problems))(*problems)


def _text(device: str | None) -> bytes | None:
    if device is not None and not isinstance(device, str):
        raise TypeError(f"a device must be a string such as cpu-avx512-2t or sm_90, got {shown(device)}")
    return device.encode() if device else None


def _floats(tensor: torch.Tensor):
    return ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_float))


def problem_parse(key: str) -> Problem:
    problem = Problem()
    _check(_problem_parse(key.encode(), ctypes.byref(problem)))
    return problem


def problem_str(problem: Problem) -> str:
    return _check(_problem_str(ctypes.byref(problem))).decode()


def problem_kind(problem: Problem) -> str:
    return _check(_problem_kind(ctypes.byref(problem))).decode()


def device(text: str | None) -> str:
    return _check(_device(_text(text))).decode()


def solver_names() -> list[str]:
    return [_check(_solver_name(index)).decode() for index in range(_solver_count())]


def decide(problem: Problem, device: str | None = None) -> int:
    """Index of the chosen solver in solver_names()."""
    return _check(_decide(ctypes.byref(problem), _text(device)))


def decide_all(problems: Problems, device: str | None = None) -> torch.Tensor:
    """Indices of the solvers chosen for many problems (int32); decide() for each."""
    problems = _array(problems)
    choices = torch.empty(len(problems), dtype=torch.int32)
    pointer = ctypes.cast(choices.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    _check(_decide_all(problems, len(problems), _text(device), pointer))
    return choices


def candidates(problem: Problem, device: str | None) -> tuple[list[Candidate], int]:
    """Candidates that run on the device, in the order of solver_names(), and the solver index of the chosen one."""
    array, count = (Candidate * _solver_count())(), ctypes.c_int32()
    chosen = _check(_candidates(ctypes.byref(problem), _text(device), array, ctypes.byref(count)))
    return array[: count.value], chosen


def cost_class(problem: Problem) -> int:
    """Class of the problem in the CPU cost model (csrc/cpu/cost.h)."""
    return _check(_cost_class(ctypes.byref(problem)))


def cost_terms(problem: Problem, device: str | None) -> tuple[float, float, float]:
    """Terms of the CPU cost model: flop, bytes and 1, in microseconds of the nominal machine."""
    terms = (ctypes.c_double * 3)()
    _check(_cost_terms(ctypes.byref(problem), _text(device), terms))
    return tuple(terms)


class FeatureShape(NamedTuple):
    """Shape of the sequence that the selector reads (csrc/selector/features.h)."""

    version: int
    tokens: int
    terms: int  # per token
    rows: int  # of the embedding matrix


# Kinds of decisions of selectors, and ways to run a program after a convolution, in the order of csrc's numbers.
DECIDES = ("kernels", "epilogues")
WAYS = ("fused", "separate")
EPILOGUES = (None, *WAYS)


def feature_shape(decides: str = "kernels") -> FeatureShape:
    shape = (ctypes.c_int32 * 4)()
    _feature_shape(DECIDES.index(decides), shape)
    return FeatureShape(*shape)


def features(problems: Problems, device: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of problems: rows of the embedding matrix (int32) and their weights (fp32), ``[problem, token,
    term]``."""
    problems = _array(problems)
    shape = len(problems), *feature_shape()[1:3]
    rows, weights = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    row_pointer = ctypes.cast(rows.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    _check(_features(problems, len(problems), _text(device), row_pointer, _floats(weights)))
    return rows, weights


def epilogue(
    problem: Problem, device: str | None, code: Sequence[int]
) -> tuple[Epilogue, tuple[torch.Tensor, torch.Tensor] | None]:
    """Decide how a program runs after a problem's convolution.

    Args:
        code: the program's code.

    Returns:
        the decision, and the features for a selector of epilogues as from features() (``[token, term]``); None in their
        place if there is no choice.
    """
    shape = feature_shape()[1:3]
    decision, rows, weights = Epilogue(), torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    numbers, row_pointer = (ctypes.c_int64 * len(code))(*code), rows.data_ptr()
    row_pointer = ctypes.cast(row_pointer, ctypes.POINTER(ctypes.c_int32))
    arguments = ctypes.byref(problem), _text(device), numbers, len(code), ctypes.byref(decision)
    _check(_epilogue(*arguments, row_pointer, _floats(weights)))
    return decision, (rows, weights) if decision.has_features else None


def _isa(name: str | None) -> int:
    return -1 if name is None else ISAS.index(name)


def _block_shapes(width: int, hidden: int, blocks: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of selector.model.GammaBlock, in the order of csrc/selector/packing.h."""
    shapes: dict[str, tuple[int, ...]] = {}
    for block in (f"blocks.{index}." for index in range(blocks)):
        shapes[block + "taps"] = 3, width
        shapes[block + "qkv.weight"], shapes[block + "qkv.bias"] = (3 * width, width), (3 * width,)
        shapes[block + "up.weight"], shapes[block + "up.bias"] = (hidden, width), (hidden,)
        shapes[block + "down.weight"], shapes[block + "down.bias"] = (width, hidden), (width,)
    return shapes


def _dense(what: str, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Tensors in the order of `shapes`, checked and in the layout that C++ reads."""
    if different := set(shapes) ^ set(tensors):
        raise ValueError(f"the tensors do not make a {what}: {', '.join(sorted(different))} missing or too many")
    for name, shape in shapes.items():
        if (actual := tuple(tensors[name].shape)) != shape:
            raise ValueError(f"the {what.split()[0]}'s {name} must have shape {shape}, got {actual}")
    return [tensors[name].detach().to("cpu", torch.float32).contiguous() for name in shapes]


def _pointers(tensors: list[torch.Tensor]):
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


_selectors: dict[tuple[str, str], dict[str, Any]] = {}  # by architecture and kind of decision


class _Described(NamedTuple):
    """Selector with all that it points to."""

    selector: Selector
    tensors: list[torch.Tensor]


def _describe(
    arch: str,
    *,
    feature_version: int,
    width: int,
    hidden: int,
    blocks: int,
    candidates: list[str],
    tensors: Mapping[str, torch.Tensor],
    decides: str = "kernels",
) -> _Described:
    rows = len(tensors.get("embedding", ()))
    shapes = {
        **{"embedding": (rows, width), "device": (1, width)},
        **_block_shapes(width, hidden, blocks),
        **{"head.weight": (len(candidates), width), "head.bias": (len(candidates),)},
    }
    dense = _dense(f"selector of {blocks} blocks", shapes, tensors)
    names = (ctypes.c_char_p * len(candidates))(*(name.encode() for name in candidates))
    pointers = _pointers(dense)
    sizes = rows, width, hidden, blocks, len(candidates)
    selector = Selector(arch.encode(), DECIDES.index(decides), feature_version, *sizes, names, pointers)
    return _Described(selector, dense)


def check_selector(arch: str, **description) -> None:
    """Raise the error that set_selector() would raise for the same arguments."""
    described = _describe(arch, **description)
    _check(_selector_check(ctypes.byref(described.selector)))


def set_selector(arch: str, **description) -> None:
    """Make a selector decide for every device of an architecture, in the whole process.

    Args:
        arch: ``cpu``, or a GPU's architecture (``gfx942``, ``sm_90``).
        feature_version: the version of the features that the selector was trained on.
        width, hidden: multiples of 16.
        blocks: the number of Γ-blocks.
        candidates: names of the solvers that the rows of the head stand for, or ``separate`` and ``fused``.
        tensors: the state_dict() of a ``selector.model.Reformer`` for one device; copied.
        decides: ``kernels`` (default), or ``epilogues``: does a program run in the kernel of the convolution before it?

    Raises:
        ValueError: for anything that does not fit, including another version of the features.
    """
    described = _describe(arch, **description)
    _check(_selector_set(ctypes.byref(described.selector)))
    key = arch, description.get("decides", "kernels")
    _selectors[key] = {**description, "candidates": list(description["candidates"])}


def selector(arch: str, decides: str = "kernels") -> dict[str, Any] | None:
    """Arguments of the latest set_selector() for an architecture, to set the selector again; None if there is no
    selector."""
    return _selectors.get((arch, decides))


def remove_selector(arch: str, decides: str = "kernels") -> None:
    """Let the static rule decide for an architecture again."""
    _check(_selector_remove(arch.encode(), DECIDES.index(decides)))
    _selectors.pop((arch, decides), None)


def logits(problems: Problems, device: str | None = None, isa: str | None = None) -> torch.Tensor:
    """Logits of the device's selector for its candidates, ``[problem, candidate]``. ``isa`` is the instruction set to
    compute with (``plain``, ``avx2`` or ``avx512``): this machine's best if None."""
    problems = _array(problems)
    result = torch.empty(len(problems), _check(_selector_candidates(_text(device))))
    _check(_selector_logits(problems, len(problems), _text(device), _isa(isa), _floats(result)))
    return result


def set_config(
    forbidden: Iterable[int],
    forced: int,
    workspace_limit: int,
    deterministic_only: bool,
    allow_reduced_accuracy: bool,
    epilogues: str | None,
) -> None:
    """Set the configuration of csrc/dispatch/config.h, with solvers given by their indices in solver_names()."""
    indices = list(forbidden)
    array = (ctypes.c_int32 * len(indices))(*indices)
    flags = deterministic_only, allow_reduced_accuracy, EPILOGUES.index(epilogues)
    _check(_set_config(ctypes.byref(Config(array, workspace_limit, len(indices), forced, *flags))))


_readers = {}  # keeps alive the callbacks that the library holds


def set_tf32_reader(reader: Callable[[], bool]) -> None:
    """Set the callback by which the library reads PyTorch's tf32 setting (csrc/dispatch/pytorch_settings.h)."""
    _readers["tf32"] = _SettingReader(reader)
    _set_tf32_reader(_readers["tf32"])


def set_deterministic_reader(reader: Callable[[], bool]) -> None:
    """Set the callback by which the library reads PyTorch's setting of deterministic algorithms."""
    _readers["deterministic"] = _SettingReader(reader)
    _set_deterministic_reader(_readers["deterministic"])


def allows_tf32(device: str | None) -> bool:
    """True if PyTorch's current settings allow fp32 convolutions on this device to round to tf32."""
    return bool(_check(_allows_tf32(_text(device))))


def cache_counts() -> tuple[int, int]:
    """Hits and misses of the calling thread's decision cache."""
    hits, misses = ctypes.c_int64(), ctypes.c_int64()
    _cache_counts(ctypes.byref(hits), ctypes.byref(misses))
    return hits.value, misses.value


def gpu_specs() -> list[GpuSpec]:
    """Known GPUs (csrc/hip/devices.def); the first of an architecture is its most common one."""
    count = ctypes.c_int32()
    specs = _gpu_specs(ctypes.byref(count))
    return specs[: count.value]


def has_tma(architecture: str) -> bool:
    """True if the architecture can run kernels that use Hopper's bulk copies (TMA) and wgmma."""
    return any(spec.has_tma for spec in gpu_specs() if spec.architecture.decode() == architecture)


def operations() -> dict[str, int]:
    """Number of operands of each operation of a program, in the order of the operations' numbers
    (csrc/program/ops.def)."""
    return {_operation_name(number).decode(): _operation_operands(number) for number in range(_operation_count())}


def intern_plan(code: list[int]) -> int:
    """Number by which private operators take this plan, valid until release_plan(number). csrc/plan/plan.h describes
    the code."""
    return _check(_intern_plan((ctypes.c_int64 * len(code))(*code), len(code)))


def interned_counts() -> tuple[int, int]:
    """Numbers of programs and plans that the library holds now."""
    programs, plans = ctypes.c_int64(), ctypes.c_int64()
    _interned_counts(ctypes.byref(programs), ctypes.byref(plans))
    return programs.value, plans.value
