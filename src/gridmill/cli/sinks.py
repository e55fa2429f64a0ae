"""Sinks at the command line: `alter sink` and `status sink`."""

from collections.abc import Sequence

from gridmill.cli.session import emit, show
from gridmill.cli.tables import table
from gridmill.cli.words import moment
from gridmill.declarations.part import read_constraint, read_outage
from gridmill.errors import InputError
from gridmill.model.alteration import AlterVerb, Change, SinkPart
from gridmill.model.amounts import show_seconds
from gridmill.model.task import LoadTask
from gridmill.sdk.client import Client
from gridmill.sdk.sinks import change_of

_USAGE = "gridmill alter sink PIPELINE/JOB add|remove source|constraint|metric|outage_window VALUE"


def read_change(words: Sequence[str]) -> Change:
    """A change from the words after the sink's name: what sort of part may be said in the plural, as files
    have it. Raises InputError that says how it is written."""
    named = words[1].removesuffix("s") if len(words) == 3 else ""
    if words[:1] not in [[verb] for verb in AlterVerb] or named not in list(SinkPart):
        raise InputError("say what to add or remove", hint=_USAGE)
    verb, part, text = AlterVerb(words[0]), SinkPart(named), words[2]
    if verb == AlterVerb.REMOVE and not text.lstrip().startswith("{"):
        return Change(verb=verb, part=part, key=text)
    match part:
        case SinkPart.CONSTRAINT:
            return change_of(verb, read_constraint(text))
        case SinkPart.OUTAGE_WINDOW:
            return change_of(verb, read_outage(text))
        case SinkPart.METRIC:
            name, equals, sql = text.partition("=")
            if not (name.strip() and equals and sql.strip()):
                raise InputError(f"{text!r} is no metric", hint="Write NAME=SQL: revenue=sum(price).")
            return change_of(verb, sql.strip(), metric=name.strip())
    return change_of(verb, text)


def alter_sink(client: Client, name: str, words: Sequence[str], *, as_json: bool) -> None:
    """Make the change, and say what is altered then."""
    after = client.grid.alter_sink(name, read_change(words))
    if as_json:
        return emit(after)
    print(f"{name}: altered for the runs that start from now on")
    say_alterations(client, name)
    return None


def say_alterations(client: Client, name: str) -> None:
    """What is altered of a sink, a line each."""
    for one in client.list_alterations(name):
        for change in one.changes:
            print(f"altered: {change}")


def status_sinks(client: Client, name: str | None, *, as_json: bool) -> None:
    """One line for each source of each sink (or of the one of that name). Raises NotFoundError."""
    tasks = client.list_load_tasks(name)
    if as_json:
        return emit(tasks)
    head = (
        "sink", "source", "state", "last load", "rows", "added", "rejects", "position", "lag", "next",
        "drift", "altered", "why",
    )  # fmt: skip
    show(table(*head, rows=[_row(task) for task in tasks]))
    return None


def _row(task: LoadTask) -> tuple[object, ...]:
    return (
        task.sink,
        task.source,
        task.state or "never run",
        moment(task.loaded),
        f"{task.rows:,}",
        f"{task.rows_added:,}",
        f"{task.rejects:,}",
        task.position,
        "" if task.lag_seconds is None else show_seconds(task.lag_seconds),
        moment(task.following),
        ", ".join(task.drifted),
        task.alterations or "",
        task.why,
    )
