"""What a job reads is checked before it begins; what it made is listed before it has succeeded."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from gridmill.errors import NotFoundError
from gridmill.model.artifact import ArtifactKind, Output
from gridmill.model.message import Order
from gridmill.model.stored import Contents
from gridmill.model.uri import below
from gridmill.staging.checking import check_inputs, seal
from gridmill.staging.contents import NOTHING, list_contents, read_manifest, write_contents


def list_made(order: Order, outputs: Sequence[Output]) -> None:
    """Write the list of the version's files where the order says; nothing where it says nothing.

    What the version before has too (the data files of a sink's table) is not read again. Raises StorageError.
    """
    root, made = Path(order.root), next((one for one in outputs if one.uri), None)
    if not order.contents_uri or made is None or (order.gang is not None and order.gang.rank):
        return
    names = import_module("gridmill.jobs.look").files_of(root, made) if _is_table(made) else None
    contents = list_contents(below(root, made.uri), known=_known(order), names=names)
    seal(below(root, made.uri), contents)
    write_contents(below(root, order.contents_uri), contents)


def check_read(order: Order) -> None:
    """Raise DataError for a version that the job reads, or adds to, and that is not any more what it was."""
    spec = order.job.dataset
    goes_on = order.job.sink is not None or (spec is not None and spec.incremental)
    builds_on = order.earlier if goes_on else ()
    check_inputs(order.root, (entry.artifact for entry in (*order.inputs, *builds_on)))


def _is_table(output: Output) -> bool:
    return output.kind == ArtifactKind.SINK


def _known(order: Order) -> Contents:
    for entry in order.earlier:
        try:
            return read_manifest(order.root, entry.artifact).contents or NOTHING
        except NotFoundError:
            break
    return NOTHING
