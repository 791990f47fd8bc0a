"""Compiler of PyTorch training steps, with its own kernels, which it chooses at run time.

``torch.compile(model, backend="reformer")`` and :func:`fuse` compile models; :func:`enable` and :func:`convert` only
choose the kernels of convolutions.
"""

from . import nn, program
from .functional import conv2d, conv2d_act, conv2d_batch_norm_act, conv2d_epilogue, linear_act, linear_epilogue, stitch
from .fuse import Fusion, fuse, unfuse
from .override import disable, enable
from .problem import ConvProblem
from .runtime.config import config
from .selector import weights_file
from .training.step import TrainingStep, training_step
from .tuning.explain import explain
from .tuning.recording import record_problems
from .version import VERSION

__version__ = VERSION
__all__ = [
    "ConvProblem",
    "config",
    "conv2d",
    "conv2d_act",
    "conv2d_batch_norm_act",
    "conv2d_epilogue",
    "convert",
    "disable",
    "enable",
    "explain",
    "Fusion",
    "fuse",
    "linear_act",
    "linear_epilogue",
    "nn",
    "program",
    "record_problems",
    "stitch",
    "TrainingStep",
    "training_step",
    "unconvert",
    "unfuse",
]

convert, unconvert = nn.convert, nn.unconvert
weights_file.activate()
