"""Times training steps of the clients of docs/examples.md by PyTorch, torch.compile and this package, in turns, at
sizes that take a CPU 50 to 500 ms a step. Losses of the first steps have to agree. Clients whose packages are not
installed (pip install --group clients) are left out; so are FSDP2 and tensor parallelism, which need several processes.

    python benchmarks/gallery.py --csv benchmarks/results/cpu/gallery.csv
    python benchmarks/gallery.py --clients timm,torchvision --seconds 5
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import models  # noqa: F401  lets torchvision load beside a CPU build of torch
import torch
from results import Row, write_csv
from torch import nn
from torch.nn import functional as F

import torch_reformer
from torch_reformer import program as ep
from torch_reformer.tuning.timing import interleaved

COMPILERS = {  # provider: compiles a model in place
    "torch": lambda model: None,
    "torch.compile": lambda model: model.compile(),
    "torch_reformer": torch_reformer.fuse,
}
SQUASHED = ep.Program(ep.store(ep.tanh(ep.acc() * ep.channel("scale") + ep.full("residual"))))
Step = Callable[[], torch.Tensor]  # one training step; returns its loss


def step_of(loss: Step, optimizer: torch.optim.Optimizer, backward=torch.Tensor.backward) -> Step:
    def step():
        value = loss()
        backward(value)
        optimizer.step()
        optimizer.zero_grad()
        return value.detach()

    return step


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)


def convolutions() -> nn.Sequential:
    widths = [(3, 32), (32, 64), (64, 128)]
    layers = [(nn.Conv2d(c, k, 3, 2, 1, bias=False), nn.BatchNorm2d(k), nn.SiLU()) for c, k in widths]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)
    return nn.Sequential(*(layer for block in layers for layer in block), *head)


def images(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, size, size), torch.arange(count) % 10


def perceptron(width: int, depth: int) -> nn.Sequential:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def plain_loop(provider: str) -> Step:
    model, (x, y) = convolutions(), images(32, 96)
    COMPILERS[provider](model)
    return step_of(lambda: F.cross_entropy(model(x), y), optimizer_of(model))


def training_step(provider: str) -> Step:
    if provider != "torch_reformer":
        return plain_loop(provider)
    model, (x, y) = convolutions(), images(32, 96)
    step = torch_reformer.training_step(model, lambda model, x, y: F.cross_entropy(model(x), y), optimizer_of(model))
    return lambda: step(x, y)


def trainer(provider: str) -> Step:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # random numbers would differ
    config = BertConfig(vocab_size=1000, problem_type="single_label_classification", **sizes, **dropout)
    model = BertForSequenceClassification(config)
    COMPILERS[provider](model)
    batch = {"input_ids": torch.randint(1000, (8, 64)), "labels": torch.arange(8) % 2}
    client = Trainer(model, TrainingArguments(tempfile.gettempdir(), use_cpu=True, report_to=[]))
    return step_of(lambda: client.compute_loss(model, batch), client.create_optimizer(), client.accelerator.backward)


def accelerate(provider: str) -> Step:
    from accelerate import Accelerator

    client, model = Accelerator(cpu=True), perceptron(512, 6)
    COMPILERS[provider](model)
    model, optimizer = client.prepare(model, optimizer_of(model))
    x, y = torch.randn(1024, 512), torch.arange(1024) % 10
    return step_of(lambda: F.cross_entropy(model(x), y), optimizer, client.backward)


def lightning(provider: str) -> Step:
    from lightning.fabric import Fabric

    client, model, (x, y) = Fabric(accelerator="cpu"), convolutions(), images(32, 96)
    COMPILERS[provider](model)
    model, optimizer = client.setup(model, optimizer_of(model))
    return step_of(lambda: F.cross_entropy(model(x), y), optimizer, client.backward)


def timm(provider: str) -> Step:
    from timm import create_model

    model, (x, y) = create_model("resnet10t", num_classes=10).train(), images(8, 128)
    COMPILERS[provider](model)
    return step_of(lambda: F.cross_entropy(model(x), y), optimizer_of(model))


def torchvision(provider: str) -> Step:
    from torchvision.models import mobilenet_v3_small

    model, (x, y) = mobilenet_v3_small(num_classes=10, dropout=0.0), images(16, 128)
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    COMPILERS[provider](model)
    return step_of(lambda: F.cross_entropy(model(x), y), optimizer_of(model))


def diffusers(provider: str) -> Step:
    from diffusers import UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = UNet2DModel(sample_size=32, layers_per_block=1, block_out_channels=(32, 64), norm_num_groups=8, **blocks)
    COMPILERS[provider](model)
    x, times, noise = torch.randn(8, 3, 32, 32), torch.arange(8), torch.randn(8, 3, 32, 32)
    return step_of(lambda: F.mse_loss(model(x, times).sample, noise), optimizer_of(model))


def peft(provider: str) -> Step:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    others = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    base = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=128, n_embd=256, n_layer=4, n_head=4, **others))
    base.loss_type = "ForCausalLM"  # or else the model logs that it takes this one, which breaks the graph off
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    COMPILERS[provider](model)
    tokens = torch.randint(1000, (4, 128))
    return step_of(lambda: model(input_ids=tokens, labels=tokens).loss, optimizer_of(model))


def regional_compilation(provider: str) -> Step:
    class Block(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            )

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x))))

    model = nn.Sequential(*(Block(256) for _ in range(6)), nn.Linear(256, 10))
    for block in model[:6]:
        COMPILERS[provider](block)
    x, y = torch.randn(1024, 256), torch.arange(1024) % 10
    return step_of(lambda: F.cross_entropy(model(x), y), optimizer_of(model))


def own_program(provider: str) -> Step:
    class Squashed(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3) / (3 * channels**0.5))
            self.scale = nn.Parameter(torch.ones(channels))

        def forward(self, x):
            if provider == "torch_reformer":
                tensors = {"scale": self.scale, "residual": x}
                return torch_reformer.conv2d_epilogue(x, self.weight, SQUASHED, tensors, padding=1)
            return torch.tanh(F.conv2d(x, self.weight, padding=1) * self.scale.view(-1, 1, 1) + x)

    model, x = nn.Sequential(*(Squashed(64) for _ in range(4))), torch.randn(8, 64, 32, 32)
    COMPILERS[provider](model)
    return step_of(lambda: F.mse_loss(model(x), x.roll(1, 3)), optimizer_of(model))


CLIENTS = (
    *(plain_loop, training_step, trainer, accelerate, lightning, timm, torchvision, diffusers, peft),
    *(regional_compilation, own_program),
)


def measure(client: Callable[[str], Step], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of a step by each provider."""
    steps, losses = {}, {}
    for provider in COMPILERS:
        torch.manual_seed(0)
        steps[provider] = client(provider)
        losses[provider] = torch.stack([steps[provider]() for _ in range(3)])
        torch.testing.assert_close(losses[provider], losses["torch"], rtol=1e-3, atol=1e-4)
    times = interleaved(steps, seconds=seconds, most=100)
    return {provider: [microseconds / 1e3 for microseconds in values] for provider, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default=",".join(client.__name__ for client in CLIENTS))
    parser.add_argument("--seconds", type=float, default=30, help="for the timed steps of a client")
    parser.add_argument("--csv", type=Path, help="write every measurement here")
    options = parser.parse_args()
    asked, rows = options.clients.split(","), []
    if unknown := set(asked) - {client.__name__ for client in CLIENTS}:
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    print("| client | torch, ms | torch.compile, ms | torch_reformer, ms | torch over ours | torch.compile over ours |")
    print("|---|---|---|---|---|---|")
    for client in (client for client in CLIENTS if client.__name__ in asked):
        try:
            times = measure(client, options.seconds)
        except ModuleNotFoundError as error:
            print(f"| {client.__name__} | {error} | | | | |", flush=True)
            continue
        torch._dynamo.reset()
        rows += [Row.of("gallery", client.__name__, provider, "step_ms", values) for provider, values in times.items()]
        eager, inductor, ours = (statistics.median(values) for values in times.values())
        print(
            f"| {client.__name__} | {eager:.0f} | {inductor:.0f} | {ours:.0f} | {eager / ours:.2f} "
            f"| {inductor / ours:.2f} |",
            flush=True,
        )
    if options.csv:
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
