"""Matrix products as problems: their keys, features, candidates, timings, and the selector that chooses among them."""

import csv
import math
from pathlib import Path

import pytest
import torch
from made_up_products import SOLVERS, made_up_records, tasks
from selectors_for_tests import description, no_selector, reformer

from torch_reformer import ConvProblem, config
from torch_reformer.__main__ import main
from torch_reformer.runtime import native
from torch_reformer.selector import epilogues, weights_file
from torch_reformer.selector.candidates import candidates
from torch_reformer.selector.dataset import decided, geometry_group, make_dataset
from torch_reformer.selector.problems import Task, parse_tasks, read_tasks
from torch_reformer.selector.timings import Record, Timing, read_timings, write_timings
from torch_reformer.tuning import collect, measure_epilogue, verify

PRODUCT = ConvProblem.parse("gemm-12608-3072-768-tn-BF16")
NAMES = native.solver_names()
RESULTS = Path(__file__).parent.parent / "benchmarks/results/h200/product_epilogues.csv"


@pytest.fixture
def no_products():
    """No selector of products for Hopper GPUs; one that the test sets is removed after it."""
    with no_selector("sm_90", "products"):
        yield


def install(**logits: float) -> None:
    """Install a selector with equal logits for every product."""
    model = reformer(len(logits), decides="products")
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor(list(logits.values())))
    native.set_selector("sm_90", **description(model, list(logits), "products"))


@pytest.mark.parametrize(
    ("transposes", "input", "weight"),
    [("tn", (1, 7, 5, 1), (6, 7)), ("nn", (1, 6, 5, 1), (7, 6)), ("nt", (1, 6, 7, 1), (5, 6))],
)
def test_keys(transposes, input, weight):
    """5 rows, 6 columns, sums of 7 numbers."""
    key = f"gemm-5-6-7-{transposes}-BF16"
    problem = ConvProblem.parse(key)
    assert problem.is_product and str(problem) == key
    assert problem.input_size == input and problem.weight_size[:2] == weight
    assert problem.flops == 2 * 5 * 6 * 7
    assert parse_tasks(f"{key}+bias.relu=x" if transposes == "tn" else key)[0].problem == problem


def test_only_products_have_such_keys():
    for change in ({"n": 2}, {"w": 2}, {"layout": "NCHW"}, {"bias": True}, {"stride_h": 2}, {"pad_w": 1}):
        assert not PRODUCT.replace(**change).is_product
    for key in ("gemm-5-6-tn-BF16", "gemm-5-6-7-tt-BF16", "gemm-5-6-0-tn-BF16", "gemm-5-6-7-tn-BF16-F", "gemm-"):
        with pytest.raises(ValueError, match="is not a convolution problem"):
            ConvProblem.parse(key)


