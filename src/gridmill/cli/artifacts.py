"""The commands `preview`, `diff` and `compare` show and compare versions.

`preview` shows the first rows of a version, `diff` shows the differences between two versions, and `compare`
shows versions of a model side by side.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gridmill.cli.completion import complete_models, complete_versions
from gridmill.cli.format import moment
from gridmill.cli.session import Json, emit, session, show
from gridmill.cli.tables import table
from gridmill.domain.amounts import show_bytes, show_number, show_seconds
from gridmill.domain.comparison import (
    ComparedMetric,
    ComparedModel,
    ComparedSetting,
    Difference,
    ModelComparison,
    Preview,
    VersionDiff,
)
from gridmill.domain.metrics import marked

_SHOWN, _LONGEST = 60, 100
Reference = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        autocompletion=complete_versions,
        help="PIPELINE/JOB@N or PIPELINE/JOB@ALIAS. PIPELINE/JOB is the newest version.",
        show_default=False,
    ),
]


def preview(
    context: typer.Context,
    version: Reference,
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="Number of rows.")] = 10,
    rejects: Annotated[bool, typer.Option("--rejects", help="Show the rows that a sink rejected.")] = False,
    json: Json = False,
) -> None:
    """Show the first rows of a table and the types of its columns, or the files of a model or a command."""
    with session(context, reading=True) as client:
        result = client.preview(version, rows=rows, rejects=rejects)
    emit(result) if json else show(_rows(result))


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
        typer.Option(
            metavar="COLUMN,...", help="Columns that identify a row. Default: the entity and time columns."
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Show the differences between two versions: columns, statistics, metrics, settings, rows."""
    with session(context, reading=True) as client:
        columns = tuple(name.strip() for name in key.split(",") if name.strip())
        result = client.diff(before, after, key=columns)
    emit(result) if json else show(Group(*_diff_lines(result)))


def _diff_lines(found: VersionDiff) -> Iterator[RenderableType]:
    yield Text(f"{found.before} -> {found.after}", style="bold")
    if not found.differences:
        yield Text("their records are equal")
    for part, some in groupby(found.differences, key=lambda one: one.part):
        yield _table(part, list(some))
    if found.rows is not None:
        rows = found.rows
        yield Text(
            f"rows by {', '.join(rows.key)}: {rows.added:,} added, {rows.removed:,} removed, "
            f"{rows.changed:,} changed"
        )
    else:
        yield Text(f"rows are not compared: {found.rows_why}", style="dim")


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
    """Return both texts. If the texts are too long for a table cell, return the parts of both texts that
    begin shortly before the first difference."""
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
    """Return the relative change of a number, in percent."""
    old, new = one.before, one.after
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    return f"{(new - old) / abs(old):+.1%}" if numbers and old else ""


_WIDEST = 60
_SPLITS = ("train", "folds", "validation", "test")


def compare(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="PIPELINE/MODEL", show_default=False, autocompletion=complete_models)
    ],
    versions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VERSION]...",
            help="Version numbers, aliases, or other models. Default: the last five versions of the model.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare versions of a model: metrics, settings that differ, data, code, time, size."""
    with session(context, reading=True) as client:
        comparison = client.compare(name, *(versions or ()))
    emit(comparison) if json else show(Group(*_comparison_text(comparison)))


def _comparison_text(found: ModelComparison) -> Iterator[RenderableType]:
    heads = _heads(found.models)
    yield table("", *heads, rows=_facts(found.models))
    if found.metrics:
        yield Text()
        yield table("metric", *heads, rows=[_metric(found.models, one) for one in found.metrics])
        yield Text("* the best version", style="dim")
    if found.settings:
        yield Text()
        yield table("setting", *heads, rows=[_setting(one) for one in found.settings])
    else:
        yield Text("\ntheir settings are equal", style="dim")
    for warning in found.warnings:
        yield Text(warning, style="yellow")


def _heads(models: Sequence[ComparedModel]) -> list[str]:
    """Return the column headings: version numbers such as `@3` if all versions belong to the same model,
    otherwise full ids."""
    several = len({model.id.partition("@")[0] for model in models}) > 1
    return [model.id if several else f"@{model.id.partition('@')[2]}" for model in models]


def _facts(models: Sequence[ComparedModel]) -> list[tuple[object, ...]]:
    rows = {
        "named": [", ".join(model.names) for model in models],
        "": ["removed" if model.removed else "" for model in models],
        "made": [moment(model.created or None) for model in models],
        "by run": [model.run_id for model in models],
        "dataset": [model.dataset for model in models],
        "code": [_code(model) for model in models],
        "took": ["" if model.seconds is None else show_seconds(model.seconds) for model in models],
        "size": [show_bytes(model.size_bytes) for model in models],
    }
    return [(name, *cells) for name, cells in rows.items() if any(cells)]


def _code(one: ComparedModel) -> str:
    return f"bundle {one.bundle[:12]}" if one.bundle else f"Gridmill {one.gridmill}" if one.gridmill else ""


def _metric(models: Sequence[ComparedModel], one: ComparedMetric) -> tuple[object, ...]:
    split, _, rest = one.name.partition("_")
    name = f"{split} {rest}" if split in _SPLITS and rest else marked(one.name)
    cells = (
        "" if value is None else f"{show_number(value)}{' *' if model.id in one.best else ''}"
        for model, value in zip(models, one.values, strict=True)
    )
    return (name, *cells)


def _setting(one: ComparedSetting) -> tuple[object, ...]:
    """Return the table cells of a setting. If the setting is a list, such as the list of features, a cell
    shows the length of the list and the entries that are missing in another version."""
    lists = [set(value) for value in one.values if isinstance(value, list | tuple)]
    shared = set[Any]().union(*lists).intersection(*lists)
    return (one.name, *(_comparison_cell(value, shared) for value in one.values))


def _comparison_cell(value: Any, shared: set[Any]) -> str:  # noqa: ANN401  whatever a record tells
    if isinstance(value, list | tuple):
        own = ", ".join(str(one) for one in value if one not in shared)
        value = f"{len(value)} in total{', with ' if own else ''}{own}"
    text = "" if value is None else show_number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
