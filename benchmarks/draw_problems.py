"""Draws lists of problems for `python -m torch_reformer collect`: the convolutions of models, geometries from lists,
and kinds of convolutions that networks use but those lists lack. The lists are shuffled, so that the first part of a
list is a sample of it.

To assess weights on models that they were not trained on, and to train them:

    python benchmarks/draw_problems.py --models timm/inception_v4,resnet34 --batches 4,32 --out held_out.txt
    python benchmarks/draw_problems.py --lists timm.jsonl --drawn 900 --without held_out.txt --out train.txt
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from models import image_model
from torch import nn

from torch_reformer.problem import DIRECTIONS, ConvProblem
from torch_reformer.selector.dataset import geometry_group
from torch_reformer.selector.problems import Task, read_problems

# limits of a tensor's elements and of a problem's products; larger ones take too long to time
MOST_ELEMENTS, MOST_PRODUCTS = 1 << 29, 3e11
IMAGE_SIZES = (160, 192, 224, 240, 256, 288, 299, 300, 320, 331, 384, 416, 512)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
USUAL_BATCH, USUAL_BATCH_SHARE = 32, 0.4
# Programs after convolutions (selector/epilogues.py), with their weights in the draw.
EPILOGUES = {
    **{"bias.relu": 6, "moments": 6, "bias.moments": 3, "bias.residual.relu": 4, "bias": 2, "residual": 2},
    **{"scale.bias.relu": 3, "scale.bias.residual.relu": 2, "bias.silu": 3, "bias.gelu": 3, "bias.store.gelu": 2},
    **{"bias.store.silu": 2, "bias.hardswish": 2, "bias.relu6": 1, "bias.relu.sum": 1, "bias.dropout": 1},
    **{"bias.silu.gate": 1, "bias.gelu.dropout.residual": 1, "bias.gelu_tanh": 1, "scale.bias.gelu": 1},
}
# Pairs of data type and layout, with their weights in the draw.
FORMS = {
    ("BF16", "NHWC"): 10,
    ("FP16", "NHWC"): 2,
    ("BF16", "NCHW"): 2,
    ("FP32", "NHWC"): 2,
    ("FP32", "NCHW"): 1,
}


def convolutions(model: nn.Module, size: int) -> list[ConvProblem]:
    """Distinct geometries of a model's 2-d convolutions, for one image with `size` pixels per side."""
    found: dict[ConvProblem, None] = {}

    def met(module: nn.Conv2d, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            return
        (_, c, h, w), (k, _, r, s) = inputs[0].shape, module.weight.shape
        moves = (*module.padding, *module.stride, *module.dilation, module.groups)
        found[ConvProblem(1, c, h, w, k, r, s, *moves)] = None

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(met)
    model.eval()(torch.zeros(1, 3, size, size))
    return list(found)


def geometries_of(name: str) -> list[ConvProblem]:
    model = image_model(name)
    size = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))[-1]
    return convolutions(model, size)


