"""Time of training steps whose sizes were not seen before: milliseconds of CPU time a step, forward and backward, in
one thread. The first sizes, which compile, are left out.

Also many steps over some lengths (--steps): plans that were made, growth of the memory in use, and GPU kernels that
were compiled, after the first sizes.

    python benchmarks/new_size.py --csv benchmarks/results/cpu/new_size.csv
    python benchmarks/new_size.py --models lm2 --backends reformer --steps 300
    python benchmarks/new_size.py --device cuda --csv benchmarks/results/h200/new_size.csv
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from results import Row, write_csv
from torch import Tensor, nn
from torch.nn import functional as F

from torch_reformer.compiler.runtime import executable
from torch_reformer.runtime import cache
from torch_reformer.tuning.workload import device_name, usable_device

WORDS, BATCH, CLASSES = 100, 4, 10
LENGTHS, IMAGES, BATCHES = (16, 120), (32, 64), (2, 8)  # from, to (both included)
FIRST = 8  # new sizes that are left out


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class LanguageModel(nn.Module):
    def __init__(self, layers: int, width: int = 64, heads: int = 4):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTHS[1], width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        return self.head(self.norm(self.blocks(x)))


def cnn() -> nn.Module:
    layers, channels = [], 3
    for width in (8, 16, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def loss_of_words(model: Callable, length: int) -> Tensor:
    words = torch.randint(WORDS, (BATCH, length + 1))
    return F.cross_entropy(model(words[:, :-1]).flatten(0, 1).float(), words[:, 1:].flatten())


def loss_of_images(model: Callable, size: tuple[int, int]) -> Tensor:
    batch, side = size
    return F.cross_entropy(model(torch.randn(batch, 3, side, side)).float(), torch.randint(CLASSES, (batch,)))


def lengths() -> Iterator:
    while True:
        yield random.randint(*LENGTHS)


def image_sizes() -> Iterator:
    while True:
        yield random.randint(*BATCHES), random.randint(*IMAGES)


MODELS = {
    "lm2": (lambda: LanguageModel(2), loss_of_words, lengths),
    "lm12": (lambda: LanguageModel(12), loss_of_words, lengths),
    "cnn": (cnn, loss_of_images, image_sizes),
}


class Planned:
    """Counts the plans that are made."""

    count = 0

    def __init__(self):
        init = executable.Executable.__init__

        def counted(*args, **kwargs):
            Planned.count += 1
            init(*args, **kwargs)

        executable.Executable.__init__ = counted


def kilobytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def times(name: str, backend: str, new_sizes: int, steps: int | None, unseen_only: bool) -> dict[str, list[float]]:
    """Milliseconds of steps of new sizes and of sizes seen before; with `steps`, as many steps."""
    make, loss, sizes = MODELS[name]
    torch.manual_seed(0)
    random.seed(0)
    torch._dynamo.reset()
    model = make()
    run = model if backend == "eager" else torch.compile(model, backend=backend)
    seen, found, planned, memory, kernels = set(), {"new": [], "seen": []}, Planned.count, None, 0
    for step, size in enumerate(sizes()):
        if len(found["new"]) >= new_sizes + FIRST if steps is None else step >= steps:
            break
        if unseen_only and size in seen:
            continue
        start = time.process_time()
        loss(run, size).backward()
        ms = (time.process_time() - start) * 1e3
        model.zero_grad()
        found["seen" if size in seen else "new"].append(ms)
        seen.add(size)
        if len(found["new"]) == FIRST and memory is None:
            memory, kernels = kilobytes(), len(cache.cached())
    growth, kernels = (kilobytes() - memory) / 1024, len(cache.cached()) - kernels
    print(
        f"{name} {backend}: {len(seen)} sizes, {Planned.count - planned} plans, memory grew by {growth:.0f} MB, "
        f"{kernels} GPU kernels compiled"
    )
    return {"new": found["new"][FIRST:], "seen": found["seen"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--backends", default="reformer,inductor")
    parser.add_argument("--sizes", type=int, default=80, help="new sizes that are timed")
    parser.add_argument("--steps", type=int, help="run so many steps, of any sizes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    device = usable_device(options.device)
    torch.set_default_device(device)
    torch.set_num_threads(1)
    Planned()
    rows = []
    for name in options.models.split(","):
        for backend in options.backends.split(","):
            for kind, ms in times(name, backend, options.sizes, options.steps, options.steps is None).items():
                if ms:
                    row = Row.of("new_size", f"{name}, {kind} size", backend, "cpu_ms", ms, device_name(device))
                    rows.append(row)
                    print(
                        f"{name} {backend}, {len(ms)} {kind} sizes: {row.p50:.1f} ms ({row.p20:.1f} to {row.p80:.1f})"
                    )
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
