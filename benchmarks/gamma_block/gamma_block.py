"""Γ-blocks against transformer blocks on text: test accuracy, parameters, multiply-adds, and latency at batch 1.

cd benchmarks/gamma_block
python gamma_block.py --data ../../../shared/data/text --device cuda --jobs 16 --accuracy-only --csv accuracy.csv
python gamma_block.py --data ../../../shared/data/text --latency-only --csv latency.csv

Both models are word embedding + learned positions, blocks, mean over the words, linear layer; they differ in the blocks
alone. Each takes what suits it best of the learning rates and dropouts in `GRID`; all else in training is the same.
Setting and epoch are chosen on a tenth of the training texts. The last 512 words of a text are read (Keras' customary
end of a text; 93% of IMDB and 96% of Reuters fit). Latencies are PyTorch's, and on one thread also the Γ-model's in
this package's C++ (`gamma_cpp`, in sequence_classifier/), which uses no more.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from sequence_classifier import SequenceClassifier
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from torch_reformer.selector.model import GammaBlock, TransformerBlock
from torch_reformer.tuning.timing import interleaved

sys.path.insert(0, str(Path(__file__).parents[1]))
from results import Row, geomean, write_csv  # noqa: E402

PAD, UNKNOWN, WORDS, LONGEST = 0, 2, 20_000, 512
SETS = {"reuters": 30, "imdb": 6}  # epochs of each


@dataclass(frozen=True)
class Recipe:
    """Settings of the command line; the same for both models, unless `GRID` sets it."""

    width: int = 64
    depth: int = 2
    expansion: int = 4  # hidden units of a block's MLP / width
    heads: int = 4  # the transformer's
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.05
    dropout: float = 0.2  # after the embedding, of each block's result, and before the last layer
    word_dropout: float = 0.1  # words of training texts that become the unknown word
    smoothing: float = 0.1  # of the labels
    embedding_std: float = 0.1


BLOCKS: dict[str, Callable[[Recipe], nn.Module]] = {
    "gamma": lambda r: GammaBlock(r.width, r.expansion * r.width, r.dropout),
    "transformer": lambda r: TransformerBlock(r.width, r.expansion * r.width, r.heads, r.dropout),
    # An ablation: how much of the difference is the Γ-block's cheaper activation?
    "transformer_relu": lambda r: TransformerBlock(r.width, r.expansion * r.width, r.heads, r.dropout, F.relu),
}


# What each model is tried with on each set before it is compared.
GRID = [
    {"lr": lr, "dropout": dropout, "word_dropout": word_dropout}
    for lr in (1e-3, 2e-3)
    for dropout, word_dropout in ((0.2, 0.1), (0.4, 0.3))
]
# An ablation takes the setting of the model that it is one of.
TUNED_AS = {"gamma": "gamma", "transformer": "transformer", "transformer_relu": "transformer"}


class Classifier(nn.Module):
    """Words ``[batch, length]``, padded with `PAD` at the end, to scores ``[batch, classes]``."""

    def __init__(self, model: str, classes: int, recipe: Recipe):
        super().__init__()
        self.word_dropout = recipe.word_dropout
        self.embedding = nn.Embedding(WORDS, recipe.width)
        self.positions = nn.Parameter(torch.zeros(LONGEST, recipe.width))
        self.blocks = nn.ModuleList(BLOCKS[model](recipe) for _ in range(recipe.depth))
        self.dropout = nn.Dropout(recipe.dropout)
        self.head = nn.Linear(recipe.width, classes)
        nn.init.normal_(self.embedding.weight, std=recipe.embedding_std)

    def forward(self, words: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` is true for the words that are no padding; without it there must be none."""
        if self.training:
            words = words.masked_fill(torch.rand(words.shape, device=words.device) < self.word_dropout, UNKNOWN)
        x = self.dropout(self.embedding(words) + self.positions[: words.shape[1]])
        for block in self.blocks:
            x = block(x, mask)
        if mask is None:
            x = x.mean(1)
        else:
            x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(self.dropout(F.layer_norm(x, x.shape[-1:])))


def multiply_adds(model: str, length: int, classes: int, recipe: Recipe) -> int:
    """Counts those of the matrix products, for one text of so many words."""
    w, hidden = recipe.width, recipe.expansion * recipe.width
    block = length * (3 * w * w + 2 * w * hidden)
    if model != "gamma":
        block += length * w * w + 2 * length * length * w
    return recipe.depth * block + w * classes


