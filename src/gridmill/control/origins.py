"""Which folder a pipeline's name belongs to: that of its first submit, until it is moved to another."""

from gridmill.control.ledger import Transaction
from gridmill.control.state import Control
from gridmill.errors import ConflictError
from gridmill.model.origin import Origin
from gridmill.model.pipeline import Pipeline


def note_origin(control: Control, transaction: Transaction, pipeline: Pipeline, *, adopt: bool) -> None:
    """Record the pipeline's folder for its name, or check that it is that one; `adopt` moves the name.

    A folder that does not exist any more was moved: the name follows. What is declared without a folder (in
    Python, or over REST) has nothing that could be compared. Raises ConflictError.
    """
    if not pipeline.folder:
        return
    here = Origin(name=pipeline.name, folder=pipeline.folder, host=pipeline.host)
    known = transaction.get(Origin, pipeline.name) or control.ledger.look_up(Origin, pipeline.name)
    if known is None:
        transaction.put(here)
    elif known.folder != here.folder:
        if not adopt and not control.storage.has_left(known.folder, known.host):
            raise _elsewhere(known, here)
        transaction.put(here)


def _elsewhere(known: Origin, here: Origin) -> ConflictError:
    is_remote = known.host not in ("", here.host)
    where = f"{known.folder} on {known.host}" if is_remote else known.folder
    return ConflictError(
        f"pipeline {here.name!r} belongs to the folder {where}; this one is in {here.folder}",
        hint="Both would write into the same tables and versions. Give one of the two another name, or move "
        f"the name to {here.folder}: `gridmill run FILE --adopt` (or `gridmill apply -f FILE --adopt`).",
    )
