"""What a built-in job has made, listed file by file before it is said to have succeeded."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from gridmill.errors import NotFoundError
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.message import Order
from gridmill.model.stored import Contents, StoredFile
from gridmill.model.uri import below
from gridmill.staging.checking import seal
from gridmill.staging.contents import NOTHING, list_contents, read_manifest, write_contents


def list_made(order: Order, outputs: Sequence[Output]) -> None:
    """Write the list of the version's files where the order says; nothing where it says nothing.

    What the version before has too (the data files of a sink's table) is not read again. Raises StorageError.
    """
    root, made = Path(order.root), next((one for one in outputs if one.uri), None)
    if not order.contents_uri or made is None or (order.gang is not None and order.gang.rank):
        return
    names = import_module("gridmill.jobs.look").files_of(root, made) if _is_table(made) else None
    known = _known(order)
    contents = list_contents(below(root, made.uri), known=known, names=names)
    seal(below(root, made.uri), contents)
    if _is_table(made):
        contents = replace(contents, rejects=_rejects(root, made, known))
    write_contents(below(root, order.contents_uri), contents)


def _rejects(root: Path, made: Output, known: Contents) -> tuple[StoredFile, ...]:
    """The files of the rejected rows that the version has."""
    told = made.details.get("rejects") or {}
    if not told.get("uri") or told.get("table_version") is None:
        return ()
    table = replace(made, uri=told["uri"], table_version=told["table_version"])
    folder, names = below(root, table.uri), import_module("gridmill.jobs.look").files_of(root, table)
    contents = list_contents(folder, known=Contents(files=known.rejects), names=names)
    seal(folder, contents)
    return contents.files


def _is_table(output: Output) -> bool:
    return output.kind == ArtifactKind.SINK


def _known(order: Order) -> Contents:
    for entry in order.earlier:
        try:
            return read_manifest(order.root, entry.artifact).contents or NOTHING
        except NotFoundError:
            break
    return NOTHING