def _channels(rng: random.Random, level: int) -> int:
    """Number of channels for a stage after `level` halvings of the image: mostly a multiple of 8."""
    width = int(rng.uniform(8, 48) * 2 ** rng.uniform(level - 1, level + 1.5))
    return max(4, width if rng.random() < 0.15 else width // 8 * 8)


def _image_size(rng: random.Random, level: int) -> int:
    """Pixels per side for a stage; a few less after convolutions without padding."""
    return max((rng.choice(IMAGE_SIZES) >> level) - rng.choice((0, 0, 0, 1, 2, 3)), 4)


def _of(level: int, rng: random.Random, r: int, s: int, stride: int = 1, dilation: int = 1, groups: int = 1, **sizes):
    h = _image_size(rng, level)
    w = h if rng.random() < 0.85 else _image_size(rng, level)
    padded = rng.random() < 0.85
    pads = ((r // 2) * dilation, (s // 2) * dilation) if padded else (0, 0)
    c, k = sizes.get("c") or _channels(rng, level), sizes.get("k") or _channels(rng, level)
    return ConvProblem(1, c, h, w, k, r, s, *pads, stride, stride, dilation, dilation, groups)


def _grouped(rng: random.Random) -> ConvProblem:
    level, groups = rng.randint(2, 5), rng.choice((2, 4, 8, 16, 32, 64))
    channels = groups * rng.choice((4, 8, 16, 24, 32, 40, 64))
    return _of(level, rng, 3, 3, rng.choice((1, 1, 2)), groups=groups, c=channels, k=channels)


def _depthwise(rng: random.Random) -> ConvProblem:
    level, side = rng.randint(1, 5), rng.choice((3, 3, 3, 5, 5, 7, 9, 11))
    channels = _channels(rng, level + 1)
    return _of(level, rng, side, side, rng.choice((1, 1, 2)), groups=channels, c=channels, k=channels)


def _patches(rng: random.Random) -> ConvProblem:
    side = rng.choice((2, 2, 4, 8, 14, 16))
    level, first = (rng.randint(2, 4), {}) if side == 2 else (0, {"c": 3, "k": 48 * rng.randint(1, 16)})
    return _of(level, rng, side, side, side, **first).replace(pad_h=0, pad_w=0)


def _long(rng: random.Random) -> ConvProblem:
    side = rng.choice((3, 3, 7, 7, 5, 9))
    r, s = rng.choice(((1, side), (side, 1)))
    return _of(rng.randint(1, 5), rng, r, s)


def _few_channels(rng: random.Random) -> ConvProblem:
    c, k = (rng.choice((8, 12, 16, 24, 32, 48, 64)) for _ in range(2))
    return _of(rng.randint(0, 3), rng, 3, 3, rng.choice((1, 1, 1, 2)), c=c, k=k)


def _stem(rng: random.Random) -> ConvProblem:
    side, k = rng.choice((3, 3, 7, 5, 11)), rng.choice((16, 24, 32, 40, 64, 96))
    return _of(0, rng, side, side, rng.choice((1, 2, 2, 4)), c=rng.choice((1, 3, 3, 4)), k=k)


def _dilated(rng: random.Random) -> ConvProblem:
    return _of(rng.randint(2, 4), rng, 3, 3, dilation=rng.choice((2, 2, 3, 4, 6, 12, 18)))


# Kinds of geometries: the weight in the draw, and the function that draws one.
KINDS: dict[str, tuple[int, Callable[[random.Random], ConvProblem]]] = {
    "long filters": (4, _long),
    "few channels": (3, _few_channels),
    "3x3": (4, lambda rng: _of(rng.randint(1, 5), rng, 3, 3, rng.choice((1, 1, 1, 2)))),
    "5x5 and 7x7": (2, lambda rng: _of(rng.randint(1, 5), rng, *(2 * [rng.choice((5, 5, 7))]), rng.choice((1, 1, 2)))),
    "dilated": (2, _dilated),
    "1x1": (5, lambda rng: _of(rng.randint(1, 5), rng, 1, 1, rng.choice((1, 1, 1, 1, 2)))),
    "grouped": (2, _grouped),
    "depthwise": (4, _depthwise),
    "patches": (1, _patches),
    "stem": (2, _stem),
}


def drawn(count: int, rng: random.Random) -> Iterator[ConvProblem]:
    shares, makers = zip(*KINDS.values(), strict=True)
    for maker in rng.choices(makers, shares, k=count):
        geometry = maker(rng)
        if geometry.out_h > 0 and geometry.out_w > 0:
            yield geometry


def fits(problem: ConvProblem) -> bool:
    p = problem
    elements = max(p.n * p.c * p.h * p.w, p.n * p.k * p.out_h * p.out_w)
    return elements <= MOST_ELEMENTS and p.n * p.k * p.out_h * p.out_w * p.c // p.groups * p.r * p.s <= MOST_PRODUCTS


def forms_of(geometry: ConvProblem, rng: random.Random) -> list[ConvProblem]:
    """The geometry in all directions, with a batch, a data type and a layout drawn for it."""
    batch = USUAL_BATCH if rng.random() < USUAL_BATCH_SHARE else rng.choice(BATCHES)
    (form,) = rng.choices(list(FORMS), FORMS.values())
    dtype, layout = form
    while batch > 1 and not fits(geometry.replace(n=batch)):
        batch //= 2
    problem = geometry.replace(n=batch, dtype=dtype, layout=layout)
    return [problem.replace(direction=direction) for direction in DIRECTIONS] if fits(problem) else []


def distinct(geometries: Iterable[ConvProblem]) -> list[ConvProblem]:
    """The first geometry of each group of siblings."""
    found: dict[tuple, ConvProblem] = {}
    for geometry in geometries:
        found.setdefault(geometry_group(geometry), geometry)
    return list(found.values())


def with_epilogues(problem: ConvProblem, count: int, rng: random.Random) -> list[Task]:
    if problem.direction != "F":
        return []
    names = rng.choices(list(EPILOGUES), EPILOGUES.values(), k=count)
    return [Task(problem, name) for name in dict.fromkeys(names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="torchvision's and timm's, by names as in models.py")
    parser.add_argument("--lists", type=Path, nargs="*", default=[], help="files of problems, for their geometries")
    parser.add_argument(
        "--drawn",
        type=int,
        default=0,
        metavar="N",
        help="approximate number of geometries to draw of kinds that networks use",
    )
    parser.add_argument("--without", type=Path, nargs="*", default=[], help="no geometry that is in these lists")
    parser.add_argument("--geometries", type=int, metavar="N", help="maximum number of geometries, drawn at random")
    parser.add_argument("--batches", help="each geometry in each of these; else in one that is drawn for it")
    parser.add_argument("--forms", help="such as BF16:NHWC,FP32:NCHW, with --batches; else drawn, too")
    parser.add_argument("--epilogues", type=int, metavar="N", help="forward only, each with N drawn programs after it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    if options.forms and not options.batches:
        parser.error("--forms is for --batches: without that they are drawn")
    forms = [form.partition(":")[::2] for form in (options.forms or "BF16:NHWC").split(",")]
    if unknown := [form for form in forms if form not in FORMS]:
        parser.error(f"{':'.join(unknown[0])} is none of {', '.join(map(':'.join, FORMS))}")
    given = [geometry for name in options.models.split(",") if name for geometry in geometries_of(name)]
    given += [problem for path in options.lists for problem in read_problems(path)]
    barred = {geometry_group(problem) for path in options.without for problem in read_problems(path)}
    given += drawn(options.drawn, rng)
    all_geometries = distinct(geometry for geometry in given if geometry_group(geometry) not in barred)
    rng.shuffle(all_geometries)
    problems: list[ConvProblem] = []
    for geometry in all_geometries[: options.geometries]:
        if options.batches:
            for n, (dtype, layout), direction in itertools.product(options.batches.split(","), forms, DIRECTIONS):
                problem = geometry.replace(n=int(n), dtype=dtype, layout=layout, direction=direction)
                problems += [problem] if fits(problem) else []
        else:
            problems += forms_of(geometry, rng)
    if options.epilogues:
        problems = [each for problem in problems for each in with_epilogues(problem, options.epilogues, rng)]
    options.out.write_text("".join(f"{problem}\n" for problem in problems))
    print(f"{options.out}: {len(problems)} problems", file=sys.stderr)


if __name__ == "__main__":
    main()
