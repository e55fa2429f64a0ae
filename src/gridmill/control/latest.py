"""Recording and finding the latest version of each name."""

from gridmill.control.ledger import Transaction
from gridmill.control.moves import note_latest_move
from gridmill.control.state import Control
from gridmill.model.artifact import Artifact
from gridmill.model.latest import Latest
from gridmill.model.run import JobRun, Run


def note_latest(control: Control, transaction: Transaction, job_run: JobRun) -> None:
    """Record what a job that is done has made, or found unchanged, as the latest version of its name.

    A later run's version stays. A run of a backfill makes no version the latest one, except of a sink: all
    versions of a sink are states of one table.
    """
    run = transaction.get(Run, job_run.run_id)
    if run is None or not job_run.artifacts or (run.chunk and job_run.job.sink is None):
        return
    known = transaction.get(Latest, job_run.name) or control.ledger.look_up(Latest, job_run.name)
    after = Latest(name=job_run.name, artifact=job_run.artifacts[-1], run=run.id, order=run.order)
    if known is None or (known.order <= run.order and known != after):
        transaction.put(after)
        note_latest_move(control, transaction, known, after)


def find_latest(control: Control, name: str) -> Latest | None:
    """The record of a name, if any run has made one."""
    record = control.ledger.store.get(Latest, name)
    return record.noun if record is not None and isinstance(record.noun, Latest) else None


def latest_of(control: Control, name: str) -> Artifact | None:
    """The latest version of a name that is not removed; where its record is missing, or its version was
    removed, the one that was created last. None where there is none."""
    known = find_latest(control, name)
    record = control.ledger.store.get(Artifact, known.artifact) if known is not None else None
    if record is not None and isinstance(record.noun, Artifact) and not record.noun.removed:
        return record.noun
    newest = control.newest_artifact(name)
    if newest is None or not newest.removed:
        return newest
    records = control.ledger.store.list(Artifact, parent=name, newest_first=True)
    versions = (one.noun for one in records if isinstance(one.noun, Artifact))
    return next((one for one in versions if not one.removed), None)
