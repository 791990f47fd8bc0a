"""Fused or separate programs behind a convolution: text form, the choice, and selectors that learn it."""

import math
import subprocess
import sys

import pytest
import torch
from selectors_for_tests import description, no_selector, reformer

from torch_reformer import ConvProblem, config
from torch_reformer.__main__ import main
from torch_reformer.program.interpreter import interpret
from torch_reformer.runtime import native
from torch_reformer.selector import epilogues, replay, weights_file
from torch_reformer.selector.dataset import decided, make_dataset
from torch_reformer.selector.problems import Task, parse_tasks, read_problems, read_tasks
from torch_reformer.selector.timings import Record, Timing, write_timings

PROBLEM = ConvProblem(32, 256, 14, 14, 256, 3, 3, 1, 1, dtype="BF16", layout="NHWC")  # gpu_tma_gemm is fastest
KEY = f"{PROBLEM}+bias.residual.relu"
NAMES = native.solver_names()


@pytest.fixture
def no_epilogues():
    """No selector of epilogues for Hopper GPUs; one that the test sets is removed after it."""
    with no_selector("sm_90", "epilogues"):
        yield


def install(fused: float, separate: float) -> None:
    """Install a selector with equal logits for every program."""
    model = reformer(2, decides="epilogues")
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([fused, separate]))
    native.set_selector("sm_90", **description(model, ["fused", "separate"], "epilogues"))


def test_a_text_names_a_program():
    program = epilogues.program_of("bias.store.gelu.residual.moments")
    assert program.kinds == ("channel", "full")
    acc, bias, residual = torch.randn(2, 3, 4, 5), torch.randn(3), torch.randn(2, 3, 4, 5)
    tensors = dict(zip(program.names, (bias, residual), strict=True))
    result, stored, moments = interpret(program, acc.shape, acc.dtype, tensors, acc)
    biased = acc + bias.view(1, -1, 1, 1)
    expected = torch.nn.functional.gelu(biased) + residual
    torch.testing.assert_close(stored, biased)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(moments[0], expected.mean((0, 2, 3)))


@pytest.mark.parametrize("text", ["", "bais", "bias..relu", "bias.relu "])
def test_an_unknown_step_is_an_error(text):
    with pytest.raises(ValueError, match="an epilogue has no step .*there are bias, scale, residual"):
        epilogues.program_of(text)


def test_tasks_of_a_file(tmp_path):
    path = tmp_path / "tasks.txt"
    path.write_text(f"{KEY}\n{PROBLEM}\n{KEY}=fused:1.0,0,x\n{PROBLEM}+moments\n")
    expected = [Task(PROBLEM, "bias.residual.relu"), Task(PROBLEM), Task(PROBLEM, "moments")]
    assert read_tasks(path) == expected
    assert [str(task) for task in expected] == [KEY, str(PROBLEM), f"{PROBLEM}+moments"]
    assert read_problems(path) == [PROBLEM]
    with pytest.raises(ValueError, match="after forward convolutions, not after gradients"):
        parse_tasks(f"{PROBLEM.replace(direction='B')}+relu")
    with pytest.raises(ValueError, match="the problem must have none"):
        parse_tasks(f"{PROBLEM.replace(bias=True)}+relu")
    with pytest.raises(ValueError, match="an epilogue has no step ''"):
        parse_tasks(f"{PROBLEM}+")
    both = [Task(PROBLEM), Task(PROBLEM.replace(direction="B"))]
    assert read_tasks(path, directions=["F", "B"]) == [expected[0], *both, expected[2]]


def test_a_record_of_an_epilogue():
    record = Record(KEY, ())
    assert record.problem == PROBLEM and record.epilogue == "bias.residual.relu"
    assert Record(str(PROBLEM), ()).epilogue == ""


def test_the_selector_chooses_the_way(no_epilogues):
    assert math.isnan(epilogues.choice(PROBLEM, "sm_90", "bias.relu").probability)
    for difference in (-2.0, 2.0):
        install(difference, 0.0)
        choice = epilogues.choice(PROBLEM, "sm_90", "bias.relu")
        assert choice.is_fused == (difference > 0)
        assert choice.probability == pytest.approx(1 / (1 + math.exp(-difference)), rel=1e-5)
        assert NAMES[choice.fused].startswith("gpu_")


