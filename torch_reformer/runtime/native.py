"""Calls of the native library's functions that take no tensors: problems, candidates, selectors, settings."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import c_api
from .arguments import shown
from .c_api import ISAS, Candidate, Config, Epilogue, GpuSpec, Problem, Selector, check

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
    check(c_api.problem_parse(key.encode(), ctypes.byref(problem)))
    return problem


def problem_str(problem: Problem) -> str:
    return check(c_api.problem_str(ctypes.byref(problem))).decode()


def problem_kind(problem: Problem) -> str:
    return check(c_api.problem_kind(ctypes.byref(problem))).decode()


def device(text: str | None) -> str:
    return check(c_api.device(_text(text))).decode()


def solver_names() -> list[str]:
    return [check(c_api.solver_name(index)).decode() for index in range(c_api.solver_count())]


def decide(problem: Problem, device: str | None = None) -> int:
    """Index of the chosen solver in solver_names()."""
    return check(c_api.decide(ctypes.byref(problem), _text(device)))


def decide_all(problems: Problems, device: str | None = None) -> torch.Tensor:
    """Indices of the solvers chosen for many problems (int32); decide() for each."""
    problems = _array(problems)
    choices = torch.empty(len(problems), dtype=torch.int32)
    pointer = ctypes.cast(choices.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    check(c_api.decide_all(problems, len(problems), _text(device), pointer))
    return choices


def candidates(problem: Problem, device: str | None, code: Sequence[int] = ()) -> tuple[list[Candidate], int]:
    """Candidates that run on the device, in the order of solver_names(), and the solver index of the chosen one; with a
    program's code, those that run the program, and PyTorch's kernel before a separate one."""
    array, count = (Candidate * c_api.solver_count())(), ctypes.c_int32()
    arguments = ctypes.byref(problem), _text(device), _int64s(code), len(code), array, ctypes.byref(count)
    chosen = check(c_api.candidates(*arguments))
    return array[: count.value], chosen


def cost_class(problem: Problem) -> int:
    """Class of the problem in the CPU cost model (csrc/cpu/cost.h)."""
    return check(c_api.cost_class(ctypes.byref(problem)))


def cost_terms(problem: Problem, device: str | None) -> tuple[float, float, float]:
    """Terms of the CPU cost model: flop, bytes and 1, in microseconds of the nominal machine."""
    terms = (ctypes.c_double * 3)()
    check(c_api.cost_terms(ctypes.byref(problem), _text(device), terms))
    return tuple(terms)


class FeatureShape(NamedTuple):
    """Shape of the sequence that the selector reads (csrc/selector/features.h)."""

    version: int
    tokens: int
    terms: int  # per token
    rows: int  # of the embedding matrix


# Kinds of decisions of selectors, and ways to run a program after a convolution, in the order of csrc's numbers.
DECIDES = ("kernels", "epilogues", "products")
WAYS = ("fused", "separate")
EPILOGUES = (None, *WAYS)


def feature_shape(decides: str = "kernels") -> FeatureShape:
    shape = (ctypes.c_int32 * 4)()
    c_api.feature_shape(DECIDES.index(decides), shape)
    return FeatureShape(*shape)


def features(problems: Problems, device: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of problems: rows of the embedding matrix (int32) and their weights (fp32), ``[problem, token,
    term]``."""
    problems = _array(problems)
    shape = len(problems), *feature_shape()[1:3]
    rows, weights = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    row_pointer = ctypes.cast(rows.data_ptr(), ctypes.POINTER(ctypes.c_int32))
    check(c_api.features(problems, len(problems), _text(device), row_pointer, _floats(weights)))
    return rows, weights


