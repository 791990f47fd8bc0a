"""Draws lists of matrix products, with the programs in their kernels, for `python -m torch_reformer collect`: those of
models' plans, which are made as for a GPU that need not be present, products of sizes that transformers and
convolutional networks have, and those that 1x1 convolutions of other lists compute, a row for each pixel. The list is
shuffled, so that its first part is a sample of it.

    python benchmarks/draw_products.py --models bert_large:16x512,timm/convnext_tiny:64 --drawn 150 --out products.txt
    python -m torch_reformer collect --device cuda --problems products.txt --minutes 5 --out products.fdb.txt
    python -m torch_reformer train --arch sm_90 --timings products.fdb.txt --out sm_90-products.pt
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from draw_problems import BATCHES, EPILOGUES
from models import Step, task

from torch_reformer.compiler.analysis import fake_gpu
from torch_reformer.compiler.cli import recorded
from torch_reformer.compiler.ir.product import Product
from torch_reformer.problem import ConvProblem
from torch_reformer.selector.epilogues import text_of
from torch_reformer.selector.problems import Task, parse_tasks, read_problems

MOST_ELEMENTS, MOST_FLOPS = 1 << 29, 2e12
LEAST_ELEMENTS = 132 * 128 * 128  # smaller results are left to PyTorch (compiler/fusion/anchor_products.py)
LEAST_PIXELS = 1 << 16  # elements of a convolution's result
TRANSPOSES = ("tn", "nn", "nt")
# Programs (selector/epilogues.py) with their weights in the draw; the empty one stands for the product alone.
PROGRAMS = {
    **{"": 5, "bias.gelu": 3, "bias.store.gelu": 5, "gelu_grad": 5, "bias.residual": 5, "residual": 3, "bias.relu": 3},
    **{"bias.dropout.residual": 2, "silu_grad": 1, "bias.silu": 1, "silu.gate": 2, "gate": 2, "bias.gelu_tanh": 2},
    **{"bias.store.gelu_tanh": 2, "bias.store.silu": 1, "relu_grad": 1, "bias.scale.residual": 2, "gelu_grad.sum": 2},
    **{"scale": 1, "bias.dropout": 1},
}
WIDTHS = (96, 128, 192, 256, 320, 384, 512, 576, 640, 768, 896, 1024, 1280, 1536, 2048, 2560, 3072, 4096)
FACTORS = (1, 1, 2, 8 / 3, 3, 4, 4, 4)  # columns over the width
ROWS = (1024, 2048, 4096, 6272, 8192, 12608, 16384, 25088, 32768, 50176, 100352, 401408)


def products_of_plans(name: str) -> list[str]:
    """Products of a model's training step that could have programs in their kernels; needs the fake GPU."""
    found: dict[str, None] = {}
    choice = Product.choice

    def noted(product: Product, program):
        problem = ConvProblem.parse(product.key)
        found[str(Task(problem, text_of(program.code, [text for text in PROGRAMS if text])))] = None
        found.update((str(each), None) for each in alone(problem))
        return choice(product, program)

    Product.choice = noted
    what = task(name, torch.device("cpu"))
    recorded(Step(what, "cuda"), what.batch(), gpu="sm_90", on_gpu=True)
    return list(found)


def alone(problem: ConvProblem) -> Iterator[ConvProblem]:
    """The product and its gradients, without programs."""
    return (problem.replace(direction=direction) for direction in "FBW")


def in_a_process(name: str) -> list[Task]:
    command = [sys.executable, __file__, "--one", name, "--out", "-"]
    done = subprocess.run(command, env=fake_gpu.environment(), capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    keys = [line for line in done.stdout.splitlines() if line.startswith("gemm-")]
    print(f"{name}: {len(keys)} products", file=sys.stderr, flush=True)
    return [each for key in keys for each in parse_tasks(key)]


def drawn(rng: random.Random) -> Task:
    """A product that a layer of some width has, on so many rows as batches of texts and images have."""
    width, factor = rng.choice(WIDTHS), rng.choice(FACTORS)
    wide = int(width * factor) // 8 * 8
    columns, depth = rng.choice(((wide, width), (width, wide)))
    rows = rng.choice(ROWS) if rng.random() < 0.7 else rng.randint(8, 2048) * 8
    (text,) = rng.choices(list(PROGRAMS), PROGRAMS.values())
    transposes = "tn" if text else rng.choice(TRANSPOSES)
    sizes = (columns, depth, rows) if transposes == "nt" else (rows, columns, depth)
    dtype = "BF16" if rng.random() < 0.85 else "FP16"
    return Task(ConvProblem.parse(f"gemm-{'-'.join(map(str, sizes))}-{transposes}-{dtype}"), text)


def of_pixels(convolution: ConvProblem, rng: random.Random) -> Task | None:
    """The product that a 1x1 convolution computes in a drawn batch, with a drawn program; None for others."""
    moves = convolution.r, convolution.s, convolution.stride_h, convolution.stride_w, convolution.groups
    if moves != (1, 1, 1, 1, 1) or convolution.is_product or convolution.pad_h or convolution.pad_w:
        return None
    rows = rng.choice(BATCHES) * convolution.h * convolution.w
    (text,) = rng.choices(list(EPILOGUES), EPILOGUES.values())
    return Task(ConvProblem.parse(f"gemm-{rows}-{convolution.k}-{convolution.c}-tn-BF16"), text)


def fits(problem: ConvProblem, least: int = LEAST_ELEMENTS) -> bool:
    sizes = problem.h * problem.c, problem.k * problem.c, problem.h * problem.k
    return max(sizes) <= MOST_ELEMENTS and problem.flops <= MOST_FLOPS and problem.h * problem.k >= least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names as in models.py, separated by commas")
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="number of products to draw")
    parser.add_argument("--lists", type=Path, nargs="*", default=[], help="files of problems, for 1x1 convolutions")
    parser.add_argument("--pixels", type=int, default=0, metavar="N", help="number of their products to draw")
    parser.add_argument(
        "--without", type=Path, nargs="*", default=[], help="no columns and depth of 1x1 convolutions in these files"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        fake_gpu.begin()
        print("\n".join(products_of_plans(options.one)))
        return 0
    rng = random.Random(options.seed)
    tasks = [each for name in options.models.split(",") if name for each in in_a_process(name)]
    tasks = list(dict.fromkeys(each for each in tasks if fits(each.problem)))
    count = len(tasks) + options.drawn
    while len(tasks) < count:
        each = drawn(rng)
        if fits(each.problem) and each not in tasks:
            tasks.append(each)
    barred = {(problem.k, problem.c) for path in options.without for problem in read_problems(path)}
    convolutions = [problem for path in options.lists for problem in read_problems(path)]
    convolutions = [problem for problem in convolutions if (problem.k, problem.c) not in barred]
    rng.shuffle(convolutions)
    products = (of_pixels(convolution, rng) for convolution in convolutions)
    fitting = (each for each in products if each and fits(each.problem, LEAST_PIXELS))
    tasks += itertools.islice(fitting, options.pixels)
    rng.shuffle(tasks)
    options.out.write_text("".join(f"{each}\n" for each in tasks))
    print(f"{options.out}: {len(tasks)} products", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
