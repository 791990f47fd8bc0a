"""Time of a decision on one core: features, network, and the walk over the candidates; and of a remembered decision.

For comparison: PyTorch's time for the same network, the time of its arithmetic at the core's peak, and the static rule.

    python benchmarks/selector.py --csv benchmarks/results/cpu/selector.csv
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from results import Row, write_csv

from torch_reformer import ConvProblem
from torch_reformer.runtime import native
from torch_reformer.selector.model import Reformer
from torch_reformer.tuning import timing

PROBLEMS = 8192  # distinct problems, four times as many as a thread remembers
PART = 512  # problems whose features stay in the second-level cache
REMEMBERED = 64
# MIOpen's TunaNet, the network that a GPU library ships for the same task: "~2 ms an inference as shipped in 2022".
TUNANET_US = 2000.0


def problems(count: int) -> list[ConvProblem]:
    """Typical layers: powers of two and sizes between them, all directions and layouts."""
    random.seed(0)
    found: dict[str, ConvProblem] = {}
    while len(found) < count:
        filter, groups = random.choice([1, 1, 3, 3, 5, 7]), random.choice([1, 1, 1, 1, 2, 32])
        channels = [groups * random.choice([1, 2, 4, 8, 16, 24, 32, 48, 64]) for _ in "ck"]
        size = random.choice([7, 14, 28, 56, 112, random.randint(7, 224)])
        problem = ConvProblem(
            n=random.choice([1, 2, 4, 8, 16, 32, 64]),
            c=channels[0],
            h=size,
            w=size,
            k=channels[1],
            r=filter,
            s=filter,
            pad_h=filter // 2,
            pad_w=filter // 2,
            stride_h=random.choice([1, 1, 2]),
            stride_w=random.choice([1, 1, 2]),
            groups=groups,
            direction=random.choice("FBW"),
            dtype=random.choice(["FP32", "FP32", "BF16"]),
            layout=random.choice(["NCHW", "NHWC"]),
        )
        found[str(problem)] = problem
    return list(found.values())


def untrained(candidates: int) -> dict:
    """Arguments for native.set_selector(): random weights for this package's solvers and for others that do not
    exist."""
    torch.manual_seed(0)
    model = Reformer(native.feature_shape().rows, candidates)
    names = native.solver_names()
    return {
        "feature_version": native.feature_shape().version,
        "width": 32,
        "hidden": 128,
        "blocks": 2,
        "candidates": names + [f"dummy_{index}" for index in range(candidates - len(names))],
        "tensors": model.state_dict(),
    }


def multiply_adds(selector: dict) -> int:
    """Multiply-adds of the linear layers, which are nearly all of the computation. The last block needs all positions
    only for keys and values."""
    width, hidden, tokens = selector["width"], selector["hidden"], native.feature_shape().tokens
    mlp = 2 * width * hidden
    whole = tokens * (3 * width * width + mlp)
    last = tokens * 2 * width * width + width * width + mlp
    return (selector["blocks"] - 1) * whole + last + width * len(selector["candidates"])


def peak_gmacs() -> list[float]:
    """Multiply-adds per nanosecond of one thread, in PyTorch's product of matrices that stay in the second-level
    cache."""
    a, b, c = (torch.randn(256, 256) for _ in range(3))
    times = timing.interleaved({"mm": lambda: torch.mm(a, b, out=c)}, seconds=1, least=50, most=500)["mm"]
    return [256**3 / time * 1e-3 for time in times]


def each(function: Callable, arguments: Iterable) -> None:
    for argument in arguments:
        function(argument)


def measure(selector: dict, repeats: int) -> dict[str, list[float]]:
    """Microseconds per problem, by what was timed."""
    all_problems = [problem.native() for problem in problems(PROBLEMS)]
    fresh = (native.Problem * PROBLEMS)(*all_problems)
    known = (native.Problem * PROBLEMS)(*(all_problems[index % REMEMBERED] for index in range(PROBLEMS)))

    rows, weights = native.features(fresh, None)
    model = Reformer(
        rows=len(selector["tensors"]["embedding"]),
        candidates=len(selector["candidates"]),
        **{name: selector[name] for name in ("width", "hidden", "blocks")},
    ).eval()
    model.load_state_dict(selector["tensors"])
    one = rows[:1].long(), weights[:1]
    parts = [(native.Problem * PART)(*all_problems[at : at + PART]) for at in range(0, PROBLEMS, PART)]
    calls = {
        "features": lambda: each(lambda part: native.features(part, None), parts),
        "features and network": lambda: each(native.logits, parts),
        "decision": lambda: native.decide_all(fresh),
        "remembered decision": lambda: native.decide_all(known),
    }
    with torch.inference_mode():
        times = timing.interleaved(calls, seconds=60, least=20, most=repeats)
        times = {name: [value / PROBLEMS for value in values] for name, values in times.items()}
        pytorch = timing.interleaved({"network": lambda: model(*one)}, seconds=60, least=20, most=20 * repeats)
    native.remove_selector("cpu")
    static = timing.interleaved({"decision": calls["decision"]}, seconds=60, least=20, most=repeats)
    native.set_selector("cpu", **selector)

    both = zip(times["features and network"], times["features"], strict=True)
    times["network"] = [whole - features for whole, features in both]
    times["network by PyTorch"] = pytorch["network"]
    times["decision by the static rule"] = [value / PROBLEMS for value in static["decision"]]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=20, help="of random weights, where the package has none")
    parser.add_argument("--repeats", type=int, default=40, help="at least 20 (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)

    selector, trained = native.selector("cpu"), True
    if selector is None:
        selector, trained = untrained(options.candidates), False
        native.set_selector("cpu", **selector)
    times = measure(selector, options.repeats)
    peak, work = peak_gmacs(), multiply_adds(selector)
    times["multiply-adds at the core's peak"] = [work / gmacs * 1e-3 for gmacs in peak]

    torch_cases = ("network by PyTorch", "multiply-adds at the core's peak")
    table = [
        Row.of("selector", name, "torch" if name in torch_cases else "torch_reformer", "time_us", values)
        for name, values in times.items()
    ]
    if options.csv:
        write_csv(options.csv, table)
    about = {
        "weights": "the package's" if trained else "random: the package has none",
        **{name: selector[name] for name in ("width", "hidden", "blocks")},
        "candidates": len(selector["candidates"]),
        "multiply_adds": work,
        "tunanet_us": TUNANET_US,
    }
    if options.json:
        print(json.dumps({**about, "us": {row.case: [row.p20, row.p50, row.p80] for row in table}}, indent=2))
        return
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{'microseconds, one thread':36}{'p20':>9}{'p50':>9}{'p80':>9}")
    for row in table:
        print(f"{row.case:36}{row.p20:9.3f}{row.p50:9.3f}{row.p80:9.3f}")
    print(f"{'TunaNet, as published':36}{'':9}{TUNANET_US:9.0f}")


if __name__ == "__main__":
    main()
