"""Lists of problems that benchmarks/draw_problems.py draws."""

import json
import random
import sys
from pathlib import Path

import pytest
from torch import nn

from torch_reformer import ConvProblem
from torch_reformer.selector.dataset import geometry_group
from torch_reformer.selector.problems import read_problems

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import draw_problems  # noqa: E402


def draw(monkeypatch, out: Path, *options: str) -> list[ConvProblem]:
    monkeypatch.setattr(sys, "argv", ["draw_problems.py", "--out", str(out), *options])
    draw_problems.main()
    return read_problems(out)


@pytest.mark.parametrize("kind", draw_problems.KINDS)
def test_kinds(kind):
    """Most problems drawn of a kind are possible and small enough, few geometries repeat, and all survive their text
    form."""
    rng = random.Random(3)
    maker = draw_problems.KINDS[kind][1]
    geometries = [each for each in (maker(rng) for _ in range(50)) if each.out_h > 0 and each.out_w > 0]
    assert len(geometries) >= 40 and len(set(geometries)) >= 35
    for geometry in geometries:
        for problem in draw_problems.forms_of(geometry, rng):
            assert ConvProblem.parse(str(problem)) == problem and draw_problems.fits(problem)
            assert geometry_group(problem) == geometry_group(geometry)


def test_convolutions_of_a_model():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, dilation=2, groups=4), nn.Conv2d(8, 8, 1)
    )
    model.append(nn.Conv2d(8, 8, 1))
    first, second, third = draw_problems.convolutions(model, 20)
    assert first == ConvProblem(1, 3, 20, 20, 8, 3, 3, 1, 1, 2, 2)
    assert second == ConvProblem(1, 8, 10, 10, 8, 3, 3, dilation_h=2, dilation_w=2, groups=4)
    assert third == ConvProblem(1, 8, 6, 6, 8, 1, 1)


def test_lists(monkeypatch, tmp_path):
    listed = tmp_path / "listed.jsonl"
    sizes = {"c": 16, "h": 9, "w": 9, "k": 32, "r": 3, "s": 3}
    listed.write_text("".join(json.dumps(sizes | {"c": 16 * c}) + "\n" for c in range(1, 7)))
    in_two = draw(monkeypatch, tmp_path / "a", "--lists", str(listed), "--geometries", "2", "--batches", "1,8")
    assert len({geometry_group(problem) for problem in in_two}) == 2
    assert {(p.n, p.dtype, p.layout, p.direction) for p in in_two} == {
        (n, "BF16", "NHWC", direction) for n in (1, 8) for direction in "FBW"
    }
    options = "--lists", str(listed), "--drawn", "20", "--without", str(tmp_path / "a")
    others = draw(monkeypatch, tmp_path / "b", *options)
    barred = {geometry_group(problem) for problem in in_two}
    groups = [geometry_group(problem) for problem in others[::3]]
    assert len(set(groups)) == len(groups) > 10 and not barred & set(groups)
    assert others == draw(monkeypatch, tmp_path / "c", *options)
    assert others != draw(monkeypatch, tmp_path / "d", *options, "--seed", "1")


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--forms", "BF16:NHWC"], "--forms is for --batches"),
        (["--batches", "1", "--forms", "BF16"], "BF16: is none of BF16:NHWC, FP16:NHWC"),
    ],
)
def test_wrong_options(monkeypatch, tmp_path, capsys, options, sentence):
    with pytest.raises(SystemExit):
        draw(monkeypatch, tmp_path / "a", *options)
    assert sentence in capsys.readouterr().err
