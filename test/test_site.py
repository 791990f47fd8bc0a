"""The documentation as a site: every page is in it, and every link leads somewhere."""

import subprocess
import sys
from pathlib import Path

import pytest
from marks import require

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_site_is_built_without_warnings(tmp_path):
    for package in ("mkdocs", "mkdocstrings", "material"):
        require(package, "docs")
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"contributing"}
    assert pages == {path.parent.name for path in tmp_path.glob("*/index.html")}
    assert "Compile a model in place" in (tmp_path / "reference/index.html").read_text()
