"""Limits of one generated kernel."""

from __future__ import annotations

SMALL = 8192  # elements
LITTLE = 1 << 16  # elements that kernels compute in less time than another takes to start
# Fewer than kernels have room for (csrc/hip/programs/stitch_args.h), so that compile times stay short.
MOST_INPUTS, MOST_OUTPUTS, MOST_OPERATIONS, MOST_INLINED, MOST_STRIDED = 24, 12, 48, 16, 12
# Turned tensors whose tiles AMD's GPUs have registers for: more of them would spill.
MOST_TRANSPOSED_READ, MOST_TRANSPOSED_WRITTEN = 3, 2
