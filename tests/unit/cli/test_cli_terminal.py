"""What jobs write is shown on a terminal, not obeyed; in a file it stays as it is."""

import io
import os

import pytest

from gridmill.cli.format import for_terminal, visible

ATTACKS = (
    ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
    ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
    ("\x9b2J", "\\x9b2J"),
    ("safe\rspoofed", "safe\\x0dspoofed"),
    ("a\bb\x7f", "a\\x08b\\x7f"),
    ("a\x0cb\x0b", "a\\x0cb\\x0b"),
    ("\u202eabc\u2028", "\\x202eabc\\x2028"),
)


@pytest.mark.parametrize(("written", "shown"), ATTACKS)
def test_control_characters_are_shown_on_a_terminal_only(written: str, shown: str) -> None:
    terminal, other = os.openpty()
    with os.fdopen(other, "w") as screen:
        assert for_terminal(f"{written}\n", screen) == f"{shown}\n"
    os.close(terminal)
    assert for_terminal(written, io.StringIO()) == written


@pytest.mark.parametrize("text", ["", "plain", "tab\tand\nnewline", "ä€😀漢", "\ufffd"])
def test_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_a_line_of_windows_ends_like_any_other() -> None:
    assert visible("a\r\nb\r\n") == "a\nb\n"


def test_json_stays_json() -> None:
    assert visible('"\x9b2J\x7f"', "\\u{:04x}") == '"\\u009b2J\\u007f"'
