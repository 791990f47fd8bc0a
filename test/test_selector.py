"""Data that a selector learns from: databases as data sets, targets, scores, training sets.

Training is tested in test_train.py, weights files in test_weights_file.py, the native inference in
test_selector_inference.py, the blocks in test_model.py.
"""

import math

import pytest
import torch
from selectors_for_tests import learnable, record

from torch_reformer import ConvProblem
from torch_reformer.runtime import native
from torch_reformer.selector.dataset import fold_of, geometry_group, make_dataset, sequence
from torch_reformer.selector.model import Reformer
from torch_reformer.selector.scoring import confidence, figures, restricted, unmasked
from torch_reformer.selector.synthetic import similar_problems
from torch_reformer.selector.targets import ONE_HOT, SHARPNESS, loss, of_entries, optimality
from torch_reformer.selector.timings import Record, Timing
from torch_reformer.selector.training_set import Teachers, training_set
from torch_reformer.selector.versions import of_this_version
from torch_reformer.tuning.measure import applicable


def test_siblings_share_a_fold():
    p = ConvProblem(8, 16, 14, 14, 32, 3, 3, 1, 1)
    twins = [p.replace(n=64), p.replace(direction="B"), p.replace(dtype="FP16", layout="NHWC")]
    swapped = p.replace(c=32, k=16)
    for sibling in (*twins, swapped):
        assert geometry_group(sibling) == geometry_group(p) and fold_of(sibling) == fold_of(p)
    assert geometry_group(p.replace(h=15)) != geometry_group(p)
    # Fixed here, so that weights' held-out problems stay held out in later versions.
    assert [fold_of(p), fold_of(p.replace(c=48)), fold_of(p.replace(groups=2))] == [14, 14, 2]


def test_dataset_leaves_out_what_teaches_nothing():
    p = ConvProblem(1, 4, 8, 8, 4, 3, 3)
    impossible = Record(str(p).replace("6-6", "7-7"), record(p, a=1.0, b=2.0).timings)
    records = [
        record(p, b=2.0, a=1.0, zero=0.0),
        record(p.replace(n=2), a=1.0),
        record(p.replace(n=3), a=1.0, zero=0.0),
    ]
    data = make_dataset([("gfx906", [*records, impossible]), ("gfx900", [record(p, c=3.0, a=1.5)])])
    assert (data.candidates, data.architectures, data.keys) == (["a", "b", "c"], ["gfx900", "gfx906"], [str(p), str(p)])
    assert data.device.tolist() == [1, 0] and data.best_ms.tolist() == [1.0, 1.5]
    assert data.entries.tolist() == [[0, 1], [0, 2]]  # by name: the order by time would give the answer away
    assert torch.allclose(data.log_ratio, torch.tensor([[0, math.log(2)], [0, math.log(2)]]))
    own, columns = data.of("gfx900")
    assert own.candidates == ["a", "c"] and own.entries.tolist() == [[0, 1]] and columns.tolist() == [0, 2]
    named = data.known_to(["x", "c"])
    assert named.candidates == ["x", "c", "a", "b"] and named.entries.tolist() == [[2, 3], [2, 1]]
    with pytest.raises(ValueError, match="no record"):
        make_dataset([("gfx906", [impossible])])


def test_targets_are_probabilities_of_run_times():
    log_ratio = torch.tensor([[0.0, math.log(2), 0.0]])
    valid = torch.tensor([[True, True, False]])
    assert torch.allclose(optimality(log_ratio, valid, 1.0), torch.tensor([[2 / 3, 1 / 3, 0.0]]))
    assert torch.allclose(optimality(log_ratio, valid, 3.0), torch.tensor([[8 / 9, 1 / 9, 0.0]]))
    assert torch.equal(optimality(log_ratio, valid, ONE_HOT), torch.tensor([[1.0, 0.0, 0.0]]))


