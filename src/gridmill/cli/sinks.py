"""Sinks at the command line: `alter sink` and `status sink`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gridmill.cli.render import moment, table
from gridmill.cli.session import emit, show
from gridmill.declarations.part import read_constraint, read_outage
from gridmill.errors import InputError, NotFoundError
from gridmill.model.alteration import AlterVerb, Change, SinkPart
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.loaded import position_of, rejects_of, source_of
from gridmill.sdk.client import Client
from gridmill.sdk.sinks import change_of

_USAGE = "gridmill alter sink PIPELINE/JOB add|remove source|constraint|metric|outage_window VALUE"


def read_change(words: Sequence[str]) -> Change:
    """A change from the words after the sink's name. Raises InputError that says how it is written."""
    if len(words) != 3 or words[0] not in list(AlterVerb) or words[1] not in list(SinkPart):
        raise InputError("say what to add or remove", hint=_USAGE)
    verb, part, text = AlterVerb(words[0]), SinkPart(words[1]), words[2]
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
    """One line for each sink (or the one of that name). Raises NotFoundError."""
    newest: dict[str, Artifact] = {}
    for one in client.list_artifacts(kind=ArtifactKind.SINK, name=name):
        newest.setdefault(one.name, one)
    if name is not None and not newest:
        raise NotFoundError(
            f"sink {name!r} was never loaded", hint="`gridmill list sinks` shows those that were."
        )
    altered = {one.name: len(one.changes) for one in client.list_alterations(name)}
    if as_json:
        return emit([_facts(one, altered.get(one.name, 0)) for one in newest.values()])
    head = ("sink", "source", "last load", "rows", "added", "rejects", "drift", "position", "altered")
    rows = [_row(newest[key], altered.get(key, 0)) for key in sorted(newest)]
    show(table(*head, rows=rows))
    return None


def _facts(one: Artifact, altered: int) -> dict[str, object]:
    details = one.output.details
    return {
        "sink": one.name,
        "version": one.number,
        "source": source_of(one),
        "last_load": datetime.fromtimestamp(one.created, UTC).isoformat(),
        "rows": one.output.rows,
        "rows_added": details.get("rows_added"),
        "rejects": rejects_of(one).get("rows", 0),
        "drifted": sorted((details.get("drift") or {}).get("shifted", {})),
        "position": position_of(one),
        "alterations": altered,
    }


def _row(one: Artifact, altered: int) -> tuple[object, ...]:
    facts = _facts(one, altered)
    drifted = facts["drifted"]
    return (
        one.name,
        facts["source"],
        moment(one.created),
        f"{one.output.rows or 0:,}",
        f"{facts['rows_added'] or 0:,}",
        f"{facts['rejects']:,}",
        ", ".join(drifted) if isinstance(drifted, list) else "",
        facts["position"],
        altered or "",
    )
