"""Where attention's kernel is chosen by expected times (attention_cost.py), and not by PyTorch."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend

from ...runtime import gpu as runtime_gpu
from .attention_cost import Attention, is_gain
from .device_model import GPUS, known_gpu

DEVICES = {"cuda"}
IS_ENABLED = {
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
}
_WITHOUT_GPU = "sm_90"  # graphs that are recorded for a GPU that is not there


def is_free() -> bool:
    """True if the user leaves the choice of kernels open."""
    kinds = torch.backends.cuda.math_sdp_enabled, *IS_ENABLED.values()
    return all(is_enabled() for is_enabled in kinds) and not torch.are_deterministic_algorithms_enabled()


def timed_gpu(device: torch.device) -> str | None:
    """The key of GPUS of a GPU with fitted times; None for others."""
    if device.type not in DEVICES or torch.version.hip:
        return None
    if device.type != "cuda" or not torch.cuda.is_available():
        return _WITHOUT_GPU
    architecture = runtime_gpu.architecture(device.index or 0)
    gpu = known_gpu(architecture, torch.cuda.get_device_name(device)) if architecture else None
    return gpu if gpu and GPUS[gpu].has_tma else None


def is_worth_a_call(case: Attention, device: torch.device, needs_grad: bool) -> bool:
    """True if a user's own products and softmax may be a call whose kernel is chosen here, and that costs less."""
    gpu = timed_gpu(device)
    return gpu is not None and is_free() and is_gain(case, gpu, needs_grad)
