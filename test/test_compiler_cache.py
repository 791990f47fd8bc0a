"""Plans in PyTorch's cache of compiled graphs (runtime/compiled.py): valid ones are loaded, others are not used."""

import contextlib
import copy
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import partial_cases
import pytest
import torch
import training_models
from marks import needs_aten
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from training_models import step

import torch_reformer
from torch_reformer.compiler.backend import reformer
from torch_reformer.compiler.joint_graph import pack_saved
from torch_reformer.compiler.runtime import compiled, dynamic, executable

pytestmark = needs_aten
SCRIPT = Path(__file__).with_name("training_models.py")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with functorch_config.patch(enable_autograd_cache=True):
        yield tmp_path


def outcome(model, inputs, **options):
    """Results of a training step that is compiled anew, and the cache's counters."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    own = copy.deepcopy(model)
    found = step(torch.compile(own, backend=reformer, **options), own, inputs)
    counted = {name.removeprefix("autograd_cache_"): n for name, n in counters["aot_autograd"].items()}
    return [*found, *own.buffers()], counted


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", training_models.MODELS)
def test_plans_are_found_again(name):
    model, inputs = training_models.make(name)
    made, first = outcome(model, inputs)
    found, then = outcome(model, inputs)
    assert first.get("saved", 0) > 0 and "hit" not in first
    assert then.get("hit") == first["saved"] and "miss" not in then
    same(found, made)


@pytest.mark.parametrize("how", ["fused", "compiled"])
def test_equal_layers_are_planned_once(how):
    """Also in the process that planned the first: compiled one by one, as regions or experts are, the others are found
    whatever their parameters."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, x):
            return x + self.norm(torch.relu(self.linear(x)))

    torch._dynamo.reset()
    counters.clear()
    layers = [Layer() for _ in range(6)]
    model = nn.Sequential(*layers)
    x, expected = torch.randn(4, 16, requires_grad=True), copy.deepcopy(model)
    for each in layers:
        torch_reformer.fuse(each) if how == "fused" else each.compile(backend="reformer")
    found = step(lambda x: model(x).square().mean(), model, [x])
    for got, wanted in zip(found, step(lambda x: expected(x).square().mean(), expected, [x]), strict=True):
        torch.testing.assert_close(got, wanted)
    assert counters["aot_autograd"]["autograd_cache_miss"] == counters["aot_autograd"]["autograd_cache_saved"] == 1


def test_reports():
    """A loaded plan has the report of a new one. Reports that nobody asked for are not in the cache."""
    model, inputs = training_models.make("densenet")
    outcome(model, inputs)
    reports = [], []
    for each in reports:
        outcome(model, inputs, options={"report": each.append})
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    assert len(reports[0]) == 2 and list(map(str, reports[0])) == list(map(str, reports[1]))


@pytest.mark.parametrize("name", ["planner.py", "costs.json", "_C.abi3.so"])
def test_what_a_state_of_the_package_is(name, tmp_path, monkeypatch):
    """The state contains the package's code and the tables by which plans are chosen."""
    monkeypatch.setattr(compiled, "PACKAGE", tmp_path)
    (tmp_path / name).write_text("1")
    before = compiled._package.__wrapped__()
    (tmp_path / name).write_text("12")
    assert compiled._package.__wrapped__() != before


def test_another_state_of_the_package(monkeypatch):
    model, inputs = training_models.make("densenet")
    made, _ = outcome(model, inputs)
    monkeypatch.setattr(compiled, "_package", lambda: "another")
    found, counted = outcome(model, inputs)
    assert "hit" not in counted and counted["saved"] == 1
    same(found, made)


def test_kernels_of_attention_that_are_switched_off():
    def attention(x):
        return nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 2, 8, 16)
    for kernels in ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], [SDPBackend.MATH]):
        torch._dynamo.reset()
        counters.clear()
        with sdpa_kernel(kernels):
            torch.testing.assert_close(torch.compile(attention, backend=reformer)(x), attention(x))
        assert "autograd_cache_hit" not in counters["aot_autograd"]


