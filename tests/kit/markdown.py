"""Markdown as the tests read it: fenced blocks with the comment before each, headings and links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])

_BLOCK = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `mark` is the comment right before it."""

    page: Path
    line: int
    kind: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(*pages: Path) -> Iterator[Block]:
    for page in pages or PAGES:
        text = page.read_text("utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("text"))
            yield Block(page, line, match["kind"], match["mark"] or "", match["text"])


def prose(page: Path) -> str:
    """The page without its blocks and code."""
    return re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", page.read_text("utf-8")))


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """What headings can be linked by, as the site makes them."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Lines with `$`, each with the lines below it that it is to print."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and line.strip():
            found[-1][1].append(line)
    return found
