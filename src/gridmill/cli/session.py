"""What every command shares: the client it talks through, and how it speaks."""

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridmill.cli.times import with_times
from gridmill.cli.words import columns
from gridmill.codec import encode
from gridmill.errors import UnavailableError
from gridmill.sdk.client import Client, connect
from gridmill.sdk.dial import home_settings
from gridmill.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]

_WIDE = 220
"""Columns where nobody's screen limits them: tables in files and pipes are not folded."""


@contextmanager
def session(context: typer.Context, *, embed: bool = True, reading: bool = False) -> Iterator[Client]:
    """A client for the command, closed at its end; a `reading` one starts no control node.

    Tests give theirs as the context's object.
    """
    if isinstance(context.obj, Client):
        yield context.obj
        return
    home, url = context.obj
    with connect(home, url=url, embed=embed, reading=reading) as client:
        yield client


def want_one_that_stays(client: Client) -> None:
    """Raises UnavailableError where the control node ends with its clients: nobody would see to what they
    leave."""
    if client.control().embedded:
        raise UnavailableError(
            "the control node that is up ends with the commands that use it",
            hint="Start one that stays with `gridmill up`: it takes over, and their runs go on.",
        )


def settings_of(context: typer.Context) -> Settings:
    """The settings of the home that the command is for."""
    return context.obj.settings if isinstance(context.obj, Client) else home_settings(context.obj[0])


def emit(noun: object) -> None:
    """One JSON document (a line) on standard output; its times are ISO 8601."""
    sys.stdout.write(encode(with_times(noun)).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A message on standard error."""
    print(text, file=sys.stderr, flush=True)


def console(*, error: bool = False) -> "Console":
    """Where tables go: standard output (or error), in colour on a terminal only."""
    stream = sys.stderr if error else sys.stdout
    make: type[Console] = import_module("rich.console").Console
    return make(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, soft_wrap=False)


def show_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    folded: Collection[str] = (),
    left_out: Sequence[str] = (),
) -> None:
    """Print a table to standard output; where it is no screen, as plain text (what draws on screens takes
    a tenth of a second to import). A narrow screen folds the columns `folded`, and does without those
    `left_out` where it must."""
    if sys.stdout.isatty():
        from gridmill.cli.tables import FittedTable

        return show(FittedTable(head, rows, folded=folded, left_out=left_out))
    return print(columns(head, rows))


def tell(text: str, indent: str = "") -> None:
    """Print a sentence to standard output; on a screen it is folded between words, never within a path."""
    if sys.stdout.isatty():
        width = max(20, get_terminal_size().columns)
        for line in text.splitlines() or [""]:
            print(_folded(line, width, indent))
    else:
        print(f"{indent}{text}")


def _folded(line: str, width: int, indent: str) -> str:
    """The line, folded between words."""
    if len(line) + len(indent) <= width:
        return f"{indent}{line}"
    return fill(
        line,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def show(renderable: Any) -> None:  # noqa: ANN401  whatever Rich can show
    """Print to standard output."""
    console().print(renderable)
