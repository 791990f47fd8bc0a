"""What a person meets first: quick checks that the metadata, the README and the code agree."""

import dataclasses
import re
from pathlib import Path

import pytest

import torch_reformer
from torch_reformer.runtime import config

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def fenced(language: str, page: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(page), re.M | re.S)
    return [text for tag, text in blocks if tag == language]


def table_rows(text: str) -> list[str]:
    """The rows of the table of settings; Markdown and reStructuredText quote code differently."""
    header = text.index("| setting | environment variable |")
    return [line.replace("``", "`") for line in text[header:].split("\n\n")[0].splitlines()]


def test_setup_is_short():
    assert len((ROOT / "setup.py").read_text().splitlines()) < 150


def test_one_version():
    stated = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
    assert torch_reformer.__version__ == stated
    assert f"## [{stated}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("page, code", [(page, code) for page in PAGES for code in fenced("python", page)])
def test_code_of_docs_runs(page, code):
    before = dataclasses.asdict(config.settings())
    exec(compile(code, page, "exec"), {})
    torch_reformer.config(**before)


def test_pages_have_code():
    assert {page for page in PAGES if fenced("python", page)} == {
        *("README.md", "docs/api.md", "docs/compiler.md", "docs/programs.md"),
    }


def test_docs_have_the_table_of_settings():
    assert table_rows(text_of("docs/api.md")) == table_rows(config.__doc__)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([\w-]+)", "\n".join(fenced("", "README.md"))))))
def test_readme_names_targets_that_exist(target):
    assert re.search(rf"^{target}:", text_of("Makefile"), re.M)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page)):
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page} links to {path}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page} links to {path}#{anchor}"


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page):
    """Tables can't be wrapped."""
    long = [line for line in text_of(page).splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, f"{page}: {long[0]}"
