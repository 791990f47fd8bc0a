"""Explains the choice of a kernel for a problem: every candidate's estimate, or the reason why it does not apply."""

from __future__ import annotations

import argparse
import itertools
import math

from ..problem import TORCH_DTYPES, ConvProblem
from ..runtime import config, native
from ..selector import epilogues, weights_file
from ..selector.candidates import Candidate, candidates, check_problem
from ..selector.dataset import architecture
from ..selector.problems import parse_tasks

_DIRECTION_WORDS = {"F": "forward", "B": "gradient of the input", "W": "gradient of the weight"}


def amount(bytes: int) -> str:
    """Bytes as text: 0 B, 12.3 KiB, 4.0 MiB."""
    if bytes < 1024:
        return f"{bytes} B"
    value, unit = bytes / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if value >= 1024:
            value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


_FACTORS = {"F": "the second transposed", "B": "neither transposed", "W": "the first transposed"}


def in_words(problem: ConvProblem) -> str:
    """Description of a problem for people."""
    p = problem
    dtype = str(TORCH_DTYPES[p.dtype]).removeprefix("torch.") if p.dtype in TORCH_DTYPES else p.dtype.lower()
    if p.is_product:
        rows, columns, depth = str(p).split("-")[1:4]
        return (
            f"matrix product of {rows}x{depth} and {depth}x{columns}, {dtype}, {_FACTORS[p.direction]} in memory; "
            f"{p.flops / 1e6:,.1f} MFLOP"
        )
    geometry = [f"stride {p.stride_h}x{p.stride_w}", f"padding {p.pad_h}x{p.pad_w}"]
    if (p.dilation_h, p.dilation_w) != (1, 1):
        geometry.append(f"dilation {p.dilation_h}x{p.dilation_w}")
    if p.groups > 1:
        geometry.append(f"{p.groups} groups")
    if p.bias:
        geometry.append("bias")
    input, filter, output = ("x".join(map(str, size)) for size in (p.input_size, p.weight_size, p.output_size))
    return (
        f"{_DIRECTION_WORDS[p.direction]} of a {p.kind} convolution, {dtype} in {p.layout}\n"
        f"input {input}, filter {filter}, output {output}\n"
        f"{', '.join(geometry)}; {p.flops / 1e6:,.1f} MFLOP"
    )


_BY_TABLE = "by a table, as there are no weights for matrix products"


def _reason(offered: list[Candidate], by_table: bool) -> str:
    applicable = [candidate for candidate in offered if candidate.reason is None]
    chosen = next(candidate for candidate in offered if candidate.chosen)
    forced = config.settings().force
    if forced == chosen.name:
        return "the configuration forces it"
    if len(applicable) == 1:
        why = "nothing else applies"
    elif by_table:
        why = _BY_TABLE
    elif chosen.probability is not None:
        why = f"the selector's most probable of the {len(applicable)} that apply"
    else:
        why = f"it has the least estimate of the {len(applicable)} that apply"
    return f"{why}; {forced}, which the configuration forces, does not apply" if forced else why


def explain(problem: ConvProblem, device: str | None = None, epilogue: str = "") -> str:
    """Describe a problem, its candidates and the choice among them.

    The text has for each candidate the estimate and workspace, or the reason why it does not apply, and its probability
    if a selector decides.

    Args:
        device: as for :func:`candidates`; :class:`torch_reformer.record_problems` returns it with each problem.
        epilogue: a program after the convolution, such as ``bias.relu`` (selector/epilogues.py lists the steps): the
            text then also says if it runs in the convolution's kernel.
    """
    check_problem(problem)
    device = native.device(device)
    lines = [f"problem  {problem}"]
    lines += [f"         {line}" for line in in_words(problem).splitlines()]
    lines += [f"device   {device}", ""]
    together = epilogue if problem.is_product else ""  # candidates run the program, too
    lines += _candidate_lines(problem, device, together)
    return "\n".join([*lines, _epilogue_line(problem, device, epilogue)] if epilogue else lines)


