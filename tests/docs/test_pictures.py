"""The diagrams of the documentation are whole, say in words what they show, and are on a page."""

import re
import sys
from xml.etree import ElementTree

import pytest

from tests.kit.markdown import PAGES, ROOT

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = sorted((ROOT / "docs/img").glob("*.svg"))
COLOURS = ("paper", "ink", "soft", "box", "edge", "loud")


def test_there_are_pictures():
    assert len(PICTURES) >= 5


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_described_and_has_colours_for_light_and_dark_screens(path):
    svg = ElementTree.parse(path).getroot()
    assert svg.get("viewBox", "").startswith("0 0 400 ")  # a phone shows 12.5 units as about 12 pixels
    assert [svg.find(f"{SVG}{name}").text for name in ("title", "desc")]
    style = svg.find(f"{SVG}style").text
    light, dark = style.split("prefers-color-scheme: dark")
    assert all(f"--{name}:" in light and f"--{name}:" in dark for name in COLOURS)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_on_a_page(path):
    assert any(f"img/{path.name})" in page.read_text("utf-8") for page in PAGES)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_report_is_shown_in_light_and_dark_on_wide_and_narrow_screens(page):
    shown = (ROOT / page).read_text("utf-8")
    files = [(ROOT / page).parent / name for name in re.findall(r'(?:srcset|src)="([^"]+)"', shown)]
    ends = ["phone-dark.webp", "phone.webp", "dark.webp", "report.webp"]
    assert [file.name.removeprefix("report-") for file in files] == ends
    assert all(file.stat().st_size <= 200_000 for file in files)
    assert re.search(r'<img [^>]*alt="[^"]{40,}"', shown)


def test_the_picture_of_a_terminal_keeps_columns_and_colours(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    from pictures import _cells

    line = "\x1b[1mjob  \x1b[0m\x1b[1m \x1b[0mstate\x1b[32mgood one\x1b[0m  end"
    assert _cells(line) == [
        (0, "job", "title"),
        (6, "state", ""),
        (11, "good one", "good"),
        (21, "end", ""),
    ]


def test_a_text_that_leaves_the_picture_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), *sys.path])
    from pictures import Picture

    picture = Picture("title", "meaning")
    picture.text(10, 10, "short")
    for place in ({"x": 380}, {"x": 10, "anchor": "end"}, {"x": 3, "anchor": "middle"}):
        with pytest.raises(ValueError, match="does not fit"):
            picture.text(y=10, words="a longer text", **place)
    with pytest.raises(ValueError, match="too long for its box"):
        picture.box(10, 10, 40, ["a longer text"])
