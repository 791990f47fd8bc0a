"""``python -m torch_reformer plan``, as a new user has it: models and inputs of all kinds, and what is no model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.__main__ import main
from torch_reformer.compiler import pipeline
from torch_reformer.compiler.analysis import fake_gpu
from torch_reformer.compiler.cli import Stopped, planned, recorded
from torch_reformer.compiler.ir.fake_tensors import Unsupported

ROOT = Path(__file__).parent.parent
pytestmark = needs_aten
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")

MODELS = """
import dataclasses
import torch
from torch import nn
from torch.nn import functional as F

def images():
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*layers), (torch.randn(2, 3, 8, 8),)

def volumes():
    return nn.Sequential(nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU()), (torch.randn(2, 3, 8, 8, 8),)

def product():
    return nn.Linear(4096, 4096, bias=False), torch.randn(4096, 4096)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(1024, 3072), nn.Linear(1024, 1024)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 16, 64)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

def attention():
    return Attention(), (torch.randn(8, 1024, 1024),)

class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(1024, 1024), nn.Linear(1024, 512), nn.Linear(1024, 1024)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (16, 64)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 4, 64)).permute(2, 0, 3, 1, 4)
        k, v = (each[:, :, None].expand(-1, -1, 4, -1, -1).reshape(q.shape) for each in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

def grouped():
    return Grouped(), (torch.randn(8, 1024, 1024),)

def grouped_in_fp32():
    return grouped()

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(x).relu()

def broken():
    return Broken(), (torch.randn(4, 8),)

class ByValues(Broken):
    def forward(self, x):
        x = self.first(x).relu()
        if x.sum() > 0:
            x = x * 2
        return self.second(x)

def by_values():
    return ByValues(), (torch.randn(4, 8),)

@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    scores: torch.Tensor

class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.scores = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, tokens, labels=None, scale=1.0):
        scores = self.scores(self.words(tokens)) * scale
        return Result(F.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores)

def by_name():
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    return ByName(), {"labels": tokens, "tokens": tokens, "scale": 2.0}

class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, batch):
        return self.layer(batch["x"][0])

def nested():
    return Nested(), ({"x": [torch.randn(2, 3)]},)

def frozen():
    return nn.Linear(3, 3).requires_grad_(False), torch.randn(2, 3)

def function():
    return (lambda x, y: (x * y).sum()), (torch.randn(3, requires_grad=True), torch.randn(3))

class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("turns", torch.polar(torch.ones(6, 4), torch.rand(6, 4)))

    def forward(self, x):
        pairs = torch.view_as_complex(F.gelu(self.layer(x)).unflatten(-1, (4, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2).exp().tanh().square()

def rotary():
    return Rotary(), torch.randn(3, 6, 8)

def step():
    import torch_reformer
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 5))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = lambda model, x, y: F.cross_entropy(model(x), y)
    return torch_reformer.training_step(model, loss, optimizer, ema=average), (
        torch.randn(4, 3, 8, 8), torch.randint(5, (4,)))

def only_a_model():
    return nn.Linear(3, 3)

def nothing():
    pass

def three():
    return nn.Linear(3, 3), torch.randn(2, 3), torch.randn(2, 3)

def other_way_round():
    return (torch.randn(2, 3),), nn.Linear(3, 3)

def of_an_argument(x):
    pass

def failing():
    raise KeyError("weights.pt")

def wrong_sizes():
    return nn.Linear(3, 3), torch.randn(2, 4)

def too_few():
    return nn.Bilinear(3, 3, 3), torch.randn(2, 3)

