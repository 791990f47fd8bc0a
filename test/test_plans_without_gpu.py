"""Models of many families have plans for a GPU that is not there (benchmarks/plans_without_gpu.py)."""

import sys
from pathlib import Path

import pytest
import torch
import zoo
from marks import needs_aten

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# Layers that once had no plan (row reductions after channels_last images), and the main kinds of layers.
MODELS = [
    *("timm/levit_256:8", "timm/resnest50d:8@64", "timm/swin_tiny_patch4_window7_224:2"),
    *("segmentation/lraspp_mobilenet_v3_large:4@64", "t5_small:2x32"),
]
pytestmark = [
    needs_aten,
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.backends.cuda.is_built() and not torch.cuda.is_available(),
        reason="this torch is built for GPUs, and finds none",
    ),
]


@pytest.mark.parametrize("name", MODELS)
def test_each_model_has_plans(name, monkeypatch):
    """Plans of the whole step: one graph, forward and backward."""
    for package in ("torchvision", "timm", "transformers"):
        zoo.package(package)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from plans_without_gpu import plans_in_a_process

    plans = plans_in_a_process(name)
    assert not plans.failures
    assert plans.graphs == 1 and not plans.broken
    assert {"stitch"} < {line.kind for line in plans.lines}
    assert all(each.us > 3 for each in plans.lines)