def _epilogue_line(problem: ConvProblem, device: str, epilogue: str) -> str:
    decision, names = epilogues.choice(problem, device, epilogue), native.solver_names()
    where = (
        f"in {names[decision.fused]}"
        if decision.is_fused
        else f"in a kernel of its own, after {names[decision.separate]}"
    )
    if decision.fused < 0:
        why = "no kernel that may be chosen runs it"
    elif config.settings().epilogues:
        why = "the configuration says so"
    elif problem.is_product and math.isnan(decision.probability):
        why = _BY_TABLE
    elif decision.separate == decision.fused and math.isnan(decision.probability):
        why = "the chosen kernel runs it itself, and no weights for epilogues say otherwise"
    elif math.isnan(decision.probability):
        why = f"by the estimate for {names[decision.fused]}, as no weights for epilogues say more"
    else:
        why = f"that this is faster is {max(decision.probability, 1 - decision.probability):.0%} probable"
    return f"epilogue {epilogue}: {where}; {why}"


def _is_ours(name: str) -> bool:
    return name.islower() and name != "fft"


def _family(candidate: Candidate) -> tuple[str, str | None]:
    """Key by which candidates are grouped: sizes of one algorithm, or solvers of MIOpen, that are refused for the same
    reason."""
    return candidate.name.rpartition("_")[0] if _is_ours(candidate.name) else "MIOpen", candidate.reason


def _joined(names: list[str]) -> str:
    """Names of one family in short, such as gpu_gemm_128x64, 64x64."""
    return ", ".join([names[0], *(name.rpartition("_")[2] if _is_ours(name) else name for name in names[1:])])


def _candidate_lines(problem: ConvProblem, device: str, epilogue: str) -> list[str]:
    offered = candidates(problem, device, epilogue)
    chosen = next(candidate for candidate in offered if candidate.chosen)
    width = max(len(candidate.name) for candidate in offered)
    lines = []
    selected = any(candidate.probability is not None for candidate in offered)
    for (_, refusal), family in itertools.groupby(offered, _family):
        if refusal is not None:
            lines.append(f"   {_joined([candidate.name for candidate in family]):{width}}  no: {refusal}")
            continue
        for candidate in family:
            mark = "->" if candidate.chosen else "  "
            estimate = f"{candidate.estimate_us:.1f} us" if candidate.estimate_us else ""
            details = f"{estimate:>13}  {amount(candidate.workspace_bytes):>10} workspace"
            if selected:
                unknown = candidate.probability is None
                details = f"{'unknown' if unknown else format(candidate.probability, '.1%'):>7}  {details}"
            condition = f"  if {candidate.condition}" if candidate.condition else ""
            lines.append(f"{mark} {candidate.name:{width}}  {details}{condition}")
    by_table = bool(epilogue) and native.selector(architecture(device), "products") is None
    reason = _reason(offered, by_table)
    lines += ["", f"choice   {chosen.name}: {reason}"]
    weights = problem.is_product and weights_file.deciding(weights_file.name_of(architecture(device), "products"))
    weights = weights or weights_file.deciding(architecture(device))
    if weights and chosen.probability is not None and reason.startswith("the selector's"):
        notes = weights.experience(chosen.probability, problem, device), weights.margin()
        lines += [f"         {note}" for note in notes if note]
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "problem",
        help="a find-db key, such as 64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F, or a MIOpenDriver command "
        "line in quotes; a key may be followed by + and a program that runs after it, such as +bias.relu",
    )
    parser.add_argument(
        "--device",
        metavar="D",
        help="cpu-ISA-THREADSt (such as cpu-avx512-2t), gfxNNN or sm_NN (default: this machine's CPU)",
    )


def run(options: argparse.Namespace) -> int:
    tasks = parse_tasks(options.problem)
    print("\n\n".join(explain(problem, options.device, epilogue) for problem, epilogue in tasks))
    return 0
