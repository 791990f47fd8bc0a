"""Ways back to plain PyTorch: unfuse, unconvert, and exported or traced models, which hold no operator of this package
after fuse."""

import copy
import subprocess
import sys

import pytest
import torch
from marks import needs_aten, require
from torch import nn

import torch_reformer
from torch_reformer import convert, fuse, unconvert, unfuse
from torch_reformer.nn import Conv2d, FusedConv2d

pytestmark = needs_aten
X = torch.randn(2, 3, 8, 8)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def model():
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    return nn.Sequential(*layers).eval()


def test_unconvert(model):
    expected = copy.deepcopy(model)
    assert convert(model).converted == unconvert(model) == ["0", "3"]
    assert [type(each) for each in model] == [type(each) for each in expected] and str(model) == str(expected)
    assert torch.equal(model(X), expected(X)) and unconvert(model) == []
    conv = nn.Conv2d(3, 4, 3)
    convert(conv)
    assert unconvert(conv) == ["(the model itself)"] and type(conv) is nn.Conv2d


def test_unfuse(model):
    expected = copy.deepcopy(model)
    parameters = list(model.parameters())
    fusion = fuse(model)
    model(X)
    planned = len(fusion.reports)
    assert type(model[0]) is FusedConv2d and planned
    unfuse(model)
    assert [type(each) for each in model] == [type(each) for each in expected] and str(model) == str(expected)
    assert torch.equal(model(X), expected(X)) and len(fusion.reports) == planned
    assert all(map(lambda one, other: one is other, model.parameters(), parameters))
    unfuse(model)  # has no effect
    again = fuse(model)
    model(X)
    assert len(again.reports) == planned


def test_unfuse_reaches_modules_inside(model):
    parts = nn.Sequential(model[:2], model[2:])
    fusion = fuse(parts[0])
    unfuse(parts)
    parts(X)
    assert not fusion.reports and type(parts[0][0]) is nn.Conv2d


def test_unfuse_leaves_what_else_was_done(model):
    """Convolutions that convert() converted, and a compilation by another backend."""
    convert(model)
    fuse(model[0])
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    unfuse(model)
    assert type(model[0]) is Conv2d and model._compiled_call_impl is compiled and model[0]._compiled_call_impl is None


@pytest.mark.parametrize("function", [unfuse, unconvert])
def test_no_module(function):
    with pytest.raises(TypeError, match=f"{function.__name__}: model must be a torch.nn.Module"):
        function("model")


@pytest.mark.parametrize("strict", [False, True])
def test_exported_after_fuse(model, strict):
    expected = model(X)
    fuse(model)
    model(X)
    program = torch.export.export(model, (X,), strict=strict)
    assert "reformer" not in str(program.graph) and "aten.conv2d" in str(program.graph)
    torch.testing.assert_close(program.module()(X), expected)
    assert type(model[0]) is FusedConv2d and model._compiled_call_impl is not None


def test_a_saved_program_needs_no_import(model, tmp_path):
    fuse(model)
    torch.export.save(torch.export.export(model, (X,)), tmp_path / "model.pt2")
    code = "import sys, torch; torch.export.load(sys.argv[1]).module()(torch.ones(2, 3, 8, 8))"
    code += "; assert 'torch_reformer' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt2")], check=True, timeout=120, cwd=tmp_path)


def test_a_program_with_own_operators_names_them(model, tmp_path):
    """Without the import PyTorch's error has the operator's name, and the module's that it came from."""
    convert(model)
    torch.export.save(torch.export.export(model, (X,)), tmp_path / "model.pt2")
    code = "import sys, torch; torch.export.load(sys.argv[1]).module()(torch.ones(2, 3, 8, 8))"
    words = [sys.executable, "-c", code, str(tmp_path / "model.pt2")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode and "import the custom op" in done.stderr and "torch_reformer.nn.Conv2d" in done.stderr
    subprocess.run([*words[:2], f"import torch_reformer; {code}", words[3]], check=True, timeout=120)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_traced_after_fuse(model):
    expected = model(X)
    fuse(model)
    model(X)
    traced = torch.jit.trace(model, X)
    assert "reformer::" not in str(traced.inlined_graph) and "aten::_convolution" in str(traced.inlined_graph)
    torch.testing.assert_close(traced(X), expected)
    fusion = fuse(model)
    model(X)
    assert fusion.reports  # it is compiled as before


@pytest.mark.slow
def test_onnx_after_fuse(model):
    for package in ("onnx", "onnxscript"):
        require(package, "clients")
    fuse(model)
    model(X)
    nodes = list(torch.onnx.export(model, (X,), dynamo=True, verbose=False).model.graph)
    assert [node.op_type for node in nodes].count("Conv") == 2 and {node.domain for node in nodes} == {""}


def test_convolutions_of_a_fused_model_are_this_packages(model):
    """Where they are neither exported nor traced."""
    fuse(model)
    unfused = copy.deepcopy(model)  # not compiled
    with torch_reformer.record_problems() as problems:
        unfused(X)
    assert sum(problems.values()) == 2 and "torch_reformer.FusedConv2d" in str(unfused)
