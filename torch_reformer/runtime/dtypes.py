"""Groups of floating-point data types that kernels treat alike."""

import torch

NARROW = torch.bfloat16, torch.float16  # 16 bits
SUMMED_IN_FP32 = torch.float32, *NARROW
FLOATS = *SUMMED_IN_FP32, torch.float64