def test_settings_choose_the_way(no_epilogues):
    install(5.0, 0.0)
    with config(epilogues="separate"):
        assert not epilogues.choice(PROBLEM, "sm_90", "bias.relu").is_fused
    install(0.0, 5.0)
    with config(epilogues="fused"):
        assert epilogues.choice(PROBLEM, "sm_90", "bias.relu").is_fused
    with pytest.raises(ValueError, match="epilogues must be 'fused', 'separate' or None, got 'both'"):
        config(epilogues="both")
    code = "import os; os.environ['TORCH_REFORMER_EPILOGUES'] = 'both'; import torch_reformer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "TORCH_REFORMER_EPILOGUES must be fused or separate, got 'both'" in done.stderr


def test_a_forced_solver_runs_the_program(no_epilogues):
    install(0.0, 5.0)
    with config(force="gpu_gemm_64x64"):
        choice = epilogues.choice(PROBLEM, "sm_90", "bias.relu")
    assert choice.is_fused and NAMES[choice.fused] == "gpu_gemm_64x64" == NAMES[choice.separate]


def test_nothing_to_choose_on_a_cpu_and_where_no_kernel_runs_it(no_epilogues):
    install(5.0, 0.0)
    for problem, device, text in [
        (PROBLEM, "cpu-avx2-2t", "bias.relu"),
        (PROBLEM.replace(layout="NCHW"), "sm_90", "bias.relu"),
        (PROBLEM, "sm_90", "moments.bias.sum"),  # two reductions
    ]:
        choice = epilogues.choice(problem, device, text)
        assert choice.fused == -1 and not choice.is_fused and epilogues.ways(problem, device, text) is None


def test_damaged_weights_choose_nothing(no_epilogues):
    """Kernels whose logits are NaN are not ranked."""
    install(5.0, 0.0)
    before = native.selector("sm_90")
    model = reformer(len(before["candidates"]))
    with torch.no_grad():
        model.head.bias.fill_(math.inf)
    try:
        native.set_selector("sm_90", **description(model, before["candidates"]))
        choice = epilogues.choice(PROBLEM, "sm_90", "bias.relu")
        assert math.isnan(choice.probability) and epilogues.ways(PROBLEM, "sm_90", "bias.relu") is None
    finally:
        native.set_selector("sm_90", **before)


def test_weights_of_epilogues_must_know_both_ways():
    model = reformer(2, decides="epilogues")
    with pytest.raises(ValueError, match='must know the way "separate"'):
        native.check_selector("sm_90", **description(model, ["fused", "aten"], "epilogues"))
    with pytest.raises(ValueError, match=r"embedding must have \d+ rows"):
        native.check_selector("sm_90", **description(reformer(2), ["fused", "separate"], "epilogues"))


def test_features_tell_programs_apart():
    texts = ["bias", "bias.relu", "bias.gelu", "bias.residual", "bias.moments", "bias.store.relu", "dropout"]
    ways = [epilogues.ways(PROBLEM, "sm_90", text) for text in texts]
    numbers = {(tuple(each.rows.flatten().tolist()), tuple(each.weights.flatten().tolist())) for each in ways}
    assert len(numbers) == len(texts)
    rows = native.feature_shape("epilogues").rows
    assert all(0 <= result.rows.min() and result.rows.max() < rows for result in ways)


def test_features_of_a_program_that_does_nothing_are_the_problems():
    plain, _ = native.features([PROBLEM.native()], "sm_90")
    ways = epilogues.ways(PROBLEM, "sm_90", "none")
    counts = (plain[0] != 0).sum(1)
    for token, count in enumerate(counts):
        assert torch.equal(plain[0][token, :count], ways.rows[token, :count])
    assert ways.weights.shape == plain[0].shape


def learnable() -> list[Record]:
    """Records in which programs with GELU are faster in separate kernels."""
    records = []
    for i in range(480):
        c, size = 32 + 8 * (i % 30), 7 + i % 23
        problem = ConvProblem(1 + i % 37, c, size, size, 64 + 8 * (i % 11), 3, 3, 1, 1, dtype="BF16", layout="NHWC")
        for text in ("bias.relu", "bias.gelu", "moments", "bias.gelu.residual"):
            ways = epilogues.ways(problem, "sm_90", text)
            if ways:
                ms = {"fused": 2.0 if "gelu" in text else 1.0, "separate": 1.5}
                timings = tuple(Timing(way, time, 0, ways.kernels[way]) for way, time in ms.items())
                records.append(Record(f"{problem}+{text}", timings))
    return records


