"""Training tasks by name, all with random weights: torchvision's models (``resnet50``, for segmentation
``segmentation/fcn_resnet50``), timm's (``timm/swin_tiny_patch4_window7_224``), transformers of texts (``bert_base``,
``bert_large``, ``bert_two_layers``, ``gpt2``, with a large vocabulary ``gpt2_128256``, ``transformer``, on movie
reviews ``bert_base_imdb``, and those in _TRANSFORMERS), models of diffusion_models.py (``dit``, ``unet``), and further
ones of paper_models.py (``xml_cnn``, ``gcn``, ``dien``)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
import torch.nn.functional as F
from diffusion_models import DiffusionTransformer, UNet
from paper_models import Dien, Gcn, Translator, XmlCnn
from torch import Tensor, nn

if not torch.cuda.is_available() and not hasattr(torch.ops.torchvision, "nms"):
    # PyPI's torchvision has operators only for torch with CUDA. With a CPU build of torch, its import needs the names
    # of two operators that no model here calls.
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

CLASSES, WORDS = 100, 1000
RANKS = 30000  # ranks of words in reviews; rarer words share the last one
REVIEWS_VARIABLE = "REFORMER_REVIEWS"
REVIEWS = Path(os.environ.get(REVIEWS_VARIABLE, Path(__file__).parents[2] / "shared/data/text/imdb.npz"))


class Task(NamedTuple):
    """Model to train: batch() creates new tensors, and loss(model, *batch) is the model's loss for them."""

    model: nn.Module
    batch: Callable[[], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]


class Step(nn.Module):
    """Training step of a task's model with its loss, under bf16 autocast."""

    def __init__(self, task: Task, device_type: str):
        super().__init__()
        self.model, self.loss, self.device_type = task.model.train(), task.loss, device_type

    def forward(self, *batch: Tensor) -> Tensor:
        with torch.autocast(self.device_type, torch.bfloat16):
            return self.loss(self.model, *batch)


class WithLoss(nn.Module):
    """Model and its loss(model, *batch), which are compiled as one: what only the loss reads is no result, so that no
    compiler has to store it."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self.loss(self.model, *batch)


def with_loss(model: nn.Module, batch: Callable[[], tuple[Tensor, ...]], loss: Callable[..., Tensor]) -> Task:
    return Task(WithLoss(model, loss), batch, lambda whole, *given: whole(*given))


def of_last(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The loss of a model's result and the last tensor of the batch."""
    return lambda model, *given: loss(model(*given[:-1]), given[-1])


def image_model(name: str, **options) -> nn.Module:
    package, _, of_package = name.rpartition("/")
    if package == "timm":
        import timm

        return timm.create_model(of_package, **options)
    from torchvision.models import get_model

    return get_model(name, **options)