class Constants(nn.Module):
    """A graph with constants and random numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return nn.functional.dropout(self.layer(x) * scale, 0.5).square().sum()


def test_constants_and_random_numbers():
    model, inputs = Constants(), [torch.randn(8, 4)]
    made, _ = outcome(model, inputs)
    found, counted = outcome(model, inputs)
    assert counted["hit"] == 1
    same(found, made)


def test_a_graph_that_is_mostly_without_a_plan():
    """It is found again, and the user is warned again."""

    def function(x):
        return torch.view_as_real(torch.view_as_complex(x * 2).conj().resolve_conj()).sum()

    x, reports = torch.randn(4, 2), []
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        run = torch.compile(function, backend=reformer, options={"report": lambda report: reports.append(str(report))})
        with pytest.warns(UserWarning, match="operators of a graph run without a plan") as caught:
            torch.testing.assert_close(run(x), function(x))
        assert len(caught) == 1
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1 and reports[0] == reports[1]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.filterwarnings("ignore:.*operators of a graph run without a plan")
@pytest.mark.parametrize("name", partial_cases.CASES)
def test_partial_plans(name, planned, monkeypatch):
    """They are found again, and nothing is planned, but where PyTorch does not cache the graph, and where sizes of the
    backward's inputs depend on values (of a state of a random generator)."""
    monkeypatch.setattr(pack_saved, "_FEWEST_COPIED", 4)  # also with small tensors that are saved as one
    torch.manual_seed(0)
    model, x = partial_cases.Model(partial_cases.CASES[name][0]), torch.randn(4, 8, 32, dtype=torch.float64)
    made, first = outcome(model, [x])
    planned.clear()
    found, then = outcome(model, [x])
    same(found, made)
    is_cached = name not in ("inverse", "solve", "Cholesky", "selective checkpoint", "branches", "loop")
    assert ("saved" in first) == ("hit" in then) == is_cached
    assert (not planned) == (is_cached and name != "random in a checkpoint")


