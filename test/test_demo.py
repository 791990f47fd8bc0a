"""The demo, with fewer epochs than usual."""

import re
import sys

import pytest

from torch_reformer import demo


@pytest.mark.slow
def test_all_networks_learn_alike(capsys):
    demo.main(["--epochs", "1"])
    shown = capsys.readouterr().out
    print(shown)
    assert "converted 15 Conv2d, left 0" in shown
    assert re.search(r"^fuse: 2 graphs planned so far: \d+ kernels and calls, in [\d.]+ s$", shown, re.M)
    rows = re.findall(r"^(PyTorch|kernels chosen|fused)\s+([\d.]+)\s+[\d.]+\s+[\d.]+\s+[\d.]+x$", shown, re.M)
    theirs, *ours = (float(loss) for _, loss in rows)
    assert len(ours) == 2 and ours == pytest.approx([theirs] * 2, rel=0.02)
    table, _, deciding = shown.partition("convolution problem")[2].partition("\n\n")
    table = [line.split() for line in table.splitlines()[1:]]
    assert re.search(r"decided each of these in [\d.]+ us, and remembers a decision in [\d.]+ us", deciding)
    # Each of the 11 distinct problems has three directions, but the images need no gradient.
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
