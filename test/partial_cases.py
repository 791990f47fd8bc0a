"""Layers with operators that no plan computes, for tests and benchmarks/partial_plans.py."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

N, ROWS, COLUMNS = 4, 8, 32


class Model(nn.Module):
    """A layer, what is tested, and a layer and a loss."""

    def __init__(self, middle: Callable, rows: int = ROWS, columns: int = COLUMNS, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.middle = middle
        options = {"dtype": dtype}
        self.first, self.last, self.inner = (nn.Linear(columns, columns, **options) for _ in range(3))
        self.norm = nn.LayerNorm(columns, **options)
        angles = torch.rand(rows, columns // 2, **options)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.register_buffer("packed", torch.randint(-(2**31), 2**31 - 1, (columns, columns // 8), dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(F.gelu(self.first(x)))
        return F.silu(self.last(self.middle(self, h) + x)).square().mean()

    def block(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self, F.gelu(self.first(x))))


def rotary(model: Model, h: Tensor) -> Tensor:
    pairs = torch.view_as_complex(h.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * model.turns).flatten(2)


def complex_rows(model: Model, h: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(h.view(-1, 2)).square()).view(h.shape)


def conjugate(model: Model, h: Tensor) -> Tensor:
    spectrum = torch.fft.fft(h, dim=1)
    return (spectrum * spectrum.conj()).real


def bits(model: Model, h: Tensor) -> Tensor:
    integer = torch.int64 if h.dtype == torch.float64 else torch.int32
    return h * (h.detach().view(integer) & torch.iinfo(integer).max).view(h.dtype)


def quantised(model: Model, h: Tensor) -> Tensor:
    return h + torch.quantize_per_tensor(h.detach().float(), 0.25, 3, torch.qint8).dequantize()


def packed_weight(model: Model, h: Tensor) -> Tensor:
    """As GPTQ packs weights: eight of 4 bits in an int32."""
    halves = model.packed.view(torch.uint8)
    weight = torch.stack([halves & 15, halves >> 4], -1).reshape(h.shape[-1], -1)
    return h @ ((weight.to(h.dtype) - 8) * 0.1)


def definite(h: Tensor) -> Tensor:
    return h.mT @ h + torch.eye(h.shape[-1], dtype=h.dtype) * h.shape[-1]


def branches(model: Model, h: Tensor) -> Tensor:
    return torch.cond(h[0, 0, 0] > 0, lambda h: F.gelu(model.inner(h)).exp(), lambda h: h.cos().exp(), (h,))


def loop(model: Model, h: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.tensor(0), h.detach()
    return h + while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, (h.sin() * 1.5).exp() - 1), start)[1]


def flex(model: Model, h: Tensor, source: Tensor | None = None) -> Tensor:
    """Without a gradient, which flex_attention has for GPUs only, unless there is a source."""
    from torch.nn.attention.flex_attention import flex_attention

    heads = (h.detach() if source is None else source).unflatten(-1, (2, -1)).transpose(1, 2)
    scores = flex_attention(heads, heads, heads, score_mod=lambda score, b, head, q, k: score + (q - k) * 0.1)
    return h + scores.transpose(1, 2).reshape(h.shape)


@torch.compiler.nested_compile_region
def region(x: Tensor) -> Tensor:
    return F.gelu(x).exp() * 0.1


def kept_rows(model: Model, h: Tensor) -> Tensor:
    rows = h.flatten(0, 1)
    kept = (rows[:, 0] > 0).nonzero().squeeze(1)
    return rows.index_add(0, kept, F.silu(rows[kept])).view_as(h)


def experts(model: Model, h: Tensor) -> Tensor:
    rows = h.flatten(0, 1)
    weights, chosen = rows[:, :4].softmax(-1).topk(2)
    result = torch.zeros_like(rows)
    for expert in range(2):
        row, place = torch.where(chosen == expert)
        result = result.index_add(0, row, model.inner(rows[row]) * weights[row, place, None])
    return result.view_as(h)


def selective(model: Model, h: Tensor) -> Tensor:
    def policy(_, operator, *args, **kwargs):
        is_product = operator == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def block(h):
        return F.gelu(model.inner(h)).exp() * (torch.rand_like(h) > 0.1)

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(block, h, use_reentrant=False, context_fn=contexts)


CASES: dict[str, tuple[Callable, str]] = {  # the function, and a line of the report
    "rotary": (rotary, "aten::view_as_complex"),
    "Fourier": (lambda _, h: torch.fft.irfft(torch.fft.rfft(h, dim=1) * 2, dim=1, n=h.shape[1]), "aten::_fft_r2c"),
    "Fourier, two dimensions": (lambda _, h: torch.fft.fft2(h).real, "aten::_fft_c2c"),
    "conjugate": (conjugate, "aten::_conj"),
    "view of bits": (bits, "aten::view.dtype"),
    "packed weight": (packed_weight, "aten::view.dtype"),
    "quantised": (quantised, "aten::quantize_per_tensor"),
    "inverse": (lambda _, h: h @ torch.linalg.inv(definite(h)), "with_effects"),
    "solve": (lambda _, h: torch.linalg.solve(definite(h), h.mT).mT, "with_effects"),
    "Cholesky": (lambda _, h: h @ torch.linalg.cholesky(definite(h)), "with_effects"),
    "random in a checkpoint": (
        lambda _, h: checkpoint(lambda h: h.sin() * (torch.rand_like(h) > 0.1), h, use_reentrant=False),
        "run_and_save_rng_state",
    ),
    "selective checkpoint": (selective, "run_and_save_rng_state"),
    "branches": (branches, "cond"),
    "loop": (loop, "while_loop"),
    "flex attention": (flex, "flex_attention"),
    "regions": (lambda _, h: region(region(h)), "invoke_subgraph"),
    "rows that are kept": (kept_rows, "aten::nonzero"),
    "elements that are kept": (lambda _, h: h + torch.masked_select(h, h > 0).exp().mean(), "aten::masked_select"),
    "a number": (lambda _, h: h * h.detach().abs().sum().item(), ""),
    "distinct elements": (lambda _, h: h + torch.unique(h.detach().round()).sum(), "aten::_unique2"),
    "experts": (experts, "aten::nonzero"),
}