class Rows(nn.Module):
    """Sizes in views, tables, constants and floating-point arithmetic."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x):
        y = self.layer(x).relu().unflatten(-1, (2, 4)).transpose(0, 1)
        return (y.softmax(1) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum() / (x.shape[0] * 0.5) + y.mean()


def steps_of_lengths(model, lengths, planned):
    """Losses and gradients of steps of some lengths, compiled anew, and the number of plans that are made."""
    torch._dynamo.reset()
    planned.clear()
    counters.clear()
    own = copy.deepcopy(model)
    run, found = torch.compile(own, backend=reformer, dynamic=True), []
    for rows in lengths:
        torch.manual_seed(rows)
        x = torch.randn(rows, 4)
        results, expected = (
            [each.clone() for each in step(call, each, [x])] for call, each in ((run, own), (model, model))
        )
        model.zero_grad()
        own.zero_grad()
        for one, other in zip(results, expected, strict=True):
            torch.testing.assert_close(one, other)
        found += results
    return found, len(planned)


@pytest.fixture
def planned(monkeypatch):
    """Has an item for each plan that is made."""
    found, init = [], executable.Executable.__init__

    def counted(*args):
        found.append(1)
        init(*args)

    monkeypatch.setattr(executable.Executable, "__init__", counted)
    return found


def test_many_sizes(planned):
    """Templates that were made are found again, for sizes that were not seen, too; further ones are added."""
    model = Rows()
    made, count = steps_of_lengths(model, (30, 50, 40), planned)
    assert count == 2  # forward and backward
    found, count = steps_of_lengths(model, (30, 50, 40), planned)
    assert count == 0 and counters["aot_autograd"]["autograd_cache_hit"] == 1
    same(found, made)
    _, count = steps_of_lengths(model, (70, 3), planned)  # a mean over so few elements is computed in another way
    assert count > 0
    found, count = steps_of_lengths(model, (3, 70, 41), planned)
    assert count == 0


def test_sizes_that_are_planned_alone(folder, monkeypatch):
    """Stored templates that serve one tuple of sizes each do not keep a later process from giving up."""
    monkeypatch.setattr(dynamic, "_TRIED", 3)
    run = functools.partial(torch.compile, lambda x: x.exp().sum(1), backend=reformer, dynamic=True)
    for count in (3, 4):
        torch._dynamo.reset()
        compiled_again = run()
        for rows in range(2, 8):
            x = torch.randn(6, rows, 40)
            torch.testing.assert_close(compiled_again(x), x.exp().sum(1))
        assert len([*folder.rglob("*.template")]) == count


def test_reports_of_stored_templates():
    model, x = Rows(), torch.randn(30, 4)
    reports = [], []
    for each in reports:
        torch._dynamo.reset()
        torch.compile(model, backend=reformer, dynamic=True, options={"report": each.append})(x).backward()
    assert len(reports[0]) == 2 and [*map(str, reports[0])] == [*map(str, reports[1])]


@pytest.mark.parametrize("content", [b"", b"nonsense", None], ids=["empty", "nonsense", "a folder"])
def test_damaged_templates(content, folder, planned):
    """They are made again."""
    model = Rows()
    made, count = steps_of_lengths(model, (30, 50), planned)
    files = [*folder.rglob("*.template")]
    assert len(files) == count == 2
    for file in files:
        file.unlink()
        file.mkdir() if content is None else file.write_bytes(content)
    found, count = steps_of_lengths(model, (30, 50), planned)
    assert count == 2
    same(found, made)


def test_a_folder_that_cannot_be_written(folder, planned):
    model = Rows()
    (folder / "reformer").write_text("a file")
    for _ in range(2):
        _, count = steps_of_lengths(model, (30, 50), planned)
        assert count == 2


def test_templates_need_the_cache(folder, planned):
    with functorch_config.patch(enable_autograd_cache=False):
        steps_of_lengths(Rows(), (30, 50), planned)
    assert not [*folder.rglob("*.template")]


FACTOR = 2.0


def times_factor(x):
    return Times.apply(x)


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * FACTOR


def define_operator():
    """A custom operator, whose gradient has the factor."""
    operator = torch.library.custom_op(
        "foreign::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda ctx, grad, factor=FACTOR: grad * factor)
    return torch.ops.foreign.twice


def define_composite():
    """A composite operator, which tracing decomposes."""
    with contextlib.suppress(RuntimeError):  # defined already
        torch.library.define("foreign::times", "(Tensor x) -> Tensor")
    with contextlib.suppress(RuntimeError):
        LIBRARY.clear()
        LIBRARY.append(torch.library.Library("foreign", "IMPL"))
        LIBRARY[0].impl("times", lambda x, factor=FACTOR: x * factor, "CompositeImplicitAutograd")
    return torch.ops.foreign.times


LIBRARY: list = []
FOREIGN = {
    "operator": define_operator,
    "composite": define_composite,
    "allowed in graphs": lambda: torch.compiler.allow_in_graph(times_factor),
    "autograd function": lambda: Times.apply,
}


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_code_that_changes(name, is_checkpointed, monkeypatch):
    """Foreign code has its present gradient, and not the one that it had when the cache was filled."""
    for factor in (2.0, 3.0):
        monkeypatch.setattr(sys.modules[__name__], "FACTOR", factor)
        function, x = FOREIGN[name](), torch.ones(4, requires_grad=True)

        def loss(x, function=function):
            return function(x).sum()

        torch._dynamo.reset()
        run = torch.compile(lambda x: checkpoint(loss, x, use_reentrant=False) if is_checkpointed else loss(x),
                            backend=reformer)  # fmt: skip
        run(x).backward()
        assert torch.equal(x.grad, torch.full((4,), factor))


FLOATS = {
    "clamp": lambda x, c: x.clamp(max=c) * c,
    "full_like": lambda x, c: torch.full_like(x, c) + c * x,
    "alpha": lambda x, c: torch.add(x, x, alpha=c) * c,
    "int": lambda x, c: x * int(c) + c,
    "comparison": lambda x, c: x * c * (c > 1),
    "rounded": lambda x, c: x * round(c) + c,
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats_that_change(name):
    """AOTAutograd makes constants of some, whose values the cache's key does not have."""
    torch._dynamo.reset()
    x = torch.full((2,), 9.0, requires_grad=True)
    run = torch.compile(FLOATS[name], backend=reformer)
    for c in (2.0, 2.5, 0.5, 3.0, 0.5):
        found, expected = (
            (out := function(x, c), *torch.autograd.grad(out.sum(), x)) for function in (run, FLOATS[name])
        )
        torch.testing.assert_close(found, expected)


