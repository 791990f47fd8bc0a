"""Γ-blocks in C++ on sequences of any length: equal to PyTorch's."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_reformer.runtime import native
from torch_reformer.selector.model import GammaBlock

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks/gamma_block"))
from sequence_classifier import SequenceClassifier  # noqa: E402

ISAS = native.ISAS[: native.ISAS.index(native.device(None).split("-")[1]) + 1]
WORDS, LONGEST = 100, 512


class Classifier(nn.Module):
    """The classifier of benchmarks/gamma_block/gamma_block.py, without dropout."""

    def __init__(self, width: int = 64, hidden: int = 256, blocks: int = 2, classes: int = 46):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(LONGEST, width))
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(GammaBlock(width, hidden) for _ in range(blocks))
        self.head = nn.Linear(width, classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter += torch.randn_like(parameter) * 0.1

    @torch.no_grad()
    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words) + self.positions[: len(words)]
        for block in self.blocks:
            x = block(x)
        x = x.mean(0)
        return self.head(F.layer_norm(x, x.shape))


def assert_equal(model: Classifier, words: torch.Tensor, isa: str) -> None:
    want = model(words)
    got = SequenceClassifier(model.state_dict()).logits(words, isa)
    torch.testing.assert_close(got, want, atol=1e-5 * want.abs().max().item(), rtol=0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 95, 512])
def test_logits_are_pytorch(isa, length):
    torch.manual_seed(length)
    assert_equal(Classifier(), torch.randint(WORDS, (length,)), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(16, 16, 1, 1), (48, 80, 3, 2), (128, 512, 2, 300)])
def test_shapes(isa, shape):
    torch.manual_seed(0)
    for length in (5, 129):
        assert_equal(Classifier(*shape), torch.randint(WORDS, (length,)), isa)


def test_a_call_leaves_nothing_to_the_next():
    """Calls share the classifier's scratch memory."""
    torch.manual_seed(0)
    texts = [torch.randint(WORDS, (length,)) for length in (30, 512, 30, 1)]
    state = Classifier().state_dict()
    classifier = SequenceClassifier(state)
    for words in texts:
        assert torch.equal(classifier.logits(words), SequenceClassifier(state).logits(words))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (torch.zeros(0, dtype=torch.int64), "a sequence has 1 to 512 words, got 0"),
        (torch.zeros(513, dtype=torch.int64), "a sequence has 1 to 512 words, got 513"),
        (torch.tensor([1, WORDS]), "a word must be 0 to 99, got 100"),
        (torch.tensor([-1]), "a word must be 0 to 99, got -1"),
        (torch.zeros(3), r"int64 \[length\], got torch.float32 \[3\]"),
        (torch.zeros(1, 3, dtype=torch.int64), r"int64 \[length\], got torch.int64 \[1, 3\]"),
    ],
)
def test_words_that_are_refused(words, sentence):
    with pytest.raises(ValueError, match=sentence):
        SequenceClassifier(Classifier().state_dict()).logits(words)


def test_weights_that_are_refused():
    with pytest.raises(ValueError, match="a sequence classifier's width must be a multiple of 16 up to 128, got 24"):
        SequenceClassifier(Classifier(width=24).state_dict())
    state = Classifier().state_dict()
    state["blocks.1.up.bias"] = state["blocks.1.up.bias"][:-1]
    with pytest.raises(ValueError, match=r"blocks.1.up.bias must have shape \(256,\), got \(255,\)"):
        SequenceClassifier(state)
    del state["blocks.1.up.bias"]
    with pytest.raises(ValueError, match="do not make a classifier of 2 blocks: blocks.1.up.bias missing"):
        SequenceClassifier(state)
