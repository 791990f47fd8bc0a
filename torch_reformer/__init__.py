"""Convolution for PyTorch that picks the fastest kernel for every problem at run time, forward and backward."""

from . import nn
from ._config import config
from .ops import conv2d
from .problem import ConvProblem
from .recording import record_problems
from .selector import weights_file

__version__ = "0.1.0"
__all__ = ["ConvProblem", "config", "conv2d", "convert", "nn", "record_problems"]

convert = nn.convert
weights_file.activate()