def test_learns_which_way_is_faster(no_epilogues, tmp_path, capsys):
    database, out = tmp_path / "db.fdb.txt", tmp_path / "mine.pt"
    write_timings(database, learnable())
    arguments = ["--timings", f"sm_90={database}"]
    assert main(["train", *arguments, "--arch", "sm_90", "--out", str(out), "--epochs", "40"]) == 0
    weights = weights_file.load(out)
    assert weights.name == "sm_90-epilogues" and weights.candidates == ["fused", "separate"]
    assert weights.metadata["scores"]["top1"] > 0.95, "geometries that were never trained on"
    weights.activate()
    assert weights_file.deciding("sm_90-epilogues") is weights and weights_file.deciding("sm_90") is not weights
    for text in ("bias.relu", "bias.gelu"):
        assert epilogues.choice(PROBLEM, "sm_90", text).is_fused == ("gelu" not in text)
    capsys.readouterr()
    assert main(["explain", f"{PROBLEM}+bias.gelu", "--device", "sm_90"]) == 0
    assert "epilogue bias.gelu: in a kernel of its own, after gpu_" in capsys.readouterr().out
    assert main(["replay", *arguments, "--weights", str(out), "--held-out"]) == 0


def test_records_of_either_kind_only():
    plain = Record(str(PROBLEM), (Timing("aten", 1.0, 0, "x"), Timing("gpu_gemm_64x64", 2.0, 0, "x")))
    with pytest.raises(ValueError, match="some of these records are of programs after convolutions"):
        decided([plain, *learnable()[:1]])
    weights = weights_file.load(weights_file.shipped("sm_90"))
    with pytest.raises(ValueError, match="decide about kernels, but the records are of epilogues"):
        replay.Replay(weights, learnable(), "sm_90")


def test_records_that_no_kernel_runs_are_left_out():
    usable = learnable()[:2]
    timings = usable[0].timings
    unusable = [
        Record(f"{PROBLEM.replace(layout='NCHW')}+relu", timings),
        Record(f"{PROBLEM}+moments.bias.sum", timings),
        Record(f"{PROBLEM}+bais", timings),
        Record(f"{PROBLEM}+relu", tuple(timing._replace(algorithm="another") for timing in timings)),
    ]
    dataset = make_dataset([("sm_90", [*usable, *unusable])])
    reasons = {"no ranked kernel runs": 2, "are not known": 1, "other kernels than the weights choose now": 1}
    assert len(dataset) == 2 and len(dataset.left_out) == len(reasons)
    for reason, count in dataset.left_out.items():
        assert reasons[next(each for each in reasons if each in reason)] == count
    with config(force="aten"):  # without effect here
        assert len(make_dataset([("sm_90", usable)])) == 2
    with pytest.raises(ValueError, match="2 times above 0; 1 of programs that are not known"):
        make_dataset([("sm_90", unusable[2:3])])


def test_either_kind_is_told_of_options_for_the_other(tmp_path, capsys):
    database = tmp_path / "db.fdb.txt"
    write_timings(database, learnable()[:8])
    arguments = ["--timings", f"sm_90={database}", "--arch", "sm_90"]
    assert main(["train", *arguments, "--out", str(tmp_path / "x.pt"), "--teachers", "1"]) == 2
    assert "without teachers" in capsys.readouterr().err
    assert main(["replay", "--timings", f"sm_80={database}", "--arch", "sm_80"]) == 2
    assert "there are no weights for sm_80-epilogues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "is_product"), [({}, True), ({"dtype": "FP32"}, False), ({"k": 40}, False), ({"layout": "NCHW"}, False)]
)
def test_1x1_convolutions_are_chosen_as_products(changes, is_product):
    """Those of 16-bit pixels of as many channels as a tile has columns; batches and images make rows."""
    convolution = ConvProblem(32, 256, 14, 14, 512, 1, 1, dtype="BF16", layout="NHWC").replace(**changes)
    product = ConvProblem.parse("gemm-6272-512-256-tn-BF16")
    chosen = epilogues.choice(convolution, "sm_90", "bias.residual.relu")
    expected = epilogues.choice(product, "sm_90", "bias.residual.relu")
    assert (chosen.fused == expected.fused and chosen.probability == expected.probability) == is_product


def test_pixels_beyond_32_bits_are_no_product():
    large = ConvProblem(2**11, 64, 2**11, 2**11, 64, 1, 1, dtype="BF16", layout="NHWC")
    assert epilogues.choice(large, "sm_90", "bias.relu")  # and not of a negative number of rows
