"""`preview` and `diff`: a look into versions."""

from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gridmill.cli.complete import complete_versions
from gridmill.cli.session import Json, emit, session, show
from gridmill.cli.tables import table
from gridmill.model.amounts import show_bytes, show_number
from gridmill.model.look import Difference, Preview, VersionDiff

_SHOWN, _LONGEST = 60, 100
Reference = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        autocompletion=complete_versions,
        help="PIPELINE/JOB@N, @ALIAS, or the newest.",
        show_default=False,
    ),
]


def preview(
    context: typer.Context,
    version: Reference,
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="How many rows.")] = 10,
    rejects: Annotated[bool, typer.Option("--rejects", help="The rows that a sink rejected.")] = False,
    json: Json = False,
) -> None:
    """Show the first rows of a table with their types, or the files of a model or a command."""
    with session(context, reading=True) as client:
        found = client.preview(version, rows=rows, rejects=rejects)
    emit(found) if json else show(_rows(found))


def _rows(found: Preview) -> RenderableType:
    heads = [f"{column.name}\n{column.type}" for column in found.columns]
    sizes = {n for n, column in enumerate(found.columns) if column.name.endswith("_bytes")}
    cells = [[_cell(value, n in sizes) for n, value in enumerate(row)] for row in found.rows]
    rest = Text(f"{len(found.rows):,} of {found.total:,}", style="dim")
    return Group(table(*heads, rows=cells), rest)


def _cell(value: Any, is_size: bool) -> str:  # noqa: ANN401  a cell
    if is_size and isinstance(value, int):
        return show_bytes(value)
    return "" if value is None else show_number(value) if isinstance(value, float) else str(value)


def diff(
    context: typer.Context,
    before: Reference,
    after: Reference,
    key: Annotated[
        str,
        typer.Option(metavar="COLUMN,...", help="Columns that tell rows apart (default: entity, time)."),
    ] = "",
    json: Json = False,
) -> None:
    """Show how two versions differ: columns, statistics, metrics, settings, rows."""
    with session(context, reading=True) as client:
        columns = tuple(name.strip() for name in key.split(",") if name.strip())
        found = client.diff(before, after, key=columns)
    emit(found) if json else show(Group(*_told(found)))


def _told(found: VersionDiff) -> Iterator[RenderableType]:
    yield Text(f"{found.before} -> {found.after}", style="bold")
    if not found.differences:
        yield Text("their records are alike")
    for part, some in groupby(found.differences, key=lambda one: one.part):
        yield _table(part, list(some))
    if found.rows is not None:
        rows = found.rows
        yield Text(
            f"rows by {', '.join(rows.key)}: {rows.added:,} added, {rows.removed:,} removed, "
            f"{rows.changed:,} changed"
        )
    else:
        yield Text(f"rows were not compared: {found.rows_why}", style="dim")


def _table(part: str, some: list[Difference]) -> RenderableType:
    rows = [_row(one) for one in some[:_SHOWN]]
    more = [Text(f"... and {len(some) - _SHOWN} more: --json")] if len(some) > _SHOWN else []
    return Group(table(part, "before", "after", "", rows=rows), *more)


def _row(one: Difference) -> tuple[str, ...]:
    if one.name == "size_bytes":
        return "size", _size(one.before), _size(one.after), _step(one)
    if isinstance(one.before, str) and isinstance(one.after, str):
        return one.name, *_texts(_plain(one.before), _plain(one.after)), ""
    return one.name, _value(one.before), _value(one.after), _step(one)


def _texts(before: str, after: str) -> tuple[str, str]:
    """Both, from shortly before where they begin to differ when they are too long for a cell."""
    if max(len(before), len(after)) <= _LONGEST:
        return before, after
    same = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
    begin = max(0, same - _LONGEST // 4)
    return _from(before, begin), _from(after, begin)


def _from(text: str, begin: int) -> str:
    return _cut(("…" if begin else "") + text[begin:])


def _size(value: Any) -> str:  # noqa: ANN401  None where a version has none
    return "" if value is None else show_bytes(value)


def _value(value: Any) -> str:  # noqa: ANN401  whatever a record tells
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _cut(
        _plain(show_number(value) if isinstance(value, float) else "" if value is None else str(value))
    )


def _plain(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _step(one: Difference) -> str:
    """How far a number moved, in percent."""
    old, new = one.before, one.after
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return f"{(new - old) / abs(old):+.1%}" if numbers and old else ""
