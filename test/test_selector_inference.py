"""The selector in C++: its logits equal PyTorch's, and the choices follow from them."""

import math
import threading

import hypothesis
import pytest
import torch
from cases import examples
from hypothesis import strategies as st
from selectors_for_tests import constant, description, install, reformer

import torch_reformer
from torch_reformer import ConvProblem, config
from torch_reformer.runtime import native
from torch_reformer.selector.candidates import candidates

KEYS = [
    "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP32-F",
    "64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-FP32-B",
    "3-224-224-7x7-64-112-112-8-3x3-2x2-1x1-1-NCHW-FP32-F",
    "256-14-14-1x1-1024-14-14-16-0x0-1x1-1x1-0-NCHW-BF16-W",
    "32-28-28-5x5-32-28-28-4-2x2-1x1-1x1-0-NCHW-FP64-F_g32",
    "1-1-1-1x1-1-1-1-1-0x0-1x1-1x1-0-NCHW-FP32-F",
    "4096-1-1-1x1-20000-1-1-1-0x0-1x1-1x1-0-NCHW-FP32-F",
]
PROBLEMS = [ConvProblem.parse(key) for key in KEYS]
HERE = native.device(None).split("-")[1]
ISAS = native.ISAS[: native.ISAS.index(HERE) + 1]

pytestmark = pytest.mark.usefixtures("static_rule")


@st.composite
def any_problem(draw) -> ConvProblem:
    size = st.integers(1, 300)
    groups, filter = draw(st.sampled_from([1, 1, 1, 2, 8])), draw(st.sampled_from([1, 3, 5]))
    direction = draw(st.sampled_from("FBW"))
    return ConvProblem(
        n=draw(st.integers(1, 64)),
        c=groups * draw(size),
        h=draw(st.integers(filter, 200)),
        w=draw(st.integers(filter, 200)),
        k=groups * draw(size),
        r=filter,
        s=filter,
        pad_h=draw(st.integers(0, 2)),
        stride_w=draw(st.integers(1, 3)),
        groups=groups,
        direction=direction,
        dtype=draw(st.sampled_from(["FP32", "BF16", "FP64"])),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
    )


@pytest.mark.parametrize("problem", [problem for problem in PROBLEMS if problem.direction == "F"], ids=str)
def test_a_bias_decides_nothing(problem):
    """No database has timings with a bias, so a weight for it would stay untrained."""
    without, biased = (native.features([problem.replace(bias=bias).native()], None) for bias in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(without, biased, strict=True))


def natives(problems):
    return [problem.native() for problem in problems]


