"""Hooks of mkdocs (mkdocs.yml): README.md and CONTRIBUTING.md, which lie beside docs/, are pages, too; links to files
that are no pages, and docstrings' roles, are plain text."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
_OTHERS = re.compile(r"\[([^]]*)\]\((?:\.\./)?(?:benchmarks|csrc|test|torch_reformer)/[^)]*\)")
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}


def on_files(files, config):
    for source, page in _PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, **_):
    for source, page in _PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}").replace(f"]({source}", f"]({page}")
    return _OTHERS.sub(r"\1", markdown)


def on_page_content(html, **_):
    """Drop roles, such as the :func: of :func:`torch_reformer.fuse`."""
    return re.sub(r":(?:func|class|meth|mod):(?=<code>)", "", html)
