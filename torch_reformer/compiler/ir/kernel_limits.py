"""Limits of one generated kernel, which fusion keeps."""

from __future__ import annotations

import torch

SMALL = 8192  # elements of a small tensor
LITTLE = 1 << 16  # elements that a kernel computes in less time than another kernel takes to start
# Lower than the limits of kernels (csrc/hip/programs/stitch_args.h), so that compile times stay short.
MOST_INPUTS, MOST_OUTPUTS, MOST_OPERATIONS, MOST_INLINED, MOST_STRIDED = 24, 12, 48, 16, 14
MOST_MAPS_OF_TENSOR = 4  # of axes (csrc/program/program.h)
MOST_MAPS = 8  # of axes; each is an input besides those above (csrc/program/axis_maps.h)
# Transposed tensors of a kernel whose tiles fit into the registers of AMD's GPUs; more of them would spill.
MOST_TRANSPOSED_READ, MOST_TRANSPOSED_WRITTEN = 3, 2
# Kernels that read rows of tables may transpose tiles, too; on AMD's GPUs they would spill.
TRANSPOSES_GATHERS = torch.version.hip is None