def by_pytorch(model, problems, device=None) -> torch.Tensor:
    rows, weights = native.features(natives(problems), device)
    with torch.no_grad():
        return model(rows.long(), weights)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("width", "hidden", "blocks", "count"),
    [(16, 16, 1, 1), (16, 64, 3, 17), (32, 128, 2, 80), (48, 80, 2, 33), (64, 256, 1, 16), (128, 512, 2, 256)],
)
def test_logits_are_pytorch(isa, width, hidden, blocks, count):
    model = reformer(count, width, hidden, blocks)
    install(model, [f"kernel {index}" for index in range(count)])
    got = native.logits(natives(PROBLEMS), None, isa)
    torch.testing.assert_close(got, by_pytorch(model, PROBLEMS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_logits_of_extreme_weights(isa):
    """Weights of several units: exponents of hundreds."""
    model = reformer(8, 32, 64, 1, scale=4)
    install(model, [f"kernel {index}" for index in range(8)])
    got, want = native.logits(natives(PROBLEMS), None, isa), by_pytorch(model, PROBLEMS)
    torch.testing.assert_close(got, want, atol=1e-5 * want.abs().max().item(), rtol=1e-5)


@hypothesis.given(st.lists(any_problem(), min_size=1, max_size=8), st.integers(1, 64))
@hypothesis.settings(max_examples=examples(30), suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_logits_of_any_problem(problems, threads):
    torch.manual_seed(1)
    model = reformer(9, 32, 32, 2)
    install(model, config.solvers()[:9])
    device = f"cpu-avx2-{threads}t"
    want = by_pytorch(model, problems, device)
    torch.testing.assert_close(native.logits(natives(problems), device), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_most_probable_that_applies_is_chosen(problem):
    names = config.solvers()
    for seed in range(20):
        torch.manual_seed(seed)
        order = [names[index] for index in torch.randperm(len(names))]
        install(reformer(len(names)), order)
        (logits,) = native.logits([problem.native()])
        actual = candidates(problem)
        apply = {candidate.name: logits[order.index(candidate.name)] for candidate in actual if not candidate.reason}
        (chosen,) = [candidate for candidate in actual if candidate.chosen]
        assert chosen.name == max(apply, key=apply.get)
        want = torch.stack(list(apply.values())).softmax(0).tolist()
        assert [c.probability for c in actual if not c.reason] == pytest.approx(want, rel=1e-4)
        assert all(c.probability is None for c in actual if c.reason)


def chosen(problem=PROBLEMS[0]) -> str:
    (choice,) = native.decide_all([problem.native()]).tolist()
    assert choice == native.decide(problem.native())
    return config.solvers()[choice]


def test_unknown_candidates_come_last():
    by_rule = chosen()
    assert by_rule != "direct"
    install(constant([1.0, -50.0]), ["of another version", "direct"])
    assert chosen() == "direct"
    with config(forbid=["direct"]):
        assert chosen() == by_rule
    install(constant([1.0]), ["of another version"])
    assert chosen() == by_rule
    assert all(candidate.probability is None for candidate in candidates(PROBLEMS[0]))


def test_ties_go_to_the_earlier_solver():
    names = config.solvers()
    install(constant([0.5] * len(names)), names[::-1])
    assert chosen() == "aten"


def test_what_refuses_is_not_chosen():
    names = config.solvers()
    for preferred in names:
        install(constant([float(name == preferred) for name in names]), names)
        for problem in PROBLEMS:
            matches = [candidate for candidate in candidates(problem) if candidate.name == preferred]
            may_be_chosen = matches and matches[0].reason is None  # GPU solvers are not among the candidates
            assert (chosen(problem) == preferred) == bool(may_be_chosen)
            with config(forbid=[preferred] if preferred != "aten" else []):
                assert preferred == "aten" or chosen(problem) != preferred


def test_settings_come_before_the_selector():
    install(constant([1.0, 0.0]), ["implicit_gemm", "aten_nhwc"])
    assert chosen() == "implicit_gemm"
    with config(force="aten_nhwc", reduced_accuracy=True):
        assert chosen() == "aten_nhwc"
    with config(workspace_limit=0):
        assert chosen() == "implicit_gemm" and candidates(PROBLEMS[0])[1].probability is None


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
def test_damaged_weights(damage):
    """Solvers that refuse the problem are not chosen, whatever the logits are."""
    names = config.solvers()
    by_rule = [chosen(problem) for problem in PROBLEMS]
    for name in constant([0.0]).state_dict():
        model = reformer(len(names))
        with torch.no_grad():
            model.get_parameter(name).fill_(damage)
        install(model, names)
        for problem, rule in zip(PROBLEMS, by_rule, strict=True):
            offered = candidates(problem)
            (choice,) = [candidate for candidate in offered if candidate.chosen]
            assert choice.reason is None
            if native.logits([problem.native()]).isnan().all():
                assert choice.name == rule


def test_decisions_are_forgotten():
    problem = PROBLEMS[0].native()
    names = config.solvers()

    def misses() -> int:
        before = native.cache_counts()[1]
        native.decide(problem)
        return native.cache_counts()[1] - before

    chosen()
    assert misses() == 0
    install(constant([1.0]), ["direct"])
    assert misses() == 1 and misses() == 0 and names[native.decide(problem)] == "direct"
    install(constant([1.0]), ["implicit_gemm"])
    assert misses() == 1 and names[native.decide(problem)] == "implicit_gemm"
    native.remove_selector("cpu")
    assert misses() == 1


def test_the_decision_cache_keeps_a_network():
    """A few hundred problems do not displace each other."""
    problems = natives(ConvProblem(n=1, c=c, h=h, w=h, k=16, r=1, s=1) for c in range(1, 16) for h in range(1, 21))
    native.decide_all(problems)
    before = native.cache_counts()[1]
    native.decide_all(problems)
    assert native.cache_counts()[1] - before <= len(problems) // 50


def test_many_more_problems_than_are_remembered():
    problems = natives(ConvProblem(n=1, c=c, h=h, w=3, k=8, r=1, s=1) for c in range(1, 101) for h in range(1, 61))
    install(reformer(len(config.solvers())), config.solvers())
    first = native.decide_all(problems).tolist()
    assert native.decide_all(problems).tolist() == first == [native.decide(problem) for problem in problems]


def test_convolutions_run_what_is_chosen():
    x, w = torch.randn(2, 16, 9, 9), torch.randn(8, 16, 3, 3)
    for name in config.solvers()[:-1]:
        install(constant([1.0]), [name])
        torch.testing.assert_close(torch_reformer.conv2d(x, w), torch.conv2d(x, w), atol=1e-4, rtol=1e-4)


def test_other_devices_have_selectors_of_their_own():
    install(constant([0.0, 1.0]), ["aten", "direct"])
    install(constant([0.0, 1.0, 2.0]), ["aten_nhwc", "aten", "a GPU's kernel"], arch="gfx942")
    try:
        problem = PROBLEMS[0].native()
        assert native.logits([problem], "gfx942").tolist() == [[0, 1, 2]]
        assert native.logits([problem], "cpu-plain-3t").tolist() == [[0, 1]]
        assert config.solvers()[native.decide(problem, "gfx942")] == "aten"
        assert config.solvers()[native.decide(problem, "cpu-plain-3t")] == "direct"
        with pytest.raises(ValueError, match="there is no selector for sm_80"):
            native.logits([problem], "sm_80")
    finally:
        native.remove_selector("gfx942")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"feature_version": 999}, r"version 999 of the features, and this is version \d+.*torch_reformer train"),
        ({"width": 24}, r"device must have shape \(1, 24\)|embedding must have shape"),
        ({"candidates": ["aten", "aten"]}, '"aten" is named twice'),
        ({"candidates": ["aten"]}, r"head.weight must have shape \(1, 16\), got \(2, 16\)"),
        ({"blocks": 2}, "do not make a selector of 2 blocks: blocks.1.down.bias, .* missing or too many"),
        ({"tensors": {}}, "missing or too many"),
    ],
)
def test_errors(change, sentence):
    by_rule = chosen()
    with pytest.raises(ValueError, match=sentence):
        native.set_selector("cpu", **{**description(constant([0.0, 1.0]), ["aten", "direct"]), **change})
    assert chosen() == by_rule and native.selector("cpu") is None


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (dict(width=24), "width must be a multiple of 16 up to 128, got 24"),
        (dict(width=144), "width must be a multiple of 16 up to 128, got 144"),
        (dict(hidden=8), "hidden width must be a multiple of 16 up to 512, got 8"),
        (dict(hidden=528), "hidden width must be a multiple of 16 up to 512, got 528"),
        (dict(blocks=17), "1 to 16 blocks, got 17"),
        (dict(candidates=257), "1 to 256 candidates, got 257"),
    ],
)
def test_shapes_that_are_refused(model, sentence):
    model = reformer(**{"candidates": 2, **model})
    with pytest.raises(ValueError, match=sentence):
        install(model, [f"kernel {index}" for index in range(model.head.out_features)])


def test_other_errors():
    model = constant([0.0])
    with pytest.raises(ValueError, match='"cpu-avx512-2t" is no architecture'):
        install(model, ["aten"], arch="cpu-avx512-2t")
    model.embedding = torch.nn.Parameter(model.embedding[:-1].clone())
    with pytest.raises(ValueError, match=r"embedding must have \d+ rows"):
        install(model, ["aten"])
    with pytest.raises(ValueError, match="there is no selector for cpu-plain-1t"):
        native.logits([PROBLEMS[0].native()], "cpu-plain-1t")


def test_threads_decide_while_selectors_are_set():
    problems = natives(PROBLEMS)
    names = config.solvers()
    models = [(constant([1.0]), ["aten"]), (reformer(len(names), 32, 128, 2), names)]
    right = []
    for model in models:
        install(*model)
        right.append(native.decide_all(problems).tolist())
    failures, stop = [], threading.Event()

    def work():
        try:
            while not stop.is_set():
                actual = native.decide_all(problems).tolist()
                assert all(choice in pair for choice, pair in zip(actual, zip(*right, strict=True), strict=True))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for turn in range(300):
        install(*models[turn % 2])
    stop.set()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]
    assert native.decide_all(problems).tolist() == right[1]
