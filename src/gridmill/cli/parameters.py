"""Options that several commands have: the file, its parameters, and whether unchanged jobs run too."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.completion import complete_files
from gridmill.errors import InputError

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|NAME",
        autocompletion=complete_files,
        help="Pipeline file (YAML), or name of a pipeline that was run or applied.",
        show_default=False,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter. Repeatable."),
]
Adopt = Annotated[
    bool,
    typer.Option(
        "--adopt", help="Move the name of the pipeline, its tables and its versions to this folder."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Execute unchanged jobs as well.")]


def finite(value: float | None) -> float | None:
    """Return a number that an option gives. Raises BadParameter for NaN, which is within each range, and for
    infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value:g} is not a finite number.")
    return value


def number_or_empty(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], object]:
    """Return a parser of an option that is a number in this range, or empty. An empty text stays as it
    is."""

    def parsed(text: str) -> object:
        if not text:
            return text
        try:
            value = kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number.") from None
        finite(value)
        if not least <= value <= most:
            limits = f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise typer.BadParameter(f"{text} is not {limits}.")
        return value

    return parsed


def read_set(words: Sequence[str]) -> dict[str, str]:
    """Parse parameters from words of the form `key=value`. Raises InputError for a word without a value, and
    for a repeated key."""
    values: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        key = key.strip()
        if not sign:
            raise InputError(f"--set {word!r} has no value", hint=f"Write --set {word}=VALUE")
        if key in values:
            raise InputError(
                f"--set {key} is given twice: {values[key]!r} and {value!r}",
                hint=f"Pass the parameter once. For a list, write --set '{key}=[a, b]'",
            )
        values[key] = value
    return values
