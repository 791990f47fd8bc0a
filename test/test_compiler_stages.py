"""Stages of compilation that fail: results are correct without them, and one warning names them."""

import importlib
import logging
import warnings

import pytest
import torch
import torch.nn.functional as F
from marks import needs_aten
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config

from torch_reformer.compiler import lowering, passes, pipeline
from torch_reformer.compiler.codegen import emit_plan
from torch_reformer.compiler.decompositions import nll_loss
from torch_reformer.compiler.fusion import greedy
from torch_reformer.compiler.ir import stages
from torch_reformer.compiler.ir.fake_tensors import Unsupported
from torch_reformer.compiler.pre_grad import attention_masks

pytestmark = needs_aten


class Net(nn.Module):
    """A convolution, a norm, a product and a loss, so that each stage has something to do or to look at."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(128, 5)

    def forward(self, x, classes):
        return F.cross_entropy(self.linear(F.relu(self.norm(self.conv(x))).flatten(1)), classes)


@pytest.fixture(autouse=True)
def lenient(monkeypatch):
    """Errors are not raised, as for users, and unlike in other tests."""
    monkeypatch.delenv("TORCH_REFORMER_RAISE_ERRORS")
    torch._dynamo.reset()
    stages.reset()


def step(model, inputs):
    model.zero_grad()
    loss = model(*inputs)
    loss.backward()
    return [loss.detach(), *(each.grad for each in model.parameters())]


def check(count=1) -> list[str]:
    """Check that a training step has PyTorch's results and `count` warnings, and return these."""
    torch.manual_seed(0)
    model, inputs = Net(), (torch.randn(4, 3, 4, 4), torch.tensor([0, 4, 2, 1]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = step(torch.compile(model, backend="reformer"), inputs)
    for one, other in zip(found, step(model, inputs), strict=True):
        torch.testing.assert_close(one, other)
    messages = [text for each in caught if "torch_reformer" in (text := str(each.message)) or "plan" in text]
    assert len(messages) == count and all("report it" in each for each in messages), messages
    return messages


def failing(name):
    def stage(*args):
        raise ValueError("planted")

    stage.__name__ = name
    return stage


OPTIONAL = (
    *("replace_max_pool_indices", "split_addmm", "set_gradient_strides", "propagate_memory_format", "pad_mm"),
    *("hoist_loss_gradients", "recompute_broadcasts", "recompute_gathers", "rematerialize", "hoist_column_sums"),
    *("pad_before_saving", "seed_groups", "integer_program", "fuse_horizontally", "recompute", "reinplace"),
    *("reuse_buffers", "keep_order_in_reductions"),
)


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_stages(name, monkeypatch):
    monkeypatch.setattr(pipeline, name, failing(name))
    (message,) = check()
    assert name in message and "ValueError: planted" in message and "TORCH_LOGS" in message


@pytest.mark.parametrize("name", dict.fromkeys(each.__name__ for each in passes.PASSES))
def test_passes(name, monkeypatch):
    """Each pass can be left out, even if it fails after it has changed the graph."""

    def half(change):
        def stage(graph):
            change(graph)
            raise KeyError("planted")

        stage.__name__ = name
        return stage

    changed = [half(each) if each.__name__ == name else each for each in passes.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", changed)
    assert name in check()[0]


@pytest.mark.parametrize("name", [each.__name__ for each in pipeline.AFTER_FUSION])
def test_changes_of_groups(name, monkeypatch):
    changed = [failing(name) if each.__name__ == name else each for each in pipeline.AFTER_FUSION]
    monkeypatch.setattr(pipeline, "AFTER_FUSION", changed)
    assert name in check()[0]


@pytest.mark.parametrize("module, name", [(greedy.Fusion, "_place"), (emit_plan._Emitter, "_group")])
def test_operators_that_cannot_be_lowered(module, name, monkeypatch):
    """PyTorch's kernels compute them, and programs the others. The warning names them and the user's lines."""
    method = getattr(module, name)

    def fails(self, what):
        operations = [what] if name == "_place" else what.operations
        if any(getattr(each, "name", "") == "relu" for each in operations):
            raise ValueError("planted")
        return method(self, what)

    monkeypatch.setattr(module, name, fails)
    (message,) = check()
    assert "relu" in message and "F.relu(self.norm(" in message and "test_compiler_stages.py" in message


def test_rules(monkeypatch):
    monkeypatch.setitem(lowering.RULES, torch.ops.aten.relu.default, failing("relu"))
    assert "relu" in check()[0]


@pytest.mark.parametrize("name", ["emit_plan", "Fusion", "lower_fx"])
def test_graphs_without_a_plan(name, monkeypatch):
    """As a last resort graphs run without a plan, each with a warning."""
    monkeypatch.setattr(pipeline, name, failing(name))
    assert all("without a plan" in each for each in check(count=2))


def test_a_graph_without_a_plan_is_as_it_was(monkeypatch):
    """Stages leave out copies that views need where no plan decides the strides: here of maxima, which are computed in
    another order than their operand's."""

    def function(x):
        maxima = x.permute(0, 3, 1, 2, 4).amax(4).permute(0, 2, 3, 1).contiguous()
        return maxima.view(2, 4, 21).transpose(1, 2).contiguous() * 2

    def no_plan(*args):
        raise Unsupported("planted")

    monkeypatch.setattr(pipeline, "emit_plan", no_plan)
    x = torch.randn(2, 4, 3, 7, 5, requires_grad=True)
    with pytest.warns(UserWarning, match="planted"):
        actual = torch.compile(function, backend="reformer")(x)
    assert torch.equal(actual, function(x))


def test_a_partition_that_fails(monkeypatch):
    monkeypatch.setattr(pipeline, "partition_within_budget", failing("partition"))
    assert "PyTorch's choice" in check()[0]


def test_masks_of_attention(monkeypatch):
    monkeypatch.setattr(pipeline, "simplify_masks", failing(attention_masks.simplify_masks.__name__))
    assert "simplify_masks" in check()[0]


def test_decompositions(monkeypatch):
    """An operator whose decomposition fails stays whole."""
    backend = importlib.import_module("torch_reformer.compiler.backend")
    (nll,) = (each for each in nll_loss.DECOMPOSITIONS if "nll_loss_backward" in each.name())
    table = backend._AOT_OPTIONS["decompositions"]
    monkeypatch.setitem(table, nll, stages.or_whole(failing("nll_loss_backward")))
    assert "nll_loss_backward" in check()[0]


def test_no_errors_no_warnings():
    check(count=0)


def test_no_warnings_of_pytorch():
    """Copies that the compiler makes to leave something out warn of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.randn(3, 4, requires_grad=True)
        torch.compile(lambda x: (x.sin() * 2.125).exp(), backend="reformer")(x).sum().backward()


def test_plans_with_something_left_out_are_not_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pipeline, "reuse_buffers", failing("reuse_buffers"))
    counters.clear()
    with functorch_config.patch(enable_autograd_cache=True):
        check()
    assert counters["aot_autograd"]["autograd_cache_miss"] and not counters["aot_autograd"]["autograd_cache_saved"]


def test_errors_are_raised_in_tests(monkeypatch):
    monkeypatch.setenv("TORCH_REFORMER_RAISE_ERRORS", "1")
    monkeypatch.setattr(pipeline, "reuse_buffers", failing("reuse_buffers"))
    with pytest.raises(Exception, match="planted"):
        check()


def test_errors_of_the_function_that_gets_reports():
    """Errors of the user's own function are raised."""

    def report(_):
        raise KeyError("mine")

    with pytest.raises(Exception, match="mine"):
        torch.compile(torch.sin, backend="reformer", options={"report": report})(torch.ones(3))


def test_what_has_no_plan_is_named():
    """The warning says which operator has no plan, and in which line of the user's code."""

    def function(x):
        return torch.view_as_complex(x * 2).conj().sum().real

    with pytest.warns(UserWarning, match=r"without a plan.*view_as_complex.*torch\.view_as_complex\(x \* 2\)"):
        torch.compile(function, backend="reformer")(torch.randn(4, 2))


def test_graphs_are_printed(caplog):
    """The graph is printed after each stage, as by TORCH_LOGS="+torch_reformer"."""
    logger = logging.getLogger("torch_reformer.compiler.ir.stages")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.DEBUG, logger.name):
            check(count=0)
    finally:
        logger.removeHandler(caplog.handler)
    for stage in (
        "mark_user_casts",
        "save_random",
        "hoist_loss_gradients",
        "lower_fx",
        "share_equal",
        "greedy",
        "fuse_horizontally",
        "reuse_buffers",
    ):
        assert f"after {stage}:" in caplog.text
