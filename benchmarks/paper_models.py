"""Models that papers on fusion measure: a translator, XML-CNN, a graph convolutional network and DIEN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Translator(nn.Module):
    """Encoder and decoder as in "Attention is all you need"."""

    def __init__(self, words: int, length: int, width: int = 512):
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width))
        self.layers = nn.Transformer(width, batch_first=True)
        self.last = nn.Linear(width, words)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source, target = (self.embedding(each) + self.places for each in (source, target))
        return self.last(self.layers(source, target, tgt_mask=self.later, tgt_is_causal=True))


class XmlCnn(nn.Module):
    """Classifier of texts with very many labels (Liu et al., Deep learning for extreme multi-label text classification,
    SIGIR 2017): convolutions of three lengths over words, the maximum over each eighth of the text, a narrow layer, and
    all labels."""

    def __init__(self, words: int, labels: int, width: int = 300, filters: int = 128, hidden: int = 512):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, filters, length, stride=2) for length in (2, 4, 8))
        self.parts = 8
        self.hidden = nn.Linear(len(self.convs) * filters * self.parts, hidden)
        self.last = nn.Linear(hidden, labels)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).transpose(1, 2)
        found = []
        for conv in self.convs:
            y = F.relu(conv(x))
            length = y.shape[-1] // self.parts
            found.append(F.max_pool1d(y, length)[..., : self.parts].flatten(1))
        return self.last(F.dropout(F.relu(self.hidden(torch.cat(found, 1))), 0.5, self.training))


class Gcn(nn.Module):
    """Classifier of a graph's nodes with two layers (Kipf and Welling, Semi-supervised classification with graph
    convolutional networks, ICLR 2017). Sums over adjacent nodes are computed where nodes have the fewest features."""

    def __init__(self, features: int, hidden: int, classes: int):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    @staticmethod
    def _summed(x: Tensor, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None].to(x.dtype))

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        x = F.dropout(F.relu(self._summed(self.first(x), *edges)), 0.5, self.training)
        return self.second(self._summed(x, *edges))


class Dien(nn.Module):
    """Predictor of clicks (Zhou et al., Deep interest evolution network for click-through rate prediction, AAAI 2019):
    a recurrent layer over the items clicked before, and a second one whose update gate is scaled by attention to the
    item."""

    def __init__(self, items: int, steps: int, width: int = 64):
        super().__init__()
        self.items, self.steps = nn.Embedding(items, width), steps
        self.layers = nn.ModuleList(
            nn.ModuleDict({"input": nn.Linear(width, 3 * width), "state": nn.Linear(width, 3 * width)}) for _ in "ab"
        )
        self.attention = nn.Linear(width, width)
        sizes = (2 * width, 200, 80)
        self.last = nn.Sequential(
            *(each for a, b in zip(sizes, sizes[1:], strict=False) for each in (nn.Linear(a, b), nn.PReLU())),
            nn.Linear(sizes[-1], 1),
        )

    @staticmethod
    def _step(layer: nn.ModuleDict, x: Tensor, h: Tensor, score: Tensor | float) -> Tensor:
        (reset, update, new), (of_reset, of_update, of_new) = (
            layer["input"](x).chunk(3, -1),
            layer["state"](h).chunk(3, -1),
        )
        update = torch.sigmoid(update + of_update) * score
        return (1 - update) * h + update * torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)

    def forward(self, clicked: Tensor, item: Tensor) -> Tensor:
        x, own = self.items(clicked), self.items(item)
        first, second = self.layers
        start = h = x.new_zeros(x.shape[0], x.shape[-1])
        states = []
        for i in range(self.steps):
            h = self._step(first, x[:, i], h, 1.0)
            states.append(h)
        scores = torch.softmax((self.attention(torch.stack(states, 1)) * own[:, None]).sum(-1), -1)
        h = start
        for i, state in enumerate(states):
            h = self._step(second, state, h, scores[:, i, None])
        return self.last(torch.cat([h, own], -1)).squeeze(-1)
