"""Quick checks that the metadata, the README, the documentation and the code agree."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
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
    """Rows of the table of settings; Markdown and reStructuredText quote code differently."""
    header = text.index("| setting | environment variable |")
    return [line.replace("``", "`") for line in text[header:].split("\n\n")[0].splitlines()]


def test_setup_is_short():
    assert len((ROOT / "setup.py").read_text().splitlines()) < 150


def test_typed():
    """Others' type checkers read the annotations, and `make lint` checks them."""
    assert (ROOT / "torch_reformer/py.typed").exists() and '"py.typed"' in text_of("pyproject.toml")
    assert "$(BIN)/mypy" in text_of("Makefile") and re.search(r'^  "mypy==', text_of("pyproject.toml"), re.M)


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
        *("README.md", "docs/api.md", "docs/compiler.md", "docs/faq.md", "docs/programs.md", "docs/training_step.md"),
    }


def test_docs_have_the_table_of_settings():
    assert table_rows(text_of("docs/api.md")) == table_rows(config.__doc__)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([\w-]+)", "\n".join(fenced("", "README.md"))))))
def test_readme_names_targets_that_exist(target):
    assert re.search(rf"^{target}:", text_of("Makefile"), re.M)


def output_of(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Output of a command, run without this process's REFORMER_ARCHS."""
    own = {name: value for name, value in os.environ.items() if name not in ("REFORMER_ARCHS", "MAKEFLAGS")}
    done = subprocess.run(command, cwd=cwd, env=own | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def built(tmp_path):
    """A folder that make takes for completely built, without REFORMER_ARCHS."""
    for folder in ("build", "csrc/hip", ".venv", "torch_reformer"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("pyproject.toml", "setup.py", "Makefile", "csrc/exports.map"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "csrc/table.inc").touch()
    for number, file in enumerate((".venv/.installed", "build/archs", "torch_reformer/_C.abi3.so")):
        (tmp_path / file).touch()
        later = (tmp_path / "csrc").stat().st_mtime + 10 + number
        os.utime(tmp_path / file, (later, later))
    return tmp_path


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


@needs_make
def test_make_builds_once(built):
    assert "setup.py" not in output_of("make", "-n", "build", cwd=built)


@needs_make
@pytest.mark.parametrize("archs", ["gfx942", "gfx942 sm_90a", "gfx942,sm_90a", ""])
def test_make_builds_for_other_architectures(built, archs):
    assert "setup.py" in output_of("make", "-n", "build", cwd=built, REFORMER_ARCHS=archs)
    output_of("make", f"build/archs-of-{archs.replace(' ', '-').replace(',', '-')}", cwd=built, REFORMER_ARCHS=archs)
    assert "setup.py" in output_of("make", "-n", "build", cwd=built)  # back to this machine's


@needs_make
def test_make_builds_for_a_table_that_changed(built):
    later = (built / "torch_reformer/_C.abi3.so").stat().st_mtime + 10
    os.utime(built / "csrc/table.inc", (later, later))
    assert "setup.py" in output_of("make", "-n", "build", cwd=built)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it is no checkout")
def test_source_distribution_has_what_builds_and_tests_need(tmp_path):
    output_of(sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path)
    packed = set((tmp_path / "torch_reformer.egg-info/SOURCES.txt").read_text().splitlines())
    folders = (".ci", "benchmarks", "csrc", "docs", "examples", "test", "torch_reformer")
    needed = output_of("git", "ls-files", *folders, "setup.py", "pyproject.toml", "mkdocs.yml", "LICENSE", "NOTICE")
    assert len(needed.splitlines()) > 1000
    assert not set(needed.splitlines()) - packed


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page)):
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page} links to {path}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page} links to {path}#{anchor}"


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short(page):
    """Lines of at most 120 characters; tables can't be wrapped."""
    long = [line for line in text_of(page).splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, f"{page}: {long[0]}"
