"""torchvision's models. PyPI's torchvision has operators for CUDA's torch only; beside a CPU's its import asks for the
names of two of them, which no model here calls."""

import torch

if not torch.cuda.is_available():
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from torchvision.models import get_model  # noqa: E402, F401