def test_what_was_not_timed_is_unknown_not_slow():
    entries = torch.tensor([[0, 1, -1]])
    targets, log_ratio = torch.tensor([[0.75, 0.25, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    logits = torch.randn(1, 4, dtype=torch.double, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(logits, entries, targets, log_ratio, 2.0, 0.0, 0.5), logits)
    assert torch.equal(gradient[0, 2:], torch.zeros(2, dtype=torch.double)) and gradient[0, :2].abs().min() > 0
    # The cross-entropy is least where the model's probabilities are the targets'.
    exact = torch.tensor([[0.75, 0.25, 1.0, 1.0]], dtype=torch.double).log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(exact, entries, targets, log_ratio, 0.0, 0.0, 0.0), exact)
    assert gradient.abs().max() < 1e-7
    doubles = targets.double(), log_ratio.double()
    assert torch.autograd.gradcheck(lambda z: loss(z, entries, *doubles, 2.0, 0.3, 0.5), logits)


def test_how_much_slower_is_learnt_of_those_far_from_the_best():
    """The cross-entropy alone hardly distinguishes a solver that takes 1.5 times as long from one that takes twice as
    long."""
    log_ratio = torch.tensor([[0.0, math.log(1.5), math.log(2)]])
    entries, targets = torch.tensor([[0, 1, 2]]), optimality(log_ratio, torch.ones(1, 3, dtype=torch.bool), SHARPNESS)
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(1000):
        optimizer.zero_grad()
        loss(logits, entries, targets, log_ratio, 0.0, 0.0, 0.3).backward()
        optimizer.step()
    expected = -SHARPNESS * log_ratio
    assert torch.allclose(logits - logits.mean(), expected - expected.mean(), atol=0.5)


def test_scores():
    inf = float("-inf")
    entries = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1], [2, 3, 0, 1], [3, 4, -1, -1]])
    log_ratio = torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.0, 0.5, 0.0, 0.0], [0.4, 0.0, 0.1, 0.7], [0.0, 0.9, 0.0, 0.0]])
    logits = torch.tensor([[0.0, 1, 0, 0, 9], [0.0, 1, 0, 0, 9], [5.0, 0, 0, 0, 0], [0.0, 0, 0, inf, inf]])
    slow = restricted(logits, entries, log_ratio)
    assert torch.allclose(slow, torch.tensor([0.1, 0.5, 0.1, 0.9]))  # the last: knows none, so the slowest
    # A missing choice counts as the slowest of a full record; in a shorter one it does not apply, and the next choice
    # counts.
    assert torch.allclose(unmasked(logits, entries, log_ratio), torch.tensor([0.3, 0.5, 0.1, 0.9]))
    scores = figures(torch.tensor([0.0, math.log(4)]), torch.tensor([0.0, 0.0]))
    assert (scores["problems"], scores["top1"]) == (2, 0.5)
    assert scores["slowdown_geomean"] == pytest.approx(2) and scores["slowdown_mean"] == pytest.approx(2.5)
    assert scores["unmasked_slowdown_geomean"] == 1
    bins = confidence(logits[:3], entries[:3], log_ratio[:3])
    assert sum(b["problems"] for b in bins) == 3 and all(b["slowdown_if_wrong"] >= 1 for b in bins)


def test_similar_problems_are_new_and_possible():
    problems = [r.problem for r in learnable(60)]
    similar = similar_problems(problems, 300, seed=1)
    assert len(similar) == len(set(similar)) == 300 and not set(similar) & set(problems)
    for problem in similar:
        assert ConvProblem.parse(str(problem)) == problem
    assert similar == similar_problems(problems, 300, seed=1) != similar_problems(problems, 300, seed=2)


def test_training_set_mixes_what_is_measured_with_what_is_taught():
    data = make_dataset([("gfx906", learnable(60))])
    own, columns = data.of("gfx906")
    teacher = Reformer(native.feature_shape().rows, len(data.candidates), 16, 16, 1).eval()
    teachers = Teachers([teacher], 0, columns, torch.device("cpu"))
    both, targets = training_set(own, teachers, ["gfx906"], sharpness=8.0, share=0.5, count=40, seed=0)
    assert len(both) == len(own) + 40 and targets.shape == both.entries.shape
    assert torch.allclose(targets.sum(1), torch.ones(len(both))) and not targets[~both.valid].any()
    taught = of_entries(teachers.log_probabilities(own), own.entries).softmax(1)
    mixed = 0.5 * taught + 0.5 * optimality(own.log_ratio, own.valid, 8.0)
    assert torch.allclose(targets[: len(own), : own.entries.shape[1]], mixed, atol=1e-6)
    alone, _ = training_set(own, Teachers([], 0, columns, torch.device("cpu")), ["gfx906"], 8.0, 0.5, 40, 0)
    assert len(alone) == len(own)


def test_databases_of_other_solvers_than_now():
    """Solvers that no longer exist are left out, new ones are named; MIOpen's databases know neither."""
    problem = ConvProblem(2, 8, 6, 6, 8, 3, 3, 1, 1)
    whole = Record(str(problem), tuple(Timing(name, 1.0, 0, "") for name in applicable(problem)))
    here = native.device(None)
    assert of_this_version([whole], here) == ([whole], [])
    less = whole._replace(timings=(*whole.timings[:2], Timing("tile_7", 0.5, 0, "")))
    left, warnings = of_this_version([whole, less], here)
    assert left == [whole, less._replace(timings=less.timings[:2])]
    assert warnings[0] == "no solvers of this version: tile_7, of which 1 timings are left out"
    assert warnings[1].startswith("not timed for up to 1 records that they apply to: ")
    assert of_this_version(learnable(5), "gfx906") == (learnable(5), [])


def test_features_of_a_batch_are_those_of_each():
    problems = [r.problem for r in learnable(20)]
    rows, weights = sequence(problems, "cpu-avx512-2t")
    shape = native.feature_shape()
    assert rows.shape == weights.shape == (len(problems), shape.tokens, shape.terms)
    assert 0 <= rows.min() and rows.max() < shape.rows
    one = [sequence([problem], "cpu-avx512-2t")[0][0] for problem in problems]
    assert torch.equal(torch.stack(one), rows)
    other_threads, _ = sequence(problems, "cpu-avx512-64t")
    assert not torch.equal(other_threads, rows)
