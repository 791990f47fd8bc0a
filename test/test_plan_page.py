"""The page of ``python -m torch_reformer plan --html FILE``: what it says, and that it needs nothing else."""

from html.parser import HTMLParser

import pytest
import torch
from marks import needs_aten
from torch import nn

from torch_reformer.compiler.analysis.page import page
from torch_reformer.compiler.cli import recorded, recorded_and_measured

pytestmark = needs_aten


class Parsed(HTMLParser):
    """Rows of the tables as texts of their cells, attributes of bars, links, and names of all elements."""

    def __init__(self, text: str):
        super().__init__()
        self.rows, self.bars, self.links, self.ids, self.tags = [], [], [], [], []
        self.cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if "href" in attributes else []
        self.bars += [attributes] if tag == "rect" else []
        if tag == "tr":
            self.rows.append([])
        self.cell = [] if tag in ("td", "th") else self.cell

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append("".join(self.cell))
            self.cell = None


def norms():
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()), (torch.randn(2, 3, 8, 8),)


def test_rows_are_the_lines_of_the_report():
    graphs = recorded(*norms(), gpu="sm_90")
    text = page(graphs, "norms", "sm_90")
    parsed = Parsed(text)
    lines = [line for report in graphs[0].passes for line in report.lines]
    rows = [row for row in parsed.rows if row[0]]
    assert [row[-2] for row in rows] == [line.title for line in lines]
    assert [row[1] for row in rows] == [f"{line.us:.1f}" for line in lines]
    assert [row[-3].strip() for row in rows] == [f"{line.roof_us / line.us:.0%}" for line in lines]
    assert all(0 < line.roof_us < line.us for line in lines)
    assert len(parsed.bars) == len(lines) and parsed.links == [f"#{each}" for each in parsed.ids]
    forward = sum(float(bar["width"]) for bar in parsed.bars[: len(graphs[0].passes[0].lines)])
    assert forward == pytest.approx(1000, abs=0.1)


def test_reasons():
    """Batch norm's second pass needs the moments of the whole first one."""
    forward, backward = recorded(*norms(), gpu="sm_90")[0].passes
    reasons = [line.apart for line in forward.lines]
    assert reasons[0] is None  # it reads the graph's inputs only
    assert reasons[1].startswith("reads 0.00 MB of 1: it needs a reduction over many rows, too")
    assert any("is a call, which reads its operands from memory" in (line.apart or "") for line in backward.lines)
    (forward,) = recorded(products, (torch.randn(64, 64),), gpu="sm_90")[0].passes
    assert forward.lines[1].apart == "reads 0.02 MB of 1: it needs the result of a call, which is in memory"


def products(x):
    return (x @ x).relu()


def test_the_page_stands_alone():
    text = page(recorded(*norms(), gpu="sm_90"), "<norms> & more", "sm_90")
    assert not {"script", "link", "img", "iframe"} & set(Parsed(text).tags)
    assert "http" not in text and "$" not in text and len(text) < 20_000
    assert "Plan of &lt;norms&gt; &amp; more" in text


def test_operators_without_a_plan():
    def of_pairs(x):
        return torch.view_as_complex(x * 2).abs() + 1

    text = page(recorded(of_pairs, (torch.randn(8, 2),), gpu="sm_90"), "pairs", "sm_90")
    assert "looks at memory in another data type" in text


def test_measured():
    parsed = Parsed(page(recorded_and_measured(*norms()), "norms", "this machine"))
    assert parsed.rows[0][2] == "measured µs" and all(float(row[2]) > 0 for row in parsed.rows if row[0])
    assert all(float(bar["width"]) > 0 for bar in parsed.bars)
