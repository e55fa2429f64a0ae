"""The glossary stays short, in order, and has only words that the documents use."""

import re

import pytest

from tests.kit.markdown import PAGES, ROOT, name

MOST_ROWS = 40
GLOSSARY = re.compile(r"^## Words\n(?P<table>.*?)(?=^## )", re.M | re.S)
ROW = re.compile(r"^\| (?P<words>[^|`]+) \| (?P<meaning>[^|]+) \|$", re.M)


def rows() -> list[tuple[str, str]]:
    section = GLOSSARY.search((ROOT / "docs/concepts.md").read_text("utf-8"))
    assert section, "docs/concepts.md has no section `Words`"
    found = [(row["words"], row["meaning"]) for row in ROW.finditer(section["table"])]
    assert len(found) == section["table"].count("\n| ")  # no row is passed over
    assert found[0] == ("word", "meaning")
    return found[1:]


ROWS = rows()
WORDS = [word for words, _ in ROWS for word in words.split(", ")]


@pytest.fixture(scope="module")
def documents() -> str:
    """All pages of docs/ but decisions, without the glossary itself."""
    pages = [
        page for page in PAGES if name(page).startswith("docs/") and not name(page).startswith("docs/adr/")
    ]
    return "\n".join(GLOSSARY.sub("", page.read_text("utf-8")) for page in pages)


def test_the_glossary_has_at_most_forty_rows():
    assert 0 < len(ROWS) <= MOST_ROWS


def test_the_glossary_is_in_alphabetical_order_and_has_each_word_once():
    assert [words for words, _ in ROWS] == sorted(words for words, _ in ROWS)
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize(("words", "meaning"), ROWS, ids=[words for words, _ in ROWS])
def test_a_meaning_is_one_sentence(words: str, meaning: str):
    assert re.fullmatch(r"[A-Z`].*\.", meaning)
    assert not re.search(r"[.!?] [A-Z]", meaning)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_the_glossary_is_used_in_the_documents(word: str, documents: str):
    assert re.search(rf"\b{re.escape(word)}s?\b", documents, re.I)
