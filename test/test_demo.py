"""The demo, on fewer epochs than a person would give it."""

import re
import sys

import pytest

from torch_reformer import demo


def test_both_networks_learn_alike(capsys):
    demo.main(["--epochs", "1"])
    shown = capsys.readouterr().out
    print(shown)
    assert "converted 15 Conv2d, left 0" in shown
    ours, theirs, _ = map(float, re.search(r"^loss, last epoch\s+(\S+)\s+(\S+)\s+(\S+)$", shown, re.M).groups())
    assert ours == pytest.approx(theirs, rel=0.02)
    table, _, deciding = shown.partition("convolution problem")[2].partition("\n\n")
    table = [line.split() for line in table.splitlines()[1:]]
    assert re.search(r"decided each of these in [\d.]+ us, and remembers a decision in [\d.]+ us", deciding)
    # Of the 11 distinct problems each has three directions, but the images need no gradient.
    assert len(table) == 3 * 11 - 1
    assert sum(int(calls) for _, calls, _ in table) == 3 * 15 - 1


def test_without_scikit_learn_it_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit):
        demo.main([])
    assert "pip install scikit-learn" in capsys.readouterr().err


def test_epochs_must_be_positive(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--epochs", "0"])
    assert "--epochs must be at least 1, got 0" in capsys.readouterr().err
