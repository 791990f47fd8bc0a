"""Expected times, and the command that prints plans."""

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.__main__ import main
from torch_reformer.compiler import cost
from torch_reformer.compiler.plan import planned

pytestmark = needs_aten


def test_times_by_bytes_and_by_arithmetic():
    assert cost.predicted_us("sm_90", 0, 0) == 3
    assert cost.predicted_us("sm_90", 4_320_000_000, 0) == pytest.approx(3 + 1000)
    assert cost.predicted_us("sm_90", 1, 791_200_000_000) == pytest.approx(3 + 1000)
    with pytest.raises(ValueError, match="no times are known of 'sm_70'; of sm_80"):
        cost.predicted_us("sm_70", 1, 1)


def test_reports_of_a_model():
    """Nothing runs: neither are buffers changed, nor are there gradients."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    forward, backward = planned(model, (torch.randn(2, 3, 8, 8),), "sm_90")
    assert model[1].num_batches_tracked == 0 and model[0].weight.grad is None
    (conv,) = (line for line in forward.lines if line.kind == "conv")
    assert conv.us == pytest.approx(cost.predicted_us("sm_90", conv.read + conv.written, 2 * 2 * 8 * 36 * 3 * 9))
    (product,) = (line for line in forward.lines if line.kind == "aten::addmm")
    flops = 2 * 2 * 8 * 36 * 4
    assert product.us == pytest.approx(cost.predicted_us("sm_90", product.read + product.written, flops))
    assert forward.us == sum(line.us for line in forward.lines) < sum(line.us for line in forward.alone)
    assert len(backward.lines) > 3


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planned_model.py").write_text(
        "import torch\n"
        "def make():\n"
        "    layers = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()\n"
        "    return torch.nn.Sequential(*layers), (torch.randn(2, 3, 8, 8),)\n"
    )
    assert main(["plan", "planned_model:make", "--autocast", "bf16", "--channels-last", "--device", "sm_80"]) == 0
    forward, backward = capsys.readouterr().out.split("backward\n")
    assert "conv: conv, moments" in forward and "conv_grads" in backward
    assert "kernels and calls move" in forward and " us; one by one " in forward


@pytest.mark.parametrize("name", ["nothing", "no_such_module:make", "os:nothing", ":make"])
def test_models_that_are_not_there(name, capsys):
    assert main(["plan", name]) == 2
    assert "the model is given as MODULE:FUNCTION, got" in capsys.readouterr().err
