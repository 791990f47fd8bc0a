"""Words that the project no longer uses (docs/design.md, "Vocabulary") occur nowhere, nor sentences that begin so."""

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = (".h", ".cpp", ".hip", ".inc", ".def", ".py", ".md")
FOLDERS = ("csrc", "torch_reformer", "docs", "test", "benchmarks")
LEFT_OUT = [ROOT / "torch_reformer/kernels", ROOT / "torch_reformer/selector/weights", Path(__file__)]
RETIRED = re.compile(
    r"pictures?|kept|together|lessons?|gathered|neighbours|looks\s+on|wait_for_earlier|Epilogue", re.IGNORECASE
)
# Where a sentence may begin: a line's first letter, after what marks a comment, docstring or list, or after another's.
OF = re.compile(r"(?:^[^\w\n]*|[.:;!?][\"'`)*]* +[\"'`(*]*)Of\b.*", re.MULTILINE)


@functools.cache
def texts() -> dict[str, str]:
    found = {"README.md": (ROOT / "README.md").read_text()}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*")):
        if path.suffix in KINDS and not any(path.is_relative_to(folder) for folder in LEFT_OUT):
            found[path.relative_to(ROOT).as_posix()] = path.read_text()
    return found


def retired(text: str) -> set[str]:
    """Retired words, whole or as a part of an identifier: between underscores, or begun by a capital letter."""
    found = set()
    for match in RETIRED.finditer(text):
        word, before, after = (
            match.group(),
            text[match.start() - 1 : match.start()],
            text[match.end() : match.end() + 1],
        )
        if word.lower() == "epilogue":
            is_whole = word == "Epilogue" and after.isupper() and not before.isalnum()
        else:
            begins = not before.isalpha() or (word[0].isupper() and before.islower())
            is_whole = begins and (not after.isalpha() or (after.isupper() and word[-1].islower()))
        if is_whole:
            found.add(word)
    return found


def test_retired_words():
    found = {name: words for name, text in texts().items() if (words := retired(f"{name}\n{text}"))}
    assert not found


def test_no_sentence_begins_with_of():
    found = {name: sentences for name, text in texts().items() if (sentences := OF.findall(text))}
    assert not found


@pytest.mark.parametrize(
    "text", ["it is Kept", "kKeptBytes", "_kept_rows", "kept.h", "looks on", "NEIGHBOURS = 5", "struct EpilogueOp {"]
)
def test_words_are_found(text):
    assert retired(text)


@pytest.mark.parametrize("text", ["keep", "altogether", "neighbouring", "kEpilogueBytes", "conv2d_epilogue"])
def test_other_words_are_not_found(text):
    assert not retired(text)


@pytest.mark.parametrize("text", ["// Of a line.", '    """Of the device."""', "It is so. Of these", "- Of `n` rows"])
def test_sentences_are_found(text):
    assert OF.search(text)


@pytest.mark.parametrize("text", ["Some of the rows.", "Often", "a list Of"])
def test_other_sentences_are_not_found(text):
    assert not OF.search(text)
