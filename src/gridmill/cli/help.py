"""Finds the stored help text for a command line. The stored text equals the text that Typer prints. Printing
the stored text is faster, because Typer need not be loaded.

`python docs/generate.py` writes the help texts from the commands.
"""

import os
from collections.abc import Mapping, Sequence

WIDTH = 80
"""If a terminal has at least this number of columns, the stored texts are valid, because Typer prints no
longer lines on a wider terminal."""

# without pathlib, whose import would take a third of the time
_FOLDER = os.path.join(os.path.dirname(__file__), "help")


def stored_help(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the stored text for `--help` or `COMMAND --help`. Return None if there is no stored text, so
    that Typer must print the help."""
    name = "gridmill" if len(words) == 1 else words[0] if len(words) == 2 else ""
    if not name.isalpha() or words[-1] not in ("-h", "--help") or _columns(environment) < WIDTH:
        return None
    try:
        with open(os.path.join(_FOLDER, f"{name}.txt"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _columns(environment: Mapping[str, str]) -> int:
    """Return the number of columns of the terminal, computed in the same way as in shutil.get_terminal_size,
    which Typer calls."""
    try:
        return int(environment.get("COLUMNS", "0")) or os.get_terminal_size(1).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH
