"""Trains a small residual network on handwritten digits three times, side by side: by plain PyTorch, with this
package's kernels for its convolutions, and compiled by this package.

    python -m torch_reformer.demo

All three start from the same weights and see the same batches. Their epochs are interleaved, so that other load on the
machine affects them equally. Compilation time is not included in the training times.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import torch_reformer

from .problem import ConvProblem
from .runtime import native
from .selector.candidates import candidates

SCALE = 4  # the 8x8 images are enlarged to 32x32, so that the choice of a kernel matters
BATCH = 64


class Block(nn.Module):
    """3x3, depthwise 3x3 and 1x1 convolutions with a shortcut (a strided 1x1 convolution if the size changes)."""

    def __init__(self, c: int, k: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU()),
            *(nn.Conv2d(k, k, 3, 1, 1, groups=k, bias=False), nn.BatchNorm2d(k), nn.ReLU()),
            *(nn.Conv2d(k, k, 1, bias=False), nn.BatchNorm2d(k)),
        )
        same = stride == 1 and c == k
        self.shortcut = nn.Identity() if same else nn.Conv2d(c, k, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2), Block(64, 64, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, then those of the test set, a fifth of the data. Raises ImportError without
    scikit-learn."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)
    images = F.interpolate(images, scale_factor=SCALE, mode="bilinear")
    labels = torch.from_numpy(data.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    return images[train], labels[train], images[test], labels[test]


class Run:
    """Training of one network, with its time and loss so far."""

    def __init__(self, name: str, model: nn.Module, steps: int):
        self.name, self.model = name, model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, steps)
        self.seconds = 0.0
        self.loss = float("nan")  # mean over the latest epoch

    def step(self, images: Tensor, labels: Tensor) -> float:
        loss = F.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def epoch(self, images: Tensor, labels: Tensor, order: list[Tensor], bar) -> None:
        start, losses = time.perf_counter(), []
        for batch in order:
            losses.append(self.step(images[batch], labels[batch]))
            bar.update()
        self.seconds += time.perf_counter() - start
        self.loss = sum(losses) / len(losses)

    @torch.no_grad()
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        self.model.eval()
        right = (self.model(images).argmax(1) == labels).float().mean().item()
        self.model.train()
        return right


def seconds_of_first_step(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Duration of the first forward and backward; leaves the model unchanged."""
    state = copy.deepcopy(model.state_dict())
    start = time.perf_counter()
    F.cross_entropy(model(images[:BATCH]), labels[:BATCH]).backward()
    seconds = time.perf_counter() - start
    model.zero_grad()
    model.load_state_dict(state)
    return seconds


def train(models: dict[str, nn.Module], images: Tensor, labels: Tensor, epochs: int) -> list[Run]:
    """Train each model on the same batches, interleaved by epoch. All batches have the same size, since another size
    would compile the model again."""
    count = len(labels) // BATCH * BATCH
    orders = [torch.randperm(len(labels))[:count].split(BATCH) for _ in range(epochs)]
    runs = [Run(name, model, sum(map(len, orders))) for name, model in models.items()]
    with tqdm(total=sum(map(len, orders)) * len(runs), unit="step") as bar:
        for number, order in enumerate(orders):
            for run in runs[number % len(runs) :] + runs[: number % len(runs)]:
                run.epoch(images, labels, order, bar)
            bar.set_postfix({f"loss {run.name}": f"{run.loss:.4f}" for run in runs})
    return runs


def print_result(runs: list[Run], images: Tensor, labels: Tensor) -> None:
    print(f"\n{'':20}{'loss, last epoch':>18}{'test accuracy':>16}{'training time, s':>18}{'speed-up':>10}")
    for run in runs:
        ratio = f"{runs[0].seconds / run.seconds:.2f}x"
        print(f"{run.name:20}{run.loss:18.5f}{run.accuracy(images, labels):16.4f}{run.seconds:18.1f}{ratio:>10}")


def print_problems(run: Run, images: Tensor, labels: Tensor) -> None:
    """Print the problems of one training step and the kernel chosen for each."""
    with torch_reformer.record_problems() as problems:
        run.step(images[:BATCH], labels[:BATCH])
    width = max(len(str(problem)) for problem, _ in problems)
    print(f"\n{'convolution problem':{width}}  calls a step  kernel")
    for (problem, device), calls in problems.items():
        kernel = next(candidate.name for candidate in candidates(problem, device) if candidate.chosen)
        print(f"{problem!s:{width}}  {calls:12}  {kernel}")
    decided, remembered = decision_times([problem for problem, _ in problems])
    decider = "the selector" if native.selector("cpu") else "the static rule"
    print(f"\n{decider} decided each of these in {decided:.1f} us, and remembers a decision in {remembered:.2f} us")


def decision_times(problems: Sequence[ConvProblem]) -> tuple[float, float]:
    """Mean microseconds to decide a problem for the first time, and to look up the remembered decision."""
    asked = [problem.native() for problem in problems]

    def ask() -> float:
        start = time.perf_counter()
        native.decide_all(asked)
        return (time.perf_counter() - start) * 1e6 / len(asked)

    with ThreadPoolExecutor(1) as fresh_thread:  # each thread has its own cache of decisions
        return fresh_thread.submit(ask).result(), min(fresh_thread.submit(ask).result() for _ in range(10))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m torch_reformer.demo", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="how often each model sees the digits (8)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights and of the batches' order (0)")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}")
    torch.manual_seed(options.seed)
    try:
        train_images, train_labels, test_images, test_labels = digits()
    except ImportError as error:
        parser.exit(1, f"the demo trains on scikit-learn's handwritten digits: pip install scikit-learn ({error})\n")
    plain = network()
    converted, fused = copy.deepcopy(plain), copy.deepcopy(plain)
    print(torch_reformer.convert(converted))
    fusion = torch_reformer.fuse(fused)
    models = {"PyTorch": plain, "kernels chosen": converted, "fused": fused}
    *_, seconds = [seconds_of_first_step(model, train_images, train_labels) for model in models.values()]
    print(f"fuse: {str(fusion).splitlines()[0]}, in {seconds:.1f} s")
    runs = train(models, train_images, train_labels, options.epochs)
    print_result(runs, test_images, test_labels)
    print_problems(runs[1], train_images, train_labels)


if __name__ == "__main__":
    main()
