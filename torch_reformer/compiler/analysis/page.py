"""A model's plan as an HTML page of its own, without scripts: kernels on a time line, their bytes, their share of the
roof, and why they are apart. The page's frame and styles are in page.html."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from .record import RecordedGraph
from .report import Line, Report

_FRAME = Path(__file__).parent / "page.html"
_WIDTH, _HEIGHT = 1000, 46  # of a time line, in its own units


def page(graphs: Sequence[RecordedGraph], title: str, device: str) -> str:
    """The page of a model's graphs.

    Args:
        title: the model's name.
        device: whose times the reports have, such as ``sm_90``.
    """
    reports = [report for graph in graphs for report in graph.passes if isinstance(report, Report)]
    sections = [_section(graph, number, len(graphs)) for number, graph in enumerate(graphs, 1)]
    frame = Template(_FRAME.read_text(encoding="utf-8"))
    return frame.substitute(title=escape(title), device=escape(device), facts=_facts(reports), body="\n".join(sections))


def _section(graph: RecordedGraph, number: int, count: int) -> str:
    of_graph = f" of graph {number} of {count}" if count > 1 else ""
    texts = []
    for name, report in zip(map(str.capitalize, graph.titles), graph.passes, strict=False):
        texts.append(f"<h2>{name}{of_graph}</h2>")
        if isinstance(report, Report):
            key = f"{name}-{number}".replace(" ", "-")
            texts += [f"<p>{_facts([report])}</p>", _time_line(report.lines, key), _table(report.lines, key)]
            texts += [f"<p>{escape(str(note))}</p>" for note in (report.planned, report.only_for) if note]
        else:
            texts.append(f'<p class="note">No plan, PyTorch runs it: {escape(str(report))}</p>')
    if graph.broken:
        texts.append(f'<p class="note">Graph {number} is broken off: {escape(graph.broken)}</p>')
    return "\n".join(texts)


def _facts(reports: Iterable[Report]) -> str:
    lines = [line for report in reports for line in report.lines]
    unfused = [line for report in reports for line in report.unfused]
    facts = [f"{len(lines)} kernels and calls", f"{_bytes(lines) / 1e6:.1f} MB moved"]
    if lines and all(line.us is not None for line in lines):
        facts.append(f"{sum(line.us for line in lines):.0f} µs expected")
    if lines and all(line.measured_us is not None for line in lines):
        facts.append(f"{sum(line.measured_us for line in lines):.0f} µs measured")
    if lines and (share := _share_of_roof(lines)) is not None:
        facts.append(f"{share:.0%} of the roof")
    return f"{', '.join(facts)} (one by one: {len(unfused)}, {_bytes(unfused) / 1e6:.1f} MB)"


def _bytes(lines: Iterable[Line]) -> int:
    return sum(line.read + line.written for line in lines)


def _time(line: Line) -> float | None:
    """Microseconds as measured, or else as expected."""
    return line.us if line.measured_us is None else line.measured_us


def _share_of_roof(lines: Sequence[Line]) -> float | None:
    """Time that the device's data sheet allows, as a share of the lines' own; None if it is not known."""
    times, roofs = [_time(line) for line in lines], [line.roof_us for line in lines]
    if None in times or None in roofs or not sum(times):
        return None
    return sum(roofs) / sum(times)


def _class(line: Line) -> str:
    """The line's colour: that of products, convolutions, fused kernels or other calls."""
    if line.cost == "product":
        return "product"
    return line.kind.split("_")[0] if line.kind in ("stitch", "conv", "conv_grads") else "call"


def _time_line(lines: Sequence[Line], key: str) -> str:
    """A bar for each kernel, as wide as its time (as its bytes, if times are not known), that leads to its row."""
    widths = [_time(line) for line in lines]
    if None in widths:
        widths = [line.read + line.written for line in lines]
    unit, start, bars = _WIDTH / (sum(widths) or 1), 0.0, []
    for number, (line, width) in enumerate(zip(lines, widths, strict=True), 1):
        title = escape(f"{number}  {line.title}\n{_amounts(line)}")
        bars.append(
            f'<a href="#{key}-{number}"><rect class="{_class(line)}" x="{start * unit:.2f}" '
            f'width="{width * unit:.2f}" height="{_HEIGHT}"><title>{title}</title></rect></a>'
        )
        start += width
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">{"".join(bars)}</svg>'


def _amounts(line: Line) -> str:
    times = [f"{us:.1f} µs {how}" for us, how in ((line.us, "expected"), (line.measured_us, "measured")) if us]
    return ", ".join([*times, f"{line.read / 1e6:.2f} MB read", f"{line.written / 1e6:.2f} MB written"])


def _table(lines: Sequence[Line], key: str) -> str:
    has_measured = any(line.measured_us is not None for line in lines)
    heads = ["", "expected µs", *(["measured µs"] if has_measured else []), "MB read", "MB written", "of the roof"]
    cells = [f"<th>{head}</th>" for head in [*heads, "kernel or call", "why it is apart"]]
    rows = [f"<tr>{''.join(cells)}</tr>"]
    for number, line in enumerate(lines, 1):
        share = _share_of_roof([line])
        times = [line.us, *([line.measured_us] if has_measured else [])]
        numbers = [
            str(number),
            *("" if us is None else f"{us:.1f}" for us in times),
            f"{line.read / 1e6:.2f}",
            f"{line.written / 1e6:.2f}",
            "" if share is None else f'<meter value="{min(share, 1):.2f}"></meter> {share:.0%}',
        ]
        cells = [f"<td>{cell}</td>" for cell in numbers]
        cells += [f'<td class="{_class(line)}">{escape(line.title)}</td>', f"<td>{escape(line.apart or '')}</td>"]
        rows.append(f'<tr id="{key}-{number}">{"".join(cells)}</tr>')
    return f"<table>{''.join(rows)}</table>"
