"""Functions that choose elements by whole numbers, masks and maxima, and norms of few elements: further cases of
sub_graphs.py (`--cases choices`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sub_graph_cases import Case, Inputs
from torch import Tensor
from torch.nn import functional as F


def _quantised(x: Tensor, scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest code of each row, and the distance from it (VQ-VAE)."""
    chosen = F.embedding(scores.argmax(-1), codes)
    return chosen, (x - chosen.detach()).square().mean(-1)


def _attended(scores: Tensor, ids: Tensor) -> Tensor:
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    kept = (ids != 0)[:, None, None, :] & causal
    return scores.masked_fill(~kept, torch.finfo(scores.dtype).min).softmax(-1)


def _mean_of_tokens(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def _of_equal_labels(scores: Tensor, labels: Tensor) -> Tensor:
    """Loss of each row by the rows with its label (SupCon)."""
    equal = labels[:, None] == labels
    return -(scores.float().log_softmax(-1) * equal).sum(-1) / equal.sum(-1)


def _hardest(distances: Tensor, labels: Tensor) -> Tensor:
    """The farthest row with the same label less the nearest with another (triplet loss)."""
    equal = labels[:, None] == labels
    return distances.masked_fill(~equal, 0).amax(-1) - distances.masked_fill(equal, 1e4).amin(-1)


def _among_documents(scores: Tensor, documents: Tensor) -> Tensor:
    equal = documents[:, :, None] == documents[:, None]
    return scores.masked_fill(~equal[:, None], torch.finfo(scores.dtype).min).softmax(-1)


def choice_cases(make: Inputs) -> dict[str, Callable[[], Case]]:
    """Cases by name; sizes are those of the models named in brackets."""
    made: dict[str, Callable[[], tuple]] = {
        "one-hot of 64 times features": lambda: (
            lambda ids, x: F.one_hot(ids, 64).to(x.dtype) * x,
            make.labels(64, 32, 512),
            make.rows(32, 512, 64),
        ),
        "nearest of 1024 codes (VQ-VAE)": lambda: (
            _quantised,
            make.rows(16384, 64),
            make.rows(16384, 1024).detach(),
            make.parameter(1024, 64, dtype=torch.bfloat16),
        ),
        "relu + maximum over 20 neighbours (DGCNN)": lambda: (
            lambda x: torch.relu(x).max(2)[0],
            make.rows(16, 1024, 20, 64),
        ),
        "relu + maximum over 1024 points (PointNet)": lambda: (
            lambda x: torch.relu(x).max(1)[0],
            make.rows(32, 1024, 256),
        ),
        "maximum of rows": lambda: (lambda x: x.max(-1)[0], make.rows(32768, 1024)),
        "softmax of what ids and positions mask": lambda: (
            _attended,
            make.rows(16, 12, 512, 512),
            make.labels(4, 16, 512),
        ),
        "mean of masked tokens": lambda: (
            _mean_of_tokens,
            make.rows(32, 512, 768),
            make.labels(2, 32, 512),
        ),
        "losses by equal labels (SupCon)": lambda: (_of_equal_labels, make.rows(4096, 4096), make.labels(100, 4096)),
        "hardest triplets": lambda: (_hardest, make.rows(4096, 4096), make.labels(100, 4096)),
        "softmax among documents": lambda: (
            _among_documents,
            make.rows(8, 8, 1024, 1024),
            make.labels(9, 8, 1024),
        ),
        "chosen actions' values (DQN)": lambda: (
            lambda x, actions: x.float().gather(1, actions),
            make.rows(65536, 64),
            make.labels(64, 65536, 1),
        ),
        "instance norm + relu, channels_last": lambda: (
            lambda x: torch.relu(F.instance_norm(x)),
            make.images(16, 128, 64, 64),
        ),
        "group norm of tokens (RWKV)": lambda: (
            lambda x: F.group_norm(x, 8),
            make.rows(16384, 512),
        ),
    }

    def case(function: Callable, *inputs: Tensor) -> Case:
        return Case(function, inputs)

    return {name: lambda maker=maker: case(*maker()) for name, maker in made.items()}
