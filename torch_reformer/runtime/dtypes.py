"""Floating-point data types, by what kernels do with them."""

import torch

NARROW = torch.bfloat16, torch.float16  # 16 bits
SUMMED_IN_FP32 = torch.float32, *NARROW
FLOATS = *SUMMED_IN_FP32, torch.float64