def test_batches_and_layouts_of_lists_are_not_of_products(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(f"{PRODUCT}\n{PRODUCT}+bias\n")
    found = read_tasks(path, batch=8, directions=["F", "W"], layouts=["NCHW"])
    assert list(map(str, found)) == [str(PRODUCT), "gemm-3072-768-12608-nt-BF16", f"{PRODUCT}+bias"]


def test_devices_have_names():
    assert [native.device(text) for text in ("sm_90:H200", "sm_90:H100", "sm_90:OTHER")] == [
        *("sm_90", "sm_90:H100", "sm_90")
    ]
    with pytest.raises(ValueError, match="is no device"):
        native.device("sm_90:h100")


def test_programs_of_plans_have_texts():
    text = "bias.store.gelu"
    program = epilogues.program_of(text)
    assert epilogues.text_of(program.code, ["bias", text]) == text
    packed = epilogues.text_of(program.code)
    assert packed.startswith("code_") and epilogues.program_of(packed).code == program.code
    assert parse_tasks(f"{PRODUCT}+{packed}") == [Task(PRODUCT, packed)]
    with pytest.raises(ValueError, match="is not the code of an epilogue"):
        epilogues.program_of("code_AAAA")


@pytest.mark.parametrize("name", ["gelu", "silu", "relu"])
def test_steps_of_gradients(name):
    from torch_reformer.program.interpreter import interpret

    acc, at = torch.randn(2, 3, 4, 5).double(), torch.randn(2, 3, 4, 5).double().requires_grad_()
    program = epilogues.program_of(f"{name}_grad")
    (result,) = interpret(program, acc.shape, acc.dtype, dict(zip(program.names, [at.detach()], strict=True)), acc)
    (expected,) = torch.autograd.grad(getattr(torch.nn.functional, name)(at), at, acc)
    torch.testing.assert_close(result, expected)


def features(text: str, device: str, problem: ConvProblem = PRODUCT):
    code = epilogues.program_of(text).code if text else ()
    rows, weights = native.product_features(problem.native(), device, code)
    assert 0 <= rows.min() and rows.max() < native.feature_shape("products").rows
    return tuple(rows.flatten().tolist()), tuple(weights.flatten().tolist())


def test_features_tell_devices_programs_and_sizes_apart():
    texts = ("", "bias", "bias.relu", "bias.gelu", "bias.store.gelu", "residual", "bias.dropout", "gelu_grad.sum")
    problems = [PRODUCT, *(PRODUCT.replace(direction=direction) for direction in "BW"), PRODUCT.replace(h=12609)]
    found = {features(text, device) for text in texts for device in ("sm_90", "sm_90:H100")}
    found |= {features("", "sm_90", problem) for problem in problems}
    assert len(found) == 2 * len(texts) + len(problems) - 1
    with pytest.raises(ValueError, match="is no matrix product"):
        native.product_features(PRODUCT.replace(n=2).native(), "sm_90")


def chosen(text: str = "bias.relu", device: str = "sm_90", problem: ConvProblem = PRODUCT) -> str:
    choice = epilogues.choice(problem, device, text)
    return NAMES[choice.fused] if choice.is_fused else NAMES[choice.separate]


def test_without_weights_a_table_chooses(no_products):
    assert chosen() == "gpu_tma_gemm_pingpong_128x192"
    assert math.isnan(epilogues.choice(PRODUCT, "sm_90", "bias.relu").probability)
    assert not epilogues.choice(PRODUCT, "sm_80", "bias.relu").is_fused or chosen(device="sm_80").startswith("gpu_gemm")


def test_the_selector_chooses_among_all(no_products):
    install(aten=1.0, gpu_tma_gemm_128x128=2.0, gpu_tma_gemm_pingpong_128x128=3.0)
    choice = epilogues.choice(PRODUCT, "sm_90", "bias.relu")
    assert choice.is_fused and NAMES[choice.fused] == "gpu_tma_gemm_pingpong_128x128"
    assert choice.probability == pytest.approx(1 / (1 + math.exp(-2)), rel=1e-5)
    assert native.decide(PRODUCT.native(), "sm_90") == choice.fused  # also without a program
    install(aten=4.0, gpu_tma_gemm_128x128=2.0)
    choice = epilogues.choice(PRODUCT, "sm_90", "bias.relu")
    assert not choice.is_fused and NAMES[choice.separate] == "aten"
    assert choice.probability == pytest.approx(1 / (1 + math.exp(2)), rel=1e-5)
    with config(epilogues="fused"):
        assert chosen() == "gpu_tma_gemm_128x128"
    with config(forbid=["gpu_tma_gemm_pingpong_128x128"]):
        install(aten=1.0, gpu_tma_gemm_128x128=2.0, gpu_tma_gemm_pingpong_128x128=3.0)
        assert chosen() == "gpu_tma_gemm_128x128"
    with config(force="gpu_tma_gemm_64x64"):
        assert chosen() == "gpu_tma_gemm_64x64"


def test_a_kernel_that_cannot_run_the_program_is_passed_over(no_products):
    install(aten=0.0, gpu_tma_gemm_128x128=1.0, gpu_gemm_128x128=2.0)
    assert chosen("bias") == "gpu_gemm_128x128"
    assert chosen("bias.sum") == "gpu_tma_gemm_128x128"
    assert chosen("moments.bias.sum") == "aten"


def test_damaged_weights_leave_it_to_the_table(no_products):
    install(aten=math.nan, gpu_tma_gemm_128x128=math.nan)
    assert chosen() == "gpu_tma_gemm_pingpong_128x192"


def test_convolutions_are_left_to_their_selectors(no_products):
    problem = ConvProblem(32, 256, 14, 14, 256, 1, 1, dtype="BF16", layout="NHWC")
    before = native.decide(problem.native(), "sm_90")
    install(aten=9.0, gpu_tma_gemm_128x128=1.0)
    assert native.decide(problem.native(), "sm_90") == before


def test_candidates_run_the_program(no_products):
    reasons = {each.name: each.reason for each in candidates(PRODUCT, "sm_90", "bias.sum")}
    assert reasons["aten"] is None and reasons["gpu_tma_gemm_pingpong_128x192"] is None
    sums = {each.name: each.reason for each in candidates(PRODUCT, "sm_90", "moments.bias.sum")}
    assert sums["aten"] is None and sums["gpu_tma_gemm_pingpong_128x192"] is not None


def test_siblings_are_products_of_a_weight():
    keys = ["gemm-64-32-16-tn-BF16", "gemm-96-16-32-nn-FP16", "gemm-32-16-8-nt-BF16", "gemm-64-16-32-tn-BF16"]
    groups = [geometry_group(ConvProblem.parse(key)) for key in keys]
    assert groups[0] == groups[1] == groups[2] != groups[3]


def test_kinds_of_records_are_not_mixed():
    timings = (Timing("aten", 1.0, 0, "separate"), Timing("gpu_tma_gemm_128x128", 2.0, 0, "fused"))
    product = Record(f"{PRODUCT}+bias.relu", timings)
    assert decided([product, Record(str(PRODUCT), timings)]) == "products"
    for other in (PRODUCT.replace(n=2), f"{PRODUCT.replace(n=2)}+bias"):
        with pytest.raises(ValueError, match="train a selector on each kind"):
            decided([product, Record(str(other), timings)])
    dataset = make_dataset([("sm_90", [product, Record(f"{PRODUCT}+bais", timings)])])
    assert len(dataset) == 1 and dataset.left_out == {"of programs that are not known": 1}


@pytest.mark.slow
def test_learns_one_file_for_two_gpus(no_products, tmp_path, capsys):
    arguments = []
    for device in ("sm_90", "sm_90:H100"):
        path = tmp_path / f"{device[-4:]}.fdb.txt"
        write_timings(path, made_up_records(tasks(260, seed=0), device))
        arguments.append(f"{device}={path}")
    out = tmp_path / "mine.pt"
    assert main(["train", "--arch", "sm_90", "--timings", *arguments, "--out", str(out)]) == 0
    weights = weights_file.load(out)
    assert weights.name == "sm_90-products" and set(weights.candidates) <= {"aten", *SOLVERS}
    weights.activate()
    for device in ("sm_90", "sm_90:H100"):
        slow = []
        for task in tasks(150, seed=1):
            times = made_up_records([task], device)[0].times
            name = chosen(task.epilogue, device, task.problem) if task.epilogue else _alone(task.problem, device)
            slow.append(math.log(times[name] / min(times.values())))
        assert math.exp(sum(slow) / len(slow)) < 1.04, "products that were never trained on"
    capsys.readouterr()
    assert main(["explain", f"{PRODUCT}+bias.store.gelu", "--device", "sm_90:H100"]) == 0
    text = capsys.readouterr().out
    assert "matrix product of 12608x768 and 768x3072, bfloat16, the second transposed" in text
    assert "epilogue bias.store.gelu: in " in text and "probable" in text and "the selector's most probable" in text
    assert main(["replay", "--timings", arguments[1], "--weights", str(out), "--held-out", "--peer", "aten"]) == 0
    assert "over aten" in capsys.readouterr().out


def _alone(problem: ConvProblem, device: str) -> str:
    return NAMES[native.decide(problem.native(), device)]


def test_explain_without_weights(no_products, capsys):
    assert main(["explain", f"{PRODUCT}+bias.relu", "--device", "sm_90"]) == 0
    text = capsys.readouterr().out
    assert text.count("by a table, as there are no weights for matrix products") == 2


def measured_records() -> list[Record]:
    """The products of benchmarks/product_epilogues.py as records."""
    texts = {"alone": "", "bias and relu": "bias.relu", "residual": "bias.residual"}
    texts |= {"gelu": "bias.store.gelu", "gelu's gradient": "gelu_grad"}
    rows: dict[str, dict[str, float]] = {}
    with RESULTS.open() as file:
        for row in csv.DictReader(file):
            sizes, _, name = row["case"].partition(" ")
            if name not in texts:  # input gradients and sums, which a database of products has no keys for
                continue
            m, k, n = sizes.split("x")
            key = str(Task(ConvProblem.parse(f"gemm-{m}-{n}-{k}-tn-BF16"), texts[name]))
            separate = "cuBLAS" if name == "alone" else "cuBLAS and stitched"
            if row["provider"] in (separate, *NAMES):
                solver = "aten" if row["provider"] == separate else row["provider"]
                rows.setdefault(key, {})[solver] = float(row["p50"]) / 1e3
    return [Record(key, tuple(Timing(name, ms, 0, "") for name, ms in of.items())) for key, of in rows.items()]


def test_measured_products_are_records(no_products):
    """The table's choices on an H200 are rarely far from the fastest."""
    records = measured_records()
    dataset = make_dataset([("sm_90", records)])
    assert len(dataset) == len(records) == 30 and not dataset.left_out and dataset.decides == "products"
    fused = [record for record in records if record.epilogue]
    slow = [
        math.log(each.times[chosen(each.epilogue, problem=each.problem)] / min(each.times.values())) for each in fused
    ]
    assert math.exp(sum(slow) / len(slow)) < 1.03


def test_the_shipped_weights():
    """Their choices are rarely far from the fastest: on an H100 whose times they were trained on, and on an H200."""
    h100 = RESULTS.parents[1] / "h100"
    trained_on = [each for name in ("products", "products-drawn") for each in read_timings(h100 / f"{name}.fdb.txt.xz")]
    for device, records in (("sm_90:H100", trained_on), ("sm_90", measured_records())):
        slow = []
        for each in records:
            with config(forbid=[name for name in NAMES if name not in each.times]):  # not all tiles were timed
                name = chosen(each.epilogue, device, each.problem) if each.epilogue else _alone(each.problem, device)
            slow.append(math.log(each.times[name] / min(each.times.values())))
        assert math.exp(sum(slow) / len(slow)) < 1.03


@pytest.fixture
def two_ways(monkeypatch):
    """On a CPU: PyTorch's convolution and the tests' oracle, each before a kernel of the program's own."""
    ways = {"aten": "separate", "reference": "fused"}
    monkeypatch.setattr(measure_epilogue, "kernels", lambda problem, epilogue, device: ways)
    monkeypatch.setattr(collect, "kernels", measure_epilogue.kernels)
    monkeypatch.setattr(collect, "compile_kernels", lambda tasks, device: None)
    monkeypatch.setattr(collect.signal, "signal", lambda *_: None)


def test_collects_products(two_ways, tmp_path, capsys):
    problems, database = tmp_path / "products.txt", tmp_path / "db.fdb.txt"
    keys = ["gemm-40-24-16-tn-FP32+bias.store.gelu", "gemm-40-24-16-tn-FP32+gelu_grad", "gemm-24-16-40-nt-FP32"]
    problems.write_text("\n".join(keys))
    assert main(["collect", "--problems", str(problems), "--out", str(database)]) == 0
    records = {record.key: record for record in read_timings(database)}
    assert list(records) == keys
    for key in keys[:2]:
        assert records[key].algorithms == {"aten": "separate", "reference": "fused"}
        assert all(ms > 0 for ms in records[key].times.values())
    assert "aten" in records[keys[2]].times
    assert main(["collect", "--problems", str(problems), "--out", str(database)]) == 0  # nothing is left to do
    assert main(["verify", "--problems", str(problems)]) == 0
    assert "3 problems" in capsys.readouterr().out


def test_wrong_programs_are_found(two_ways, tmp_path, monkeypatch, capsys):
    call = measure_epilogue._call

    def wrong(*arguments):
        run = call(*arguments)
        return lambda: [result + (config.settings().force == "reference") for result in run()]

    from torch_reformer.runtime import config

    monkeypatch.setattr(measure_epilogue, "_call", wrong)
    problems = tmp_path / "products.txt"
    problems.write_text("gemm-40-24-16-tn-FP32+bias.relu")
    assert main(["verify", "--problems", str(problems)]) == 1
    assert "gemm-40-24-16-tn-FP32+bias.relu: reference: its result is wrong" in capsys.readouterr().err


def test_samples_for_verification():
    found = list(verify.products())
    assert {task.problem.direction for task in found} == set("FBW")
    assert all(task.problem.is_product for task in found) and any(task.epilogue for task in found)
