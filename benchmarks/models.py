"""Models in training, by names: torchvision's (``resnet50``), timm's (``timm/swin_tiny_patch4_window7_224``), and
transformers of texts (``bert_base``, ``bert_large``, ``bert_two_layers``, ``gpt2``, ``transformer``), all with random
weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if not torch.cuda.is_available():
    # PyPI's torchvision has operators for CUDA's torch only; beside a CPU's its import asks for the names of two of
    # them, which no model here calls.
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

CLASSES, WORDS = 100, 1000


class Task(NamedTuple):
    """batch() gives new tensors, and loss(model, *batch) a model's loss of them."""

    model: nn.Module
    batch: Callable[[], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]


def image_model(name: str, **options) -> nn.Module:
    package, _, of_package = name.rpartition("/")
    if package == "timm":
        import timm

        return timm.create_model(of_package, **options)
    from torchvision.models import get_model

    return get_model(name, **options)


def images(name: str, count: int, device: torch.device) -> Task:
    """Images of 224x224 and their classes. An image is its class's pattern and as much noise, so that the loss falls
    steadily: where noise is learnt by heart, two runs of PyTorch itself have losses that fall apart."""
    model = image_model(name, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
    patterns = F.interpolate(torch.randn(CLASSES, 3, 7, 7, device=device), (224, 224))

    def batch() -> tuple[Tensor, Tensor]:
        classes = torch.randint(CLASSES, (count,), device=device)
        noisy = patterns[classes] + torch.randn(count, 3, 224, 224, device=device)
        return noisy.to(memory_format=torch.channels_last), classes

    return Task(model, batch, lambda model, images, classes: F.cross_entropy(model(images), classes))


def texts(count: int, length: int, device: torch.device) -> Tensor:
    """Rows of tokens, each some words on from the one before it."""
    first, far = (torch.randint(1, WORDS, (count, 1), device=device) for _ in range(2))
    return (first + far * torch.arange(length, device=device)) % WORDS


def bert(name: str, count: int, length: int, device: torch.device) -> Task:
    """A sixth of the tokens is to be guessed."""
    from transformers import BertConfig, BertForMaskedLM

    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    sizes = {"bert_large": large, "bert_two_layers": {"num_hidden_layers": 2}}
    model = BertForMaskedLM(BertConfig(**sizes.get(name, {})))

    def batch() -> tuple[Tensor, Tensor]:
        tokens = texts(count, length, device)
        hidden = torch.rand(tokens.shape, device=device) < 1 / 6
        return torch.where(hidden, WORDS, tokens), torch.where(hidden, tokens, -100)

    return Task(model.to(device), batch, lambda model, tokens, labels: model(input_ids=tokens, labels=labels).loss)


def gpt2(name: str, count: int, length: int, device: torch.device) -> Task:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).to(device)
    return Task(
        model,
        lambda: (texts(count, length, device),),
        lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
    )


class Translator(nn.Module):
    """An encoder and a decoder, as of "Attention is all you need"."""

    def __init__(self, words: int, length: int, width: int = 512):
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width))
        self.layers = nn.Transformer(width, batch_first=True)
        self.last = nn.Linear(width, words)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source, target = (self.embedding(each) + self.places for each in (source, target))
        return self.last(self.layers(source, target, tgt_mask=self.later, tgt_is_causal=True))


def transformer(name: str, count: int, length: int, device: torch.device) -> Task:
    """Its target is its source, read backwards."""

    def batch() -> tuple[Tensor, Tensor]:
        tokens = texts(count, length, device)
        return tokens, tokens.flip(1)

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        found = model(source, F.pad(target[:, :-1], (1, 0)))
        return F.cross_entropy(found.flatten(0, 1), target.flatten())

    return Task(Translator(WORDS, length).to(device), batch, loss)


_OF_TEXTS = {"bert_base": bert, "bert_large": bert, "bert_two_layers": bert, "gpt2": gpt2, "transformer": transformer}


def task(name: str, device: torch.device) -> Task:
    """name: a model and its batch, ``resnet50:128``, or a batch of texts and their length, ``bert_base:8x128``."""
    model, _, batch = name.partition(":")
    if model in _OF_TEXTS:
        count, length = map(int, batch.split("x"))
        return _OF_TEXTS[model](model, count, length, device)
    return images(model, int(batch), device)
