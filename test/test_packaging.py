"""What a person meets first: quick checks that the metadata, the README and the code agree."""

import re
from pathlib import Path

import pytest

import torch_reformer
from torch_reformer import _config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def fenced(language: str, page: str = README) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)
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


@pytest.mark.parametrize("code", fenced("python"))
def test_readme_code_runs(code, capsys):
    with torch_reformer.config():  # restores what the code sets
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("code", fenced("python", (ROOT / "docs/epilogue.md").read_text()))
def test_code_of_docs_runs(code):
    exec(compile(code, "docs/epilogue.md", "exec"), {})


def test_readme_has_the_table_of_settings():
    assert table_rows(README) == table_rows(_config.__doc__)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make (\w+)", "\n".join(fenced(""))))))
def test_readme_names_targets_that_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"