def images(name: str, count: int, size: int, device: torch.device) -> Task:
    """Task of classifying square images. An image is the pattern of its class plus as much noise, so that the loss
    falls steadily: when a model memorises noise, the losses of two runs of PyTorch itself diverge."""
    model = image_model(name, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
    patterns = F.interpolate(torch.randn(CLASSES, 3, 7, 7, device=device), (size, size))

    def batch() -> tuple[Tensor, Tensor]:
        classes = torch.randint(CLASSES, (count,), device=device)
        noisy = patterns[classes] + torch.randn(count, 3, size, size, device=device)
        return noisy.to(memory_format=torch.channels_last), classes

    def loss(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
        found = model(images)
        return F.cross_entropy(found if isinstance(found, Tensor) else found[0], classes)  # without auxiliary outputs

    return Task(model, batch, loss)


def segmentation(name: str, count: int, size: int, device: torch.device) -> Task:
    """Task of telling for each pixel of an image if its first channel is positive."""
    from torchvision.models.segmentation import __dict__ as by_name

    model = by_name[name](weights=None, weights_backbone=None, num_classes=2)
    model = model.to(device, memory_format=torch.channels_last)

    def batch() -> tuple[Tensor, Tensor]:
        found = torch.randn(count, 3, size, size, device=device).to(memory_format=torch.channels_last)
        return found, (found[:, 0] > 0).long()

    return Task(model, batch, lambda model, images, classes: F.cross_entropy(model(images)["out"], classes))


def texts(count: int, length: int, device: torch.device) -> Tensor:
    """Rows of tokens, each a fixed distance from the one before it."""
    first, far = (torch.randint(1, WORDS, (count, 1), device=device) for _ in range(2))
    return (first + far * torch.arange(length, device=device)) % WORDS


@functools.cache
def _reviews() -> Tensor:
    if not REVIEWS.exists():
        raise SystemExit(f"there are no reviews at {REVIEWS}: set {REVIEWS_VARIABLE} to a file of keras.datasets.imdb")
    return torch.from_numpy(numpy.load(REVIEWS)["train_tok"].astype("int64")).clamp(max=RANKS - 1)


def reviews(count: int, length: int, device: torch.device) -> Tensor:
    """Rows from movie reviews, words given by rank (Maas et al., Learning word vectors for sentiment analysis,
    2011)."""
    words = _reviews()
    first = torch.randint(len(words) - length, (count, 1))
    return words[first + torch.arange(length)].to(device)


def bert(name: str, count: int, length: int, device: torch.device) -> Task:
    """Task of predicting the masked sixth of the tokens."""
    of, words = (reviews, RANKS) if name.endswith("_imdb") else (texts, WORDS)
    from transformers import BertConfig, BertForMaskedLM

    large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    sizes = {"bert_large": large, "bert_two_layers": {"num_hidden_layers": 2}}
    model = BertForMaskedLM(BertConfig(**sizes.get(name, {})))

    def batch() -> tuple[Tensor, Tensor]:
        tokens = of(count, length, device)
        hidden = torch.rand(tokens.shape, device=device) < 1 / 6
        return torch.where(hidden, words, tokens), torch.where(hidden, tokens, -100)

    return Task(model.to(device), batch, lambda model, tokens, labels: model(input_ids=tokens, labels=labels).loss)


def gpt2(name: str, count: int, length: int, device: torch.device) -> Task:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"gpt2_128256": {"vocab_size": 128256}}
    model = GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes.get(name, {}))).to(device)
    model.loss_type = "ForCausalLM"  # a warning would break the graph between the scores and their loss
    return with_loss(
        model,
        lambda: (texts(count, length, device),),
        lambda model, tokens: model(input_ids=tokens, labels=tokens).loss,
    )


