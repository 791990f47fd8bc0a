"""Expected times, and the command that prints plans."""

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.__main__ import main
from torch_reformer.compiler import cost
from torch_reformer.compiler.plan import measured, planned

pytestmark = needs_aten


def test_times_by_bytes_and_by_arithmetic(tmp_path, monkeypatch):
    """In multiples of the data sheet's; what was not fitted is expected to take as long as others."""
    table = tmp_path / "costs.json"
    table.write_text('{"others": [3, 2, 4], "product": [5, 1, 1]}')
    monkeypatch.setattr(cost, "TABLE", table)
    cost._table.cache_clear()
    try:
        assert cost.predicted_us("sm_90", "stitch", 0, 0) == 3
        assert cost.predicted_us("sm_90", "stitch", 4_800_000_000, 989_000_000) == pytest.approx(3 + 2000 + 4)
        assert cost.predicted_us("H100", "product", 3_352_000_000, 0) == pytest.approx(5 + 1000)
        with pytest.raises(ValueError, match="no times are known of 'sm_70'; of sm_80"):
            cost.predicted_us("sm_70", "stitch", 1, 1)
    finally:
        cost._table.cache_clear()


@pytest.mark.parametrize(
    "architecture, name, key",
    [("sm_90", "NVIDIA H100 80GB HBM3", "H100"), ("sm_90", "NVIDIA H200", "sm_90"), ("sm_75", "Tesla T4", None)],
)
def test_known_gpus(architecture, name, key):
    assert cost.known_gpu(architecture, name) == key


def test_the_table_that_is_there():
    table = cost._table()
    assert {cost.OTHERS, "stitch", "product"} <= table.keys()
    assert all(len(each) == 3 and min(each) >= 0 and sum(each) > 0 for each in table.values())


def test_kinds():
    model = nn.Sequential(
        nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3, groups=2)
    )
    model.extend([nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 4, 64), nn.Softmax(-1)])
    found = {line.cost for report in planned(model, (torch.randn(2, 8, 8, 8),), "sm_90") for line in report.lines}
    assert {f"conv {each}" for each in ("dense", "pointwise", "depthwise", "grouped")} <= found
    assert {f"conv grads {each}" for each in ("dense", "pointwise", "depthwise", "grouped")} <= found
    assert {"product", "stitch rows", "stitch columns"} <= found


def test_reports_of_a_model():
    """Nothing runs: neither are buffers changed, nor are there gradients."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    forward, backward = planned(model, (torch.randn(2, 3, 8, 8),), "sm_90")
    assert model[1].num_batches_tracked == 0 and model[0].weight.grad is None
    (conv,) = (line for line in forward.lines if line.kind == "conv")
    assert conv.us == pytest.approx(
        cost.predicted_us("sm_90", "conv dense", conv.read + conv.written, 2 * 2 * 8 * 36 * 3 * 9)
    )
    (product,) = (line for line in forward.lines if line.kind == "aten::addmm")
    flops = 2 * 2 * 8 * 36 * 4
    assert product.us == pytest.approx(cost.predicted_us("sm_90", "product", product.read + product.written, flops))
    assert forward.us == sum(line.us for line in forward.lines) < sum(line.us for line in forward.alone)
    assert len(backward.lines) > 3


def test_measured_reports():
    """The same lines, with times; the model stays as it is but for its buffers."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    images = torch.randn(2, 3, 8, 8)
    reports = measured(model, (images,))
    assert [[line.kind for line in each.lines] for each in reports] == [
        [line.kind for line in each.lines] for each in planned(model, (images,))
    ]
    for report in reports:
        assert all(0 < line.measured_us < 1e6 for line in report.lines)
        assert report.measured_us == pytest.approx(sum(line.measured_us for line in report.lines))
        assert "measured" in str(report)
    assert all(each.grad is None for each in model.parameters())


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
    assert main(["plan", "planned_model:make", "--measure"]) == 0
    assert "measured" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["nothing", "no_such_module:make", "os:nothing", ":make"])
def test_models_that_are_not_there(name, capsys):
    assert main(["plan", name]) == 2
    assert "the model is given as MODULE:FUNCTION, got" in capsys.readouterr().err