@torch.no_grad()
def counted_multiply_adds(model: Classifier, length: int) -> int:
    """Floating-point operations by PyTorch's counter, to compare with the formula above."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.ones(1, length, dtype=torch.long))
    return counter.get_total_flops() // 2


@dataclass
class Texts:
    """Padded words ``[texts, LONGEST]`` (the last of each text), how many they are, and labels."""

    words: Tensor
    lengths: Tensor  # stays on the CPU, where batches are planned
    labels: Tensor
    clean: Tensor  # Reuters: test texts with a body of their own and no copy in the training set; IMDB: all

    def to(self, device: str) -> Texts:
        return replace(self, words=self.words.to(device), labels=self.labels.to(device), clean=self.clean.to(device))

    def batches(self, rows: Tensor, size: int, shuffled: bool):
        """The rows in batches of similar length: (words, labels, mask, rows)."""
        if shuffled:
            rows = rows[torch.randperm(len(rows))]
            rows = torch.cat([part[self.lengths[part].argsort()] for part in rows.split(50 * size)])
        else:
            rows = rows[self.lengths[rows].argsort()]
        batches = rows.split(size)
        for i in torch.randperm(len(batches)).tolist() if shuffled else range(len(batches)):
            longest = min(LONGEST, -int(self.lengths[batches[i]].max()) // -8 * 8)
            chosen = batches[i].to(self.words.device)
            words = self.words[chosen, :longest].long()
            yield words, self.labels[chosen], words != PAD, chosen


@functools.cache
def load(file: Path) -> tuple[Texts, Texts]:
    """The training and the test texts of an npz file."""
    data = np.load(file)

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        ends = np.cumsum(data[f"{name}_len"], dtype=np.int64)[:, None]
        lengths = np.minimum(data[f"{name}_len"], LONGEST)[:, None]
        index = ends - lengths + np.arange(LONGEST)
        tokens = data[f"{name}_tok"]
        return np.where(index < ends, tokens[np.minimum(index, len(tokens) - 1)], PAD), lengths[:, 0]

    def whole(name: str) -> list[bytes]:
        return [text.tobytes() for text in np.split(data[f"{name}_tok"], np.cumsum(data[f"{name}_len"])[:-1])]

    found = []
    for name in ("train", "test"):
        words, lengths = part(name)
        clean = np.ones(len(words), bool)
        if name == "test" and "test_own_body" in data:
            copied = set(whole("train"))
            clean = data["test_own_body"].astype(bool) & [text not in copied for text in whole("test")]
        arrays = words.astype(np.int32), lengths.astype(np.int64), data[f"{name}_y"].astype(np.int64), clean
        found.append(Texts(*map(torch.from_numpy, arrays)))
    return found[0], found[1]


@dataclass
class Run:
    """A training: what, and what came of it. Accuracies in percent."""

    set: str
    model: str
    seed: int
    recipe: Recipe
    accuracy: dict[str, float] = field(default_factory=dict)
    epoch: int = 0
    seconds: float = 0.0


@torch.no_grad()
def evaluate(model: Classifier, texts: Texts, rows: Tensor) -> tuple[Tensor, Tensor]:
    """For every text, by its number: whether it is classified right, and its loss. NaN where it is not in rows."""
    model.eval()
    right, loss = (torch.full((len(texts.labels),), math.nan, device=texts.words.device) for _ in range(2))
    for words, labels, mask, chosen in texts.batches(rows, 512, shuffled=False):
        scores = model(words, mask)
        right[chosen] = (scores.argmax(-1) == labels).float()
        loss[chosen] = F.cross_entropy(scores, labels, reduction="none")
    return right, loss


def train(run: Run, data: Path, epochs: int | None, device: str) -> Run:
    start, recipe = time.perf_counter(), run.recipe
    torch.set_float32_matmul_precision("high")
    training, test = (texts.to(device) for texts in load(data / f"{run.set}.npz"))
    torch.manual_seed(run.seed)  # the same held-out texts for both models
    held_out, used = torch.randperm(len(training.labels)).tensor_split([len(training.labels) // 10])
    model = Classifier(run.model, int(training.labels.max()) + 1, recipe).to(device)

    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and not name.endswith(("positions", "taps"))]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.lr,
        betas=(0.9, 0.98),
        fused=True,
    )
    epochs = epochs or SETS[run.set]
    steps = epochs * math.ceil(len(used) / recipe.batch)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (1 + math.cos(math.pi * step / steps)) / 2)
    )

    best, state = (-1.0, -math.inf), None
    for epoch in range(1, epochs + 1):
        model.train()
        for words, labels, mask, _ in training.batches(used, recipe.batch, shuffled=True):
            loss = F.cross_entropy(model(words, mask), labels, label_smoothing=recipe.smoothing)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        right, losses = evaluate(model, training, held_out)
        found = right.nanmean().item(), -losses.nanmean().item()
        if found > best:
            best, run.epoch, state = found, epoch, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    right, _ = evaluate(model, test, torch.arange(len(test.labels)))
    run.accuracy = {"validation": best[0] * 100, "test": right.mean().item() * 100}
    if not test.clean.all():
        run.accuracy["clean test"] = right[test.clean].mean().item() * 100
    run.seconds = time.perf_counter() - start
    return run


def train_all(options: argparse.Namespace, recipe: Recipe):
    """Every run as it ends, and whether it is one to compare (by the setting of its model that is best)."""
    common = options.data, options.epochs, options.device
    with contextlib.ExitStack() as stack:
        each: Callable = map
        if options.jobs > 1:
            context = multiprocessing.get_context("spawn")
            workers = context.Pool(options.jobs, initializer=torch.set_num_threads, initargs=(1,))
            each = functools.partial(stack.enter_context(workers).imap_unordered, chunksize=1)

        def trained(runs: list[Run]):
            return each(_train, [(run, *common) for run in runs])

        settings = [replace(recipe, **knobs) for knobs in GRID] if options.tune else [recipe]
        tuned = dict.fromkeys(TUNED_AS[model] for model in options.models)
        cases = itertools.product(options.sets, range(options.tune), tuned, settings)
        tried = []
        for run in trained([Run(name, model, seed, setting) for name, seed, model, setting in cases]):
            tried.append(run)
            yield run, False

        best = {}
        for name, model in itertools.product(options.sets, options.models):
            validation = {setting: 0.0 for setting in settings}
            for run in tried:
                if (run.set, run.model) == (name, TUNED_AS[model]):
                    validation[run.recipe] += run.accuracy["validation"]
            best[name, model] = max(validation, key=validation.get)
        cases = itertools.product(options.sets, range(options.seeds), options.models)
        runs = [Run(name, model, seed, best[name, model]) for name, seed, model in cases]
        done = {(run.set, run.model, run.seed, run.recipe): run for run in tried}
        for run in runs:
            if (run.set, run.model, run.seed, run.recipe) in done:
                yield done[run.set, run.model, run.seed, run.recipe], True
        missing = [run for run in runs if (run.set, run.model, run.seed, run.recipe) not in done]
        yield from ((run, True) for run in trained(missing))


def _train(arguments: tuple) -> Run:
    return train(*arguments)


def described(run: Run) -> str:
    return f"{run.set} seed={run.seed} " + " ".join(f"{knob}={getattr(run.recipe, knob)}" for knob in GRID[0])


def accuracy_rows(run: Run, compared: bool, device: str) -> list[Row]:
    """Runs that only helped to choose a setting have no test accuracies here."""
    rows = []
    for of, value in run.accuracy.items():
        if not compared and of != "validation":
            continue
        benchmark = "gamma_block" if compared else "gamma_block_tuning"
        row = Row.of(benchmark, described(run), run.model, f"{of}_accuracy_percent", [value] * 2)
        rows.append(replace(row, metric=row.metric.replace(" ", "_"), device=device))
    return rows


def accuracy_table(runs: list[Run]) -> list[str]:
    lines = [
        "| texts | model | accuracy, % | std | least | most | minus transformer |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run.set for run in runs):
        here = [run for run in runs if run.set == name]
        for of in here[0].accuracy:
            by_seed = {(run.model, run.seed): run.accuracy[of] for run in here}
            for model in dict.fromkeys(run.model for run in here):
                values = [value for (m, _), value in by_seed.items() if m == model]
                pairs = [v - by_seed["transformer", s] for (m, s), v in by_seed.items()
                         if m == model != "transformer" and ("transformer", s) in by_seed]  # fmt: skip
                std = statistics.stdev(values) if len(values) > 1 else math.nan
                line = f"| {name}, {of} | {model} | {statistics.mean(values):.2f} | {std:.2f} | {min(values):.2f} "
                line += f"| {max(values):.2f} | {f'{statistics.mean(pairs):+.2f}' if pairs else ''}"
                if len(pairs) > 1:
                    line += f" ± {statistics.stdev(pairs) / math.sqrt(len(pairs)):.2f}"
                lines.append(line + " |")
    return lines


def size_table(options: argparse.Namespace, recipe: Recipe) -> list[str]:
    lines = [
        "| texts | model | parameters | of them in blocks | multiply-adds at the median length |",
        "|---|---|---|---|---|",
    ]
    for name in options.sets:
        training, test = load(options.data / f"{name}.npz")
        classes, length = int(training.labels.max()) + 1, int(test.lengths.median())
        for model in options.models:
            made = Classifier(model, classes, recipe)
            total, blocks = (sum(p.numel() for p in m.parameters()) for m in (made, made.blocks))
            macs = multiply_adds(model, length, classes, recipe)
            if macs != counted_multiply_adds(made, length):
                raise AssertionError(f"multiply-adds of {model}: formula {macs}, counted otherwise")
            lines.append(f"| {name} | {model} | {total:,} | {blocks:,} | {macs / 1e6:.1f} M ({length} words) |")
    return lines


def latency_rows(options: argparse.Namespace, recipe: Recipe):
    """Times of single texts whose lengths are the test set's quantiles. Weights don't matter to them."""
    for name in options.sets:
        training, test = load(options.data / f"{name}.npz")
        order = test.lengths.argsort()
        chosen = [order[int((i + 0.5) / options.texts * len(order))] for i in range(options.texts)]
        models = {m: Classifier(m, int(training.labels.max()) + 1, recipe).eval() for m in options.models}
        in_cpp = SequenceClassifier(models["gamma"].state_dict()) if "gamma" in models else None
        for threads in options.threads:
            torch.set_num_threads(threads)
            for i, text in enumerate(chosen):
                words = test.words[text, : test.lengths[text]].long()[None]
                calls = {m: lambda model=model, words=words: model(words) for m, model in models.items()}
                if in_cpp and threads == 1:  # it has no more
                    calls["gamma_cpp"] = lambda words=words[0], model=in_cpp: model.logits(words)
                    torch.testing.assert_close(calls["gamma_cpp"](), calls["gamma"]()[0], atol=1e-5, rtol=1e-5)
                with torch.inference_mode():
                    times = interleaved(calls, seconds=options.seconds, least=20, most=500)
                case = f"{name} text={i} words={words.shape[1]} threads={threads}"
                yield from (Row.of("gamma_block", case, m, "time_us", values) for m, values in times.items())


def latency_table(rows: list[Row]) -> list[str]:
    head = "| texts | threads | model | time, us | transformer / it | least | most |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        name, *_, threads = row.case.split()
        for group in (name, "all"):
            times.setdefault((group, threads.split("=")[1]), {}).setdefault(row.provider, []).append(row.p50)
    for (name, threads), of in sorted(times.items()):
        for model, values in of.items():
            ratios = [t / v for t, v in zip(of.get("transformer", []), values, strict=False)]
            ratio = f"{geomean(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f}" if ratios else " | | "
            lines.append(f"| {name} | {threads} | {model} | {geomean(values):.0f} | {ratio} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of imdb.npz and reuters.npz")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=BLOCKS, default=list(BLOCKS))
    parser.add_argument("--device", default="cpu", help="where to train; latency is always the CPU's")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each model on each set")
    parser.add_argument("--tune", type=int, default=2, help="trainings of each setting; 0: compare by one setting")
    parser.add_argument("--epochs", type=int, help=f"default: {SETS}")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the latencies")
    parser.add_argument("--texts", type=int, default=24, help="of each set, whose latency is measured")
    parser.add_argument("--seconds", type=float, default=0.5, help="for the latency of a text")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--accuracy-only", action="store_true")
    only.add_argument("--latency-only", action="store_true")
    for knob in fields(Recipe):
        name = "--" + knob.name.replace("_", "-")
        parser.add_argument(name, type=type(knob.default), default=knob.default, help=f"default: {knob.default}")
    options = parser.parse_args()
    recipe = Recipe(**{knob.name: getattr(options, knob.name) for knob in fields(Recipe)})

    rows, runs, tables = [], [], [size_table(options, recipe)]
    if not options.latency_only:
        device = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
        for run, compared in train_all(options, recipe):
            if compared:
                runs.append(run)
            found = accuracy_rows(run, compared, device)
            rows += found
            words = ", ".join(f"{row.metric.removesuffix('_accuracy_percent')} {row.p50:.2f}" for row in found)
            print(f"{run.model} {described(run)}: {words}; epoch {run.epoch}, {run.seconds:.0f} s", flush=True)
            if options.csv:  # what there is survives a run that is cut short
                write_csv(options.csv, rows)
        tables.append(accuracy_table(sorted(runs, key=lambda run: (run.set, run.model, run.seed))))
    if not options.accuracy_only:
        latencies = list(latency_rows(options, recipe))
        rows += latencies
        tables.append(latency_table(latencies))
    if options.csv:
        write_csv(options.csv, rows)
    print("\n" + "\n\n".join("\n".join(table) for table in tables))


if __name__ == "__main__":
    main()
