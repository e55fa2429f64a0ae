"""The diagrams of the documentation are whole, say in words what they show, and are on a page."""

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