class OnTheCpu(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.shift = nn.Linear(3, 3), torch.randn(3)

    def forward(self, x):
        return self.layer(x) + self.shift

def on_the_cpu():
    return OnTheCpu(), torch.randn(2, 3)

def nothing_computed():
    return nn.Identity(), torch.randn(2, 3)

net = nn.Linear(3, 3)
number = 3
"""


COMMANDS = {
    "images": ["--autocast", "bf16", "--channels-last", "--device", "sm_80"],
    "volumes": ["--autocast", "bf16", "--channels-last"],
    "grouped": ["--autocast", "bf16"],
    **dict.fromkeys(("product", "attention", "broken", "by_values", "by_name", "nested", "frozen", "function"), []),
    "step": [],
    **dict.fromkeys(("grouped_in_fp32", "rotary", "wrong_sizes", "too_few", "on_the_cpu", "nothing_computed"), []),
}
# Runs them all in one process that has the GPU.
COMMANDS_IN_TURN = """
import contextlib, io, json, sys
from torch_reformer.__main__ import main
from torch_reformer.compiler.analysis import fake_gpu
assert fake_gpu.begin()
found = {}
for name, options in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        status = main(["plan", f"new_models:{name}", *options])
    found[name] = out.getvalue(), status
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("models")
    (found / "new_models.py").write_text(MODELS)
    return found


def process(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    command, environment = [sys.executable, *words], os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def printed(folder) -> dict[str, tuple[str, int]]:
    """Each command prints this, and ends with this status."""
    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built for GPUs, and has a backend of its own")
    preload = fake_gpu.environment()["LD_PRELOAD"]
    done = process(folder, "-c", COMMANDS_IN_TURN, json.dumps(COMMANDS), LD_PRELOAD=preload)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not [text for text, _ in found.values() if "Traceback" in text]
    return found


def lines_of(text: str) -> list[tuple[float, str]]:
    """Expected microseconds, and what for."""
    found = re.findall(r"^ *([\d.]+) +[\d.]+ +[\d.]+  (\S.*)$", text, re.M)
    return [(float(us), what) for us, what in found]


@pytest.mark.slow
@needs_no_gpu
def test_the_command_alone(folder):
    """It starts a process that has the GPU."""
    done = process(folder, "-m", "torch_reformer", "plan", "new_models:images")
    assert done.returncode == 0 and not done.stderr
    assert "conv: conv, moments" in done.stdout.split("\nbackward\n")[0]


@needs_no_gpu
@pytest.mark.parametrize("name", ["images", "volumes", "product", "attention", "by_name", "nested", "function"])
def test_models(name, printed):
    text, status = printed[name]
    assert status == 0
    forward, backward = text.split("\nbackward\n")
    assert lines_of(forward) and lines_of(backward) and "graph" not in text
    assert all(us > 3 for us, _ in lines_of(text))  # nothing starts in no time


@needs_no_gpu
def test_a_training_step(printed):
    text, status = printed["step"]
    lines = [line for _, line in lines_of(text)]
    assert status == 0 and text.startswith("whole step\n")
    assert lines[0] == "forward, conv: conv, moments" and "backward, conv_grads: weight" in lines
    update = lines.index("update, aten::_fused_adamw_.tensor_lr")
    assert not any(line.startswith(("forward", "backward")) for line in lines[update:])
    assert any("stitch" in line for line in lines[update:])  # averages


@needs_no_gpu
def test_images(printed):
    forward, backward = printed["images"][0].split("\nbackward\n")
    assert "conv: conv, moments" in forward and "conv_grads" in backward
    assert "kernels and calls move" in forward and " us; one by one " in forward


@needs_no_gpu
def test_products_of_fp32(printed):
    """67 teraflops, at most, and not the 989 of 16 bits."""
    us = [us for us, what in lines_of(printed["product"][0]) if "4096x4096x4096" in what]
    assert us and all(2 * 4096**3 / 67e6 * 0.7 < each for each in us)


@needs_no_gpu
def test_attention_is_the_gpus(printed):
    calls = [each for each in lines_of(printed["attention"][0]) if "scaled_dot_product" in each[1]]
    assert [what.split("::")[1] for _, what in calls] == [
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
    ]
    products = 2 * 8 * 16 * 1024 * 1024 * 64
    assert all(us > 2 * products / 67e6 * 0.7 for us, _ in calls)


@needs_no_gpu
def test_heads_that_queries_share(printed):
    """16-bit keys and values are not repeated. Those in fp32, of which no kernel shares any, are, and no scores are
    stored."""
    for name, kernel, copies in (("grouped", "cudnn", 0), ("grouped_in_fp32", "efficient", 2)):
        forward, _ = printed[name][0].split("\nbackward\n")
        calls = [what for _, what in lines_of(forward)]
        assert sum(f"{kernel}_attention" in each for each in calls) == 1
        assert sum("clone" in each for each in calls) == copies


@needs_no_gpu
def test_operators_without_a_plan(printed):
    """They are lines of the plan, with expected times."""
    text, status = printed["rotary"]
    assert status == 0 and "no plan" not in text
    kinds = [what.split(":")[0] for _, what in lines_of(text)]
    assert "aten" in kinds and "stitch" in kinds
    assert "aten::view_as_complex" in text and " us; one by one" in text


@needs_no_gpu
def test_breaks_are_said(printed):
    """And each graph has its plans."""
    text, status = printed["broken"]
    assert status == 0
    assert "forward of graph 1 of 2" in text and "backward of graph 2 of 2" in text
    (said,) = re.findall(r"graph 1 is broken off: (.*)", text)
    assert said.partition(":")[0].endswith("new_models.py") and "graph_break" in said
    assert said.endswith("; 1 tensor of 0.00 MB must be stored for what follows")
    assert "all: " in text


@needs_no_gpu
def test_without_gradients(printed):
    text, status = printed["frozen"]
    assert status == 0 and lines_of(text) and "backward" not in text


@needs_no_gpu
@pytest.mark.parametrize(
    "name, sentence",
    [
        ("by_values", r"new_models.py:\d+: the model goes by a tensor's values, which only --measure has"),
        ("wrong_sizes", "the model fails: RuntimeError: a and b must have same reduction dim, but got"),
        ("too_few", "the model fails: TypeError: .*missing 1 required positional argument"),
        ("on_the_cpu", r"new_models.py:\d+: the model fails: .*(cuda:0|cpu).*(cuda:0|cpu)"),
        ("nothing_computed", "there is no graph to plan: the model computes nothing from its inputs"),
    ],
)
def test_models_that_fail(name, sentence, printed):
    text, status = printed[name]
    assert status == 2
    assert re.search(f"^torch_reformer plan: .*{sentence}", text, re.M), text


def test_values_keep_what_was_planned():
    """Until the branch."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            x = self.layer(x)
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(Stopped) as stopped:
        recorded(Model(), (torch.randn(2, 8),), gpu="sm_90")
    (graph,) = stopped.value.graphs
    assert "a branch goes by a tensor's values" in graph.broken and graph.reports()[0].lines


@pytest.fixture
def refused(folder, monkeypatch, capsys):
    """The command says why it gets no model."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(fake_gpu, "begin", lambda: True)

    def run(name: str) -> str:
        assert main(["plan", name]) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("name", ["nothing", "no_such_module:make", "os:nothing", ":make", "new_models.py:images"])
def test_models_that_are_not_there(name, refused):
    assert "the model is given as MODULE:FUNCTION, got" in refused(name)


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("only_a_model", "it gives a Linear, and no inputs"),
        ("nothing", "it gives a NoneType, and no inputs"),
        ("three", "it gives (Linear, Tensor, Tensor)"),
        ("other_way_round", "it gives (tuple, Linear)"),
        ("net", "it is a Linear"),
        ("number", "it is a int"),
    ],
)
def test_what_is_no_model(name, sentence, refused):
    wanted = (
        f"new_models:{name} must be a function that gives a model or training step and a tuple of its inputs, or a dict"
    )
    said = refused(f"new_models:{name}")
    assert wanted in said and said.endswith(f"{sentence}\n")


