"""This module determines the folder to which a pipeline's name belongs. The name belongs to the folder from
which the pipeline was first submitted, until the name is moved to another folder."""

from gridmill.control.ledger import Ledger, Transaction
from gridmill.domain.pipeline import Origin, Pipeline
from gridmill.domain.run import Run
from gridmill.errors import ConflictError, explained
from gridmill.ports.storage import Storage


def note_origin(
    ledger: Ledger, storage: Storage, transaction: Transaction, pipeline: Pipeline, *, adopt: bool
) -> None:
    """Record the pipeline's folder for its name, or check that the name belongs to this folder. With
    `adopt`, the name of the pipeline moves to this folder.

    If the recorded folder no longer exists, it was moved or renamed, so the name of the pipeline moves to
    the new folder. A pipeline that is declared without a folder (in Python, or over REST) is not checked.
    Raises ConflictError.
    """
    if not pipeline.folder:
        return
    here = _origin(pipeline)
    recorded = _recorded_origin(ledger, transaction, here)
    if not adopt:
        _check(storage, recorded, here)
    if recorded is None or recorded.folder != here.folder:
        transaction.put(here)


def conflict_of(ledger: Ledger, storage: Storage, pipeline: Pipeline) -> str:
    """Return the reason why a run of the pipeline would be refused because its name belongs to another
    folder. The result is empty if the run would not be refused."""
    here = _origin(pipeline)
    try:
        if here.folder:
            _check(storage, ledger.look_up(Origin, here.name), here)
    except ConflictError as error:
        return explained(error)
    return ""


def check_run_origin(ledger: Ledger, storage: Storage, transaction: Transaction, run: Run) -> None:
    """Raise ConflictError if the pipeline's name no longer belongs to the folder of the run, so that the run
    cannot be resumed."""
    here = Origin(name=run.pipeline, folder=run.folder)
    recorded = _recorded_origin(ledger, transaction, here)
    if recorded is None or recorded.folder == here.folder or storage.has_left(here.folder, recorded.host):
        return
    raise ConflictError(
        f"run {run.id} was started from the folder {run.folder}; pipeline {run.pipeline!r} belongs to "
        f"{recorded.folder} now",
        hint=f"The jobs of this run would write into the tables of {recorded.folder}. Start a new run from "
        "the folder that you want to use.",
    )


def _origin(pipeline: Pipeline) -> Origin:
    return Origin(name=pipeline.name, folder=pipeline.folder, host=pipeline.host)


def _recorded_origin(ledger: Ledger, transaction: Transaction, here: Origin) -> Origin | None:
    if not here.folder:
        return None
    return transaction.get(Origin, here.name) or ledger.look_up(Origin, here.name)


def _check(storage: Storage, origin: Origin | None, here: Origin) -> None:
    if origin is None or origin.folder == here.folder:
        return
    if not storage.has_left(origin.folder, origin.host):
        raise _elsewhere(origin, here)


def _elsewhere(origin: Origin, here: Origin) -> ConflictError:
    is_remote = origin.host not in ("", here.host)
    where = f"{origin.folder} on {origin.host}" if is_remote else origin.folder
    return ConflictError(
        f"pipeline {here.name!r} belongs to the folder {where}; this pipeline file is in {here.folder}",
        hint="Both would write into the same tables and versions. Rename one of the two pipelines, or move "
        f"the name to {here.folder}: `gridmill run FILE --adopt` (or `gridmill apply -f FILE --adopt`).",
    )
