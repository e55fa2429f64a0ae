"""Options that several commands have alike: the file, its parameters, whether unchanged jobs run too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gridmill.errors import InputError

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|NAME", help="The pipeline file (YAML), or the name of a kept one.", show_default=False
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Give a parameter its value; repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Run unchanged jobs too.")]


def read_set(words: Sequence[str]) -> dict[str, str]:
    """Parameters from `key=value` words. Raises InputError."""
    for word in words:
        if "=" not in word:
            raise InputError(f"--set {word!r} has no value", hint="Write --set key=value.")
    return {key.strip(): value for key, _, value in (word.partition("=") for word in words)}
