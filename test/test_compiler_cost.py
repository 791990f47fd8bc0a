"""Expected times of kernels and calls."""

import pytest
import torch
from gpu_rules import as_on_gpus
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.cli import measured, planned
from torch_reformer.compiler.ir import device_model
from torch_reformer.compiler.ir.map_cost import instructions_of_element

pytestmark = needs_aten


def test_times_by_bytes_and_by_arithmetic(tmp_path, monkeypatch):
    """Coefficients are multiples of the data sheet's times; kinds that were not fitted take those of others."""
    table = tmp_path / "costs.json"
    table.write_text('{"others": [3, 2, 4], "product": [5, 1, 1]}')
    monkeypatch.setattr(device_model, "TABLE", table)
    device_model._table.cache_clear()
    try:
        assert device_model.predicted_us("sm_90", "stitch", 0, 0) == 3
        assert device_model.predicted_us("sm_90", "stitch", 4_800_000_000, 989_000_000) == pytest.approx(3 + 2000 + 4)
        assert device_model.predicted_us("H100", "product", 3_352_000_000, 0) == pytest.approx(5 + 1000)
        with pytest.raises(ValueError, match="no times are known of the GPU 'sm_70'; they are known of sm_80"):
            device_model.predicted_us("sm_70", "stitch", 1, 1)
    finally:
        device_model._table.cache_clear()


@pytest.mark.parametrize(
    "architecture, name, key",
    [("sm_90", "NVIDIA H100 80GB HBM3", "H100"), ("sm_90", "NVIDIA H200", "sm_90"), ("sm_75", "Tesla T4", None)],
)
def test_known_gpus(architecture, name, key):
    assert device_model.known_gpu(architecture, name) == key


def test_the_table_that_is_there():
    """Each kind takes time to start."""
    table = device_model._table()
    assert {device_model.OTHERS, "stitch", "product"} <= table.keys()
    assert all(len(each) == 3 and min(each) >= 0 and each.start > 3 for each in table.values())


@pytest.fixture
def precision():
    """Restores the precision of matrix products and convolutions."""
    owners = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [each.fp32_precision for each in owners]
    yield
    for owner, each in zip(owners, before, strict=True):
        owner.fp32_precision = each


@pytest.mark.parametrize(
    "kind, dtype, precision_of, peak",
    [
        ("product", torch.bfloat16, "ieee", 989),
        ("product", torch.float16, "ieee", 989),
        ("product", torch.float32, "ieee", 67),
        ("product", torch.float32, "tf32", 495),
        ("product", torch.float64, "tf32", 67),
        ("aten::_scaled_dot_product_efficient_attention", torch.float32, "ieee", 67),
        ("conv dense", torch.float32, "ieee", 67),
        ("conv grads pointwise", torch.float32, "tf32", 495),
        ("aten::convolution", torch.float32, "tf32", 495),
        ("conv depthwise", torch.float32, "ieee", 989),  # computes in fp32 for all types, which its fit includes
    ],
)
def test_arithmetic_by_its_type(kind, dtype, precision_of, peak, precision):
    torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = precision_of
    assert device_model.slowness(device_model.GPUS["sm_90"], kind, dtype) == pytest.approx(989 / peak)
    some, more = (device_model.predicted_us("sm_90", kind, 0, flops, dtype) for flops in (10**12, 3 * 10**12))
    fitted = device_model._table().get(kind) or device_model._table()[device_model.OTHERS]
    assert more - some == pytest.approx(2e6 / peak * fitted.of_flops)


def test_products_of_fp32_take_longer():
    """fp32 products take longer than 16-bit ones, at the data sheet's ratio."""
    x = torch.randn(4096, 4096)
    wide, narrow = (
        planned(torch.matmul, (x.to(dtype), x.to(dtype)), "sm_90")[0] for dtype in (torch.float32, torch.bfloat16)
    )
    assert 2 * 4096**3 / 67e6 * 0.7 < wide.us and wide.us > 8 * narrow.us


def test_arithmetic_of_attention():
    """The CPU's attention kernels are counted, too."""
    q = torch.randn(8, 16, 512, 64, requires_grad=True)
    forward, backward = planned(torch.nn.functional.scaled_dot_product_attention, (q, q, q), "sm_90")
    products = 2 * 8 * 16 * 512 * 512 * 64
    assert sum(line.flops for line in forward.lines) == 2 * products
    assert sum(line.flops for line in backward.lines) == 5 * products


def test_kinds():
    model = nn.Sequential(
        nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 3, groups=2)
    )
    model.extend([nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 4, 64), nn.Softmax(-1)])
    found = {line.cost for report in planned(model, (torch.randn(2, 8, 8, 8),), "sm_90") for line in report.lines}
    assert {f"conv {each}" for each in ("dense", "pointwise", "depthwise", "grouped")} <= found
    assert {f"conv grads {each}" for each in ("dense", "pointwise", "depthwise", "grouped")} <= found
    assert {"product", "stitch rows", "stitch columns"} <= found


def test_maps_take_time():
    """A kernel's instructions for its taps take time besides its bytes: those of vectors, as channels are adjacent."""
    images = torch.randn(8, 64, 64, 64).contiguous(memory_format=torch.channels_last)
    with as_on_gpus():
        for model, taps in {nn.AvgPool2d(2): 4, nn.ConstantPad2d(1, 0): 1}.items():
            (forward,) = planned(model, (images,), "sm_90")
            (line,) = (line for line in forward.lines if line.kind == "stitch")
            of_bytes = device_model.predicted_us("sm_90", line.cost, line.read + line.written, 0)
            elements = line.written // 4
            assert line.us - of_bytes == pytest.approx(elements * instructions_of_element(taps, 8) / 14.3e6)
    assert instructions_of_element(1, 8) < instructions_of_element(4, 8) < instructions_of_element(4, 1)


def test_reports_of_a_model():
    """Nothing runs: buffers do not change, and there are no gradients."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    forward, backward = planned(model, (torch.randn(2, 3, 8, 8),), "sm_90")
    assert model[1].num_batches_tracked == 0 and model[0].weight.grad is None
    (conv,) = (line for line in forward.lines if line.kind == "conv")
    assert conv.us == pytest.approx(
        device_model.predicted_us(
            "sm_90", "conv dense", conv.read + conv.written, 2 * 2 * 8 * 36 * 3 * 9, torch.float32
        )
    )
    (product,) = (line for line in forward.lines if line.kind == "aten::addmm")
    flops = 2 * 2 * 8 * 36 * 4
    assert product.us == pytest.approx(
        device_model.predicted_us("sm_90", "product", product.read + product.written, flops, torch.float32)
    )
    assert forward.us == sum(line.us for line in forward.lines) < sum(line.us for line in forward.unfused)
    assert len(backward.lines) > 3


def test_measured_reports():
    """Measured reports have the same lines, with times. Of the model only buffers change."""
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


@pytest.mark.parametrize("kernel", ["efficient", "flash", "cudnn"])
def test_flops_of_shared_heads(kernel):
    """They are those of heads that are repeated, in each version of torch."""
    operators = [
        getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{suffix}") for suffix in ("", "_backward")
    ]
    query, shared = torch.empty(2, 8, 64, 32, device="meta"), torch.empty(2, 2, 48, 32, device="meta")
    repeated = shared.new_empty(2, 8, 48, 32)
    for operator, before in zip(operators, ((), (query,)), strict=True):
        count = device_model.flops_of_operator(operator.default)
        assert count(*before, query, shared, shared, out_val=query) == count(
            *before, query, repeated, repeated, out_val=query
        )
