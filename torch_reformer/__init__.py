"""Convolution for PyTorch that picks the fastest kernel for every problem at run time, forward and backward."""

from . import _named_operators, epilogue, nn  # noqa: F401  _named_operators registers operators
from ._config import config
from .fuse import Fusion, fuse
from .fused import conv2d_act, conv2d_batch_norm_act, conv2d_epilogue, linear_act, linear_epilogue, stitch
from .ops import conv2d
from .problem import ConvProblem
from .recording import record_problems
from .selector import weights_file

__version__ = "0.1.0"
__all__ = [
    "ConvProblem",
    "config",
    "conv2d",
    "conv2d_act",
    "conv2d_batch_norm_act",
    "conv2d_epilogue",
    "convert",
    "epilogue",
    "Fusion",
    "fuse",
    "linear_act",
    "linear_epilogue",
    "nn",
    "record_problems",
    "stitch",
]

convert = nn.convert
weights_file.activate()
