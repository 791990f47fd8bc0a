"""Unmeasured problems similar to measured ones: teachers label them, and the student learns from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ..problem import DIRECTIONS, ConvProblem

_FACTORS = (0.5, 0.75, 1.25, 1.5, 2.0)


def _changed(problem: ConvProblem, other: ConvProblem, rng: random.Random) -> ConvProblem:
    """Problem with up to three of its properties scaled or taken from another problem."""

    def size(mine: int, theirs: int) -> int:
        return theirs if rng.random() < 0.5 else max(1, int(mine * rng.choice(_FACTORS)))

    changes: dict[str, Any] = {}
    for what in rng.sample(("n", "n", "c", "k", "image", "dtype", "direction", "layout"), rng.choice((1, 2, 2, 3))):
        if what == "n":
            changes["n"] = other.n
        elif what in ("c", "k") and problem.groups == 1:
            changes[what] = size(getattr(problem, what), getattr(other, what))
        elif what == "image":
            factor = rng.choice(_FACTORS)
            scaled = {side: max(1, int(getattr(problem, side) * factor)) for side in "hw"}
            changes |= {"h": other.h, "w": other.w} if rng.random() < 0.5 else scaled
        elif what in ("dtype", "layout"):
            changes[what] = getattr(other, what)
        elif what == "direction":
            changes |= {"direction": rng.choice(DIRECTIONS), "bias": False}
    return problem.replace(**changes)


def similar_problems(problems: Sequence[ConvProblem], count: int, seed: int) -> list[ConvProblem]:
    """``count`` distinct possible problems that are not among the given ones; fewer if they are hard to find."""
    rng = random.Random(seed)
    seen, similar = set(problems), list[ConvProblem]()
    for _ in range(4 * count):
        if len(similar) == count:
            break
        problem = _changed(rng.choice(problems), rng.choice(problems), rng)
        if problem in seen:
            continue
        seen.add(problem)
        try:
            str(problem)
        except ValueError:  # an impossible problem
            continue
        similar.append(problem)
    return similar