def product_features(
    problem: Problem, device: str | None, code: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of a matrix product for a selector of products, with the program of this code: ``[token, term]``."""
    rows, weights, pointers = _terms()
    check(c_api.product_features(ctypes.byref(problem), _text(device), _int64s(code), len(code), *pointers))
    return rows, weights


def _int64s(code: Sequence[int]):
    return (ctypes.c_int64 * len(code))(*code)


def _terms() -> tuple[torch.Tensor, torch.Tensor, tuple]:
    """Memory for the rows and weights of one sequence, and pointers to it."""
    shape = feature_shape()[1:3]
    rows, weights = torch.empty(shape, dtype=torch.int32), torch.empty(shape)
    return rows, weights, (ctypes.cast(rows.data_ptr(), ctypes.POINTER(ctypes.c_int32)), _floats(weights))


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
    decision, (rows, weights, pointers) = Epilogue(), _terms()
    arguments = ctypes.byref(problem), _text(device), _int64s(code), len(code), ctypes.byref(decision)
    check(c_api.epilogue(*arguments, *pointers))
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
    check(c_api.selector_check(ctypes.byref(described.selector)))


def set_selector(arch: str, **description) -> None:
    """Make a selector decide for every device of an architecture, in the whole process.

    Args:
        arch: ``cpu``, or a GPU's architecture (``gfx942``, ``sm_90``).
        feature_version: the version of the features that the selector was trained on.
        width, hidden: multiples of 16.
        blocks: the number of Γ-blocks.
        candidates: names of the solvers that the rows of the head stand for, or ``separate`` and ``fused``.
        tensors: the state_dict() of a ``selector.model.Reformer`` for one device; copied.
        decides: ``kernels`` (default); ``epilogues``: does a program run in the kernel of the convolution before it?
            ``products``: which kernel computes a matrix product and its program?

    Raises:
        ValueError: for anything that does not fit, including another version of the features.
    """
    described = _describe(arch, **description)
    check(c_api.selector_set(ctypes.byref(described.selector)))
    key = arch, description.get("decides", "kernels")
    _selectors[key] = {**description, "candidates": list(description["candidates"])}


def selector(arch: str, decides: str = "kernels") -> dict[str, Any] | None:
    """Arguments of the latest set_selector() for an architecture, to set the selector again; None if there is no
    selector."""
    return _selectors.get((arch, decides))


def remove_selector(arch: str, decides: str = "kernels") -> None:
    """Let the static rule decide for an architecture again."""
    check(c_api.selector_remove(arch.encode(), DECIDES.index(decides)))
    _selectors.pop((arch, decides), None)


def logits(problems: Problems, device: str | None = None, isa: str | None = None) -> torch.Tensor:
    """Logits of the device's selector for its candidates, ``[problem, candidate]``. ``isa`` is the instruction set to
    compute with (``plain``, ``avx2`` or ``avx512``): this machine's best if None."""
    problems = _array(problems)
    result = torch.empty(len(problems), check(c_api.selector_candidates(_text(device))))
    check(c_api.selector_logits(problems, len(problems), _text(device), _isa(isa), _floats(result)))
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
    check(c_api.set_config(ctypes.byref(Config(array, workspace_limit, len(indices), forced, *flags))))


_readers = {}  # keeps alive the callbacks that the library holds


def set_tf32_reader(reader: Callable[[], bool]) -> None:
    """Set the callback by which the library reads PyTorch's tf32 setting (csrc/dispatch/pytorch_settings.h)."""
    _readers["tf32"] = c_api.SettingReader(reader)
    c_api.set_tf32_reader(_readers["tf32"])


def set_deterministic_reader(reader: Callable[[], bool]) -> None:
    """Set the callback by which the library reads PyTorch's setting of deterministic algorithms."""
    _readers["deterministic"] = c_api.SettingReader(reader)
    c_api.set_deterministic_reader(_readers["deterministic"])


def allows_tf32(device: str | None) -> bool:
    """True if PyTorch's current settings allow fp32 convolutions on this device to round to tf32."""
    return bool(check(c_api.allows_tf32(_text(device))))


def cache_counts() -> tuple[int, int]:
    """Hits and misses of the calling thread's decision cache."""
    hits, misses = ctypes.c_int64(), ctypes.c_int64()
    c_api.cache_counts(ctypes.byref(hits), ctypes.byref(misses))
    return hits.value, misses.value


def gpu_specs() -> list[GpuSpec]:
    """Known GPUs (csrc/hip/devices.def); the first of an architecture is its most common one."""
    count = ctypes.c_int32()
    specs = c_api.gpu_specs(ctypes.byref(count))
    return specs[: count.value]


def has_tma(architecture: str) -> bool:
    """True if the architecture can run kernels that use Hopper's bulk copies (TMA) and wgmma."""
    return any(spec.has_tma for spec in gpu_specs() if spec.architecture.decode() == architecture)


def operations() -> dict[str, int]:
    """Number of operands of each operation of a program, in the order of the operations' numbers
    (csrc/program/ops.def)."""
    return {
        c_api.operation_name(number).decode(): c_api.operation_operands(number)
        for number in range(c_api.operation_count())
    }


def intern_plan(code: list[int]) -> int:
    """Number by which private operators take this plan, valid until release_plan(number). csrc/plan/plan.h describes
    the code."""
    numbers = array.array("q", code)
    return check(c_api.intern_plan((ctypes.c_int64 * len(code)).from_buffer(numbers), len(code)))


def interned_counts() -> tuple[int, int]:
    """Numbers of programs and plans that the library holds now."""
    programs, plans = ctypes.c_int64(), ctypes.c_int64()
    c_api.interned_counts(ctypes.byref(programs), ctypes.byref(plans))
    return programs.value, plans.value