# Classes of transformers, and the options of their configurations; other sizes are the defaults.
_TRANSFORMERS = {
    "distilbert": ("DistilBertForMaskedLM", {}),
    "electra": ("ElectraForMaskedLM", {}),
    "llama": ("LlamaForCausalLM", {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8}),
    "llama_12": (
        "LlamaForCausalLM",
        {
            **{"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 12, "num_attention_heads": 32},
            **{"num_key_value_heads": 8, "max_position_embeddings": 4096},
        },
    ),
    "modernbert": ("ModernBertForMaskedLM", {"num_hidden_layers": 8}),
    "t5_small": ("T5ForConditionalGeneration", {"decoder_start_token_id": 0}),
}


def of_transformers(name: str, count: int, length: int, device: torch.device) -> Task:
    """Task of predicting each token, given those before it or all. The cache is off, and except for llama_12, whose
    texts have no gaps, the attention mask is passed, since transformers would otherwise create them in a data-dependent
    way.
    """
    import transformers

    kind, sizes = _TRANSFORMERS[name]
    config = getattr(transformers, f"{kind.partition('For')[0]}Config")(**sizes)
    config.use_cache = False
    model = getattr(transformers, kind)(config).to(device)

    def batch() -> tuple[Tensor, Tensor]:
        tokens = texts(count, length, device)
        return tokens, torch.ones_like(tokens)

    def loss(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=tokens, attention_mask=None if name == "llama_12" else mask, labels=tokens).loss

    return with_loss(model, batch, loss)


def transformer(name: str, count: int, length: int, device: torch.device) -> Task:
    """Task of writing the source backwards."""

    def batch() -> tuple[Tensor, Tensor]:
        tokens = texts(count, length, device)
        return tokens, tokens.flip(1)

    def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        found = model(source, F.pad(target[:, :-1], (1, 0)))
        return F.cross_entropy(found.flatten(0, 1), target.flatten())

    return Task(Translator(WORDS, length).to(device), batch, loss)


def xml_cnn(count: int, device: torch.device) -> Task:
    """Task with as many labels as Amazon-670K, a few of them per text; texts of 500 words."""
    words, labels = 30000, 670091
    model = XmlCnn(words, labels).to(device)

    def batch() -> tuple[Tensor, Tensor]:
        own = torch.zeros(count, labels, device=device)
        own.scatter_(1, torch.randint(labels, (count, 5), device=device), 1)
        return torch.randint(words, (count, 500), device=device), own

    return with_loss(model, batch, of_last(F.binary_cross_entropy_with_logits))


def gcn(edges_a_node: int, device: torch.device) -> Task:
    """Task on a graph with as many papers as ogbn-mag, each of which cites some."""
    nodes, features, classes = 736389, 128, 349
    edges = nodes * edges_a_node
    model = Gcn(features, 64, classes).to(device)

    def batch() -> tuple[Tensor, ...]:
        source, target = (torch.randint(nodes, (edges,), device=device) for _ in range(2))
        weight = torch.full((edges,), 1 / edges_a_node, device=device)
        own = torch.randint(classes, (nodes,), device=device)
        return torch.randn(nodes, features, device=device), source, target, weight, own

    return with_loss(model, batch, of_last(F.cross_entropy))


def dien(count: int, device: torch.device) -> Task:
    items, steps = 100_000, 20
    model = Dien(items, steps).to(device)

    def batch() -> tuple[Tensor, ...]:
        return (
            torch.randint(items, (count, steps), device=device),
            torch.randint(items, (count,), device=device),
            torch.randint(2, (count,), device=device).float(),
        )

    return with_loss(model, batch, of_last(F.binary_cross_entropy_with_logits))


def diffusion(model: nn.Module, channels: int, count: int, size: int, device: torch.device) -> Task:
    """Task of predicting the noise in square images."""
    model = model.to(device, memory_format=torch.channels_last)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        image, noise = (torch.randn(count, channels, size, size, device=device) for _ in range(2))
        last = torch.channels_last
        times = torch.randint(1000, (count,), device=device)
        return image.to(memory_format=last), noise.to(memory_format=last), times

    def loss(model: nn.Module, images: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        return F.mse_loss(model(images + noise, times).float(), noise)

    return Task(model, batch, loss)


_BERTS = dict.fromkeys(("bert_base", "bert_base_imdb", "bert_large", "bert_two_layers"), bert)
_OF_TEXTS = {
    **_BERTS,
    "gpt2": gpt2,
    "gpt2_128256": gpt2,
    "transformer": transformer,
    **dict.fromkeys(_TRANSFORMERS, of_transformers),
}
_OTHERS = {"xml_cnn": xml_cnn, "gcn": gcn, "dien": dien}


def task(name: str, device: torch.device) -> Task:
    """Task for a model and its batch, as in ``resnet50:128``; ``inception_v3:32@299`` for images of another size than
    224; ``bert_base:8x128`` for a batch of texts and their length, ``unet:16x64`` for one of images and their size. For
    ``gcn`` the number is that of edges per node."""
    model, _, batch = name.partition(":")
    if model in _OF_TEXTS:
        count, length = map(int, batch.split("x"))
        return _OF_TEXTS[model](model, count, length, device)
    if model == "dit":
        count, size = map(int, batch.split("x"))
        return diffusion(DiffusionTransformer(size), DiffusionTransformer.CHANNELS, count, size, device)
    if model == "unet":
        return diffusion(UNet(), 3, *map(int, batch.split("x")), device)
    if model in _OTHERS:
        return _OTHERS[model](int(batch), device)
    count, _, size = batch.partition("@")
    package, _, of_package = model.rpartition("/")
    numbers = int(count), int(size or 224)
    if package == "segmentation":
        return segmentation(of_package, *numbers, device)
    return images(model, *numbers, device)