def test_functions_that_fail(refused):
    assert "missing 1 required positional argument: 'x'" in refused("new_models:of_an_argument")
    assert re.search(
        r"new_models.py:\d+: new_models:failing fails: KeyError: 'weights.pt'", refused("new_models:failing")
    )


def test_modules_that_fail(folder, refused):
    (folder / "faulty.py").write_text("import torch\n\n1 / 0\n")
    assert re.search(r"faulty.py:3: 'faulty' can't be imported: ZeroDivisionError", refused("faulty:make"))


@pytest.mark.parametrize("name", ["images", "volumes", "by_name", "broken", "by_values", "rotary"])
def test_measured(name, folder, monkeypatch, capsys):
    """Where the model is; branches go by values there."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["plan", f"new_models:{name}", "--measure", "--channels-last", "--html", "plan.html"]) == 0
    text = capsys.readouterr().out
    assert (folder / "plan.html").read_text().count("<svg") == text.count("MB read")
    assert "measured" in text and "backward" in text
    assert ("aten::view_as_complex" in text) == (name == "rotary")


def test_graphs_without_a_plan(folder, monkeypatch, capsys):
    """Their reason is there, and the command goes on."""

    def executable(*_, **__):
        raise Unsupported("the reason")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(pipeline, "plan", executable)
    assert main(["plan", "new_models:images", "--measure"]) == 0
    text = capsys.readouterr().out
    assert text == "".join(f"{each}\nno plan, PyTorch runs it: the reason\n\n" for each in ("forward", "backward"))
    with pytest.raises(Unsupported, match="the reason"):
        planned(nn.Linear(3, 3), (torch.randn(2, 3),))


def test_models_stay_as_they_are():
    """But for the buffers of those that are measured."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    before = {name: each for name, each in model.state_dict(keep_vars=True).items()}
    planned(model, (torch.randn(2, 3, 8, 8),), "sm_90")
    assert all(each is before[name] for name, each in model.state_dict(keep_vars=True).items())
    assert all(each.grad is None for each in model.parameters()) and model[1].num_batches_tracked == 0
