"""Element-wise operators and reductions of PyTorch's database that stay calls of its kernels, with the reasons."""

from __future__ import annotations

import pytest
import torch
from against_eager import without_dynamo
from pytorch_suites import of_known_version, operators
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torch_reformer.compiler.ir.device_model import OTHERS

pytestmark = [pytest.mark.slow, of_known_version]

CALLS = {
    "special functions that no program computes": "digamma erfc erfinv i0 igamma igammac lgamma nextafter polygamma "
    "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx "
    "special_i0e special_i1 special_i1e special_modified_bessel_i0 special_modified_bessel_i1 "
    "special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_zeta",
    "polynomials of any degree": "special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h "
    "special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
    "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w",
    "integers of types that programs do not read, or that fp32 may not hold, and places in whole tensors": "_to_copy "
    "arange.start_step argmax argmin frexp.Tensor hash_tensor ldexp.Tensor",
    "complex numbers": "complex polar",
    "random numbers in place": "empty.memory_format rrelu_with_noise_backward rrelu_with_noise_functional",
    "gradients of products": "cat cumprod",
    "maps of axes, which are for GPUs": "flip",
    "a tensor of zeros without memory": "_efficientzerotensor",
    "a quotient by a power of ten that has to be exact": "round.decimals",
}


def calls(op) -> set[str]:
    """Names of the calls in the plans of some samples, whose tensors have one size, and of their gradients."""
    found: set[str] = set()
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    samples = [each for each in samples if isinstance(each.input, Tensor) and each.input.numel() > 1]
    samples = [each for each in samples if len({leaf.shape for leaf in tensors(each)}) == 1]
    for sample in samples[:: max(1, len(samples) // 3)]:
        reports: list = []
        run = without_dynamo(lambda *args, sample=sample: op(*args, **sample.kwargs), reports.append)
        result = run(sample.input, *sample.args)
        roots = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
        leaves = [leaf for leaf in tensors(sample) if leaf.requires_grad]
        if roots and leaves:
            torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)
        lines = [line for report in reports for line in report.lines if line.cost != OTHERS]  # those of plans
        found |= {line.kind.removeprefix("aten::") for line in lines if "aten::" in line.kind}
    return found


def tensors(sample) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]


def test_what_stays_a_call(request):
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    found: set[str] = set()
    for op in operators(request.config):
        of_kind = isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo))
        is_masked = op.name.startswith("masked.")  # functions of Python, which read their masks
        runs = torch.float32 in op.supported_dtypes("cpu") and not op.name.startswith(
            ("nn.functional.prelu", "jiterator")
        )
        if of_kind and runs and not is_masked:
            found |= calls(op)
    listed = {name for names in CALLS.values() for name in names.split()}
    assert found == listed, f"new: {sorted(found - listed)}; gone: {sorted(listed - found)}"
