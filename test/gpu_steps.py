"""Plan training steps for a GPU on a machine without one, by two plans and by one.

Prints, for some networks, the titles of the lines of both. It runs in a process with fake_gpu.environment().
"""

import json

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends import cudagraphs

import torch_reformer
from torch_reformer.compiler.analysis import fake_gpu
from torch_reformer.compiler.cli import recorded
from torch_reformer.compiler.runtime import cuda_graphs
from torch_reformer.training import capture


class Perceptrons(nn.Module):
    """Blocks whose activations, and gradients of these, may be in products' kernels."""

    def __init__(self, approximate):
        super().__init__()
        self.approximate = approximate
        self.norms = nn.ModuleList(nn.LayerNorm(1024) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(1024, 4096) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Linear(4096, 1024) for _ in range(3))

    def activation(self, x):
        if self.approximate == "tanh":  # as GPT-2 writes it
            return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3))))
        return F.gelu(x)

    def forward(self, x):
        for norm, wide, narrow in zip(self.norms, self.wide, self.narrow, strict=True):
            x = x + narrow(self.activation(wide(norm(x))))
        return x.float().square().mean()


class Embedded(nn.Module):
    """A table, and attention with a mask that is the same for all keys."""

    def __init__(self):
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(1000, 512), nn.Linear(512, 1536), nn.Linear(512, 512)

    def forward(self, words):
        x = F.dropout(self.table(words), 0.1)
        q, k, v = (each.unflatten(-1, (8, 64)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        mask = torch.zeros(len(words), 1, 1, 1, device=words.device, dtype=q.dtype).expand(-1, 1, *words.shape[1:] * 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return x.float().square().mean()


CASES = {
    "gelu": (Perceptrons("none"), torch.randn(8192, 1024)),
    "tanh": (Perceptrons("tanh"), torch.randn(8192, 1024)),
    "embedded": (Embedded(), torch.randint(1000, (8, 256))),
}


def titles(function, batch):
    (graph,) = recorded(function, batch, gpu="sm_90", on_gpu=True)
    return [line.title for each in graph.passes for line in each.lines]


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *batch):
        with torch.autocast("cuda", torch.bfloat16):
            return self.model(*batch)


def both(model, *batch):
    step = torch_reformer.training_step(
        Loss(model), lambda loss, *batch: loss(*batch), torch.optim.AdamW(model.parameters(), fused=True)
    )
    return titles(Loss(model), batch), titles(step, batch)


class Halved(nn.Module):
    """A loss with a number that is a tensor on the CPU."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return (self.layer(x).float() * torch.tensor(0.5)).square().mean()


def reasons_against_graphs():
    """Why a whole step with a tensor of the CPU may not be recorded as a CUDA graph, for each time it is asked."""
    found = []

    def refuse(module, inputs, fixed):
        found.append(cudagraphs.check_for_skip(module, fixed))
        return True  # none can be recorded here

    cuda_graphs.CudaGraphs._is_skipped = staticmethod(refuse)
    compile_step = capture.compile_step  # without a mode, since the step is only recorded
    capture.compile_step = lambda *args, **options: compile_step(*args, **options | {"mode": "reduce-overhead"})
    model = Loss(Halved())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step = torch_reformer.training_step(model, lambda loss, x: loss(x), optimizer)
    titles(step, (torch.randn(128, 64),))
    return found


if __name__ == "__main__":
    assert fake_gpu.begin()
    plans = {name: both(*case) for name, case in CASES.items()}
    print(json.dumps({"plans": plans, "graphs": reasons_against_graphs()}))
