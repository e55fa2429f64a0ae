"""`compare`: versions of a model side by side."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gridmill.cli.complete import complete_models
from gridmill.cli.session import Json, emit, session, show
from gridmill.cli.tables import table
from gridmill.cli.words import moment
from gridmill.model.amounts import show_bytes, show_number, show_seconds
from gridmill.model.compared import ComparedMetric, ComparedModel, ComparedSetting, ModelComparison
from gridmill.model.metric import marked

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
            help="Numbers, aliases, or other models (default: the last five versions).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show versions of a model side by side: metrics, settings that differ, data, code, time, size."""
    with session(context, reading=True) as client:
        found = client.compare(name, *(versions or ()))
    emit(found) if json else show(Group(*_told(found)))


def _told(found: ModelComparison) -> Iterator[RenderableType]:
    heads = _heads(found.models)
    yield table("", *heads, rows=_facts(found.models))
    if found.metrics:
        yield Text()
        yield table("metric", *heads, rows=[_metric(found.models, one) for one in found.metrics])
        yield Text("* the best of them", style="dim")
    if found.settings:
        yield Text()
        yield table("setting", *heads, rows=[_setting(one) for one in found.settings])
    else:
        yield Text("\ntheir settings are alike", style="dim")
    for warning in found.warnings:
        yield Text(warning, style="yellow")


def _heads(models: Sequence[ComparedModel]) -> list[str]:
    """`@3` where all are versions of one model, else whole ids."""
    several = len({one.id.partition("@")[0] for one in models}) > 1
    return [one.id if several else f"@{one.id.partition('@')[2]}" for one in models]


def _facts(models: Sequence[ComparedModel]) -> list[tuple[object, ...]]:
    rows = {
        "named": [", ".join(one.names) for one in models],
        "": ["removed" if one.removed else "" for one in models],
        "made": [moment(one.created or None) for one in models],
        "by run": [one.run_id for one in models],
        "dataset": [one.dataset for one in models],
        "code": [_code(one) for one in models],
        "took": ["" if one.seconds is None else show_seconds(one.seconds) for one in models],
        "size": [show_bytes(one.size_bytes) for one in models],
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
    """Of lists (features) how many there are, and what not all of them have."""
    lists = [set(value) for value in one.values if isinstance(value, list | tuple)]
    shared = set[Any]().union(*lists).intersection(*lists)
    return (one.name, *(_cell(value, shared) for value in one.values))


def _cell(value: Any, shared: set[Any]) -> str:  # noqa: ANN401  whatever a record tells
    if isinstance(value, list | tuple):
        own = ", ".join(str(one) for one in value if one not in shared)
        value = f"{len(value)} in all{', with ' if own else ''}{own}"
    text = "" if value is None else show_number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