def test_checkpoints_are_cached():
    """PyTorch's functions in checkpoints are identified by PyTorch's version."""
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        run = torch.compile(lambda x: checkpoint(lambda x: layer(x).relu(), x, use_reentrant=False), backend=reformer)
        run(x).sum().backward()
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", None], ids=["empty", "nonsense", "half"])
def test_a_damaged_file(folder, content):
    model, inputs = training_models.make("densenet")
    made, _ = outcome(model, inputs)
    (file,) = (each for each in folder.rglob("aotautograd/*/*") if each.is_file())
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if content is None else content)
    found, counted = outcome(model, inputs)
    assert "hit" not in counted
    same(found, made)


CODE = """
import sys
import torch
from torch._dynamo.utils import counters
import training_models
from torch_reformer.compiler.backend import reformer

model, inputs = training_models.make(sys.argv[1])
print("compiling", flush=True)
found = training_models.step(torch.compile(model, backend=reformer), model, inputs)
print(counters["aot_autograd"]["autograd_cache_hit"], [each.double().sum().item() for each in found])
"""


def process(folder, name) -> subprocess.Popen:
    paths = os.pathsep.join([str(SCRIPT.parent), str(SCRIPT.parents[1])])
    environment = os.environ | {"PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    return subprocess.Popen([sys.executable, "-c", CODE, name], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_another_process_finds_them(folder):
    one, other = (process(folder, "densenet").communicate()[0].split("\n")[1].split(" ", 1) for _ in range(2))
    assert [one[0], other[0]] == ["0", "1"] and one[1] == other[1]


@pytest.mark.slow
def test_killed_while_plans_are_written(folder):
    """A later process has correct results, whenever the earlier one was killed."""
    expected = process(folder / "other", "densenet").communicate()[0].split("\n")[1].split(" ", 1)[1]
    began = time.monotonic()
    process(folder / "third", "densenet").communicate()
    longest = time.monotonic() - began
    for part in (0.5, 0.7, 0.8, 0.9, 0.95):
        with process(folder, "densenet") as started:
            time.sleep(part * longest)
            with contextlib.suppress(ProcessLookupError):
                os.kill(started.pid, signal.SIGKILL)
    for _ in range(2):
        assert process(folder, "densenet").communicate()[0].split("\n")[1].split(" ", 1)[1] == expected


@pytest.mark.gpu
def test_cuda_graphs():
    model, inputs = training_models.make("resnet")
    model, inputs = model.cuda(), [each.cuda() for each in inputs]
    with torch.backends.cudnn.flags(deterministic=True):
        made = [each.clone() for each in outcome(model, inputs, mode="reduce-overhead")[0]]  # not in graphs' memory
        found, counted = outcome(model, inputs, mode="reduce-overhead")
    assert counted["hit"] == 1
    same(found, made)


def test_data_is_assigned():
    """PyTorch's check of what may be cached raises an AttributeError for the method that sets it."""

    def function(x, y):
        x.data = y
        return x * 2

    torch._dynamo.reset()
    x, y = torch.ones(6, requires_grad=True), torch.arange(6.0)
    torch.compile(function, backend=reformer, fullgraph=True)(x, y).sum().backward()
    assert torch.equal(x.detach(), y) and torch.equal(x.grad, torch.full((6,), 2.0))
