"""What a sink rejected: how many rows, why, and the first of them."""

from collections.abc import Mapping
from typing import Any

from gridmill.cli.session import emit, show
from gridmill.cli.tables import table
from gridmill.errors import InputError
from gridmill.model.artifact import Artifact, ArtifactKind
from gridmill.model.loaded import rejects_line, rejects_of


def show_rejects(found: object, *, as_json: bool) -> None:
    """A sink's rejected rows. Raises InputError for what is no sink."""
    if not isinstance(found, Artifact) or found.kind != ArtifactKind.SINK:
        raise InputError("only sinks reject rows", hint="gridmill show sink PIPELINE/JOB --rejects")
    rejects = rejects_of(found)
    if as_json:
        return emit(rejects)
    print(rejects_line(found) or f"{found.id}: no row is rejected")
    if rejects:
        show(table("place", "reasons", "record", rows=[_row(row) for row in rejects["sample"]]))
        rest = rejects["rows"] - len(rejects["sample"])
        more = f"and {rest:,} more, " if rest else ""
        print(f"{more}all in the Delta table {rejects['uri']} at version {rejects['table_version']}")
    return None


def _row(row: Mapping[str, Any]) -> tuple[object, ...]:
    place = f"{row['source']}:{row['line']}" if row["line"] else f"{row['source']}: row {row['row']}"
    return place, "; ".join(row["reasons"]), row["record"]
