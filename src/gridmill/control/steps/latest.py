"""This module records and finds the latest version of each name, and writes committed alias moves to the
storage root."""

import os
import pwd
from functools import partial

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Problems
from gridmill.domain.artifact import LATEST, Alias, Artifact, Latest
from gridmill.domain.run import JobRun, Run
from gridmill.domain.version_manifest import AliasMove
from gridmill.errors import StorageError
from gridmill.ports.storage import Storage


def note_set(
    storage: Storage,
    problems: Problems,
    transaction: Transaction,
    before: Alias | None,
    after: Alias | None,
    by: str = "",
) -> None:
    """Record that a user has set, moved or removed an alias."""
    alias = after or before
    if alias is not None:
        moved = _alias_target(before), _alias_target(after)
        _note(storage, problems, transaction, alias.name, alias.alias, moved, by or _user())


def note_latest_move(
    storage: Storage,
    problems: Problems,
    transaction: Transaction,
    before: Latest | None,
    after: Latest,
    by: str = "",
) -> None:
    """Record that `latest` names another version."""
    old = before.artifact if before is not None else ""
    if old != after.artifact:
        _note(storage, problems, transaction, after.name, LATEST, (old, after.artifact), by or after.run)


def _note(
    storage: Storage,
    problems: Problems,
    transaction: Transaction,
    name: str,
    alias: str,
    moved: tuple[str, str],
    by: str,
) -> None:
    before, after = moved
    move = AliasMove(time=transaction.now, name=name, alias=alias, before=before, after=after, by=by)
    transaction.then(partial(_append, storage, problems, move))


def _append(storage: Storage, problems: Problems, move: AliasMove) -> None:
    """Append a committed move of an alias to the log in the storage root. An error while writing the log
    does not undo the move of the alias."""
    try:
        storage.note_move(move)
    except StorageError as error:
        problems.warn(f"the change of alias {move.name}@{move.alias} was not recorded: {error}")


def _alias_target(alias: Alias | None) -> str:
    if alias is None:
        return ""
    return f"{alias.name}@{alias.number}" if alias.number is not None else f"best by {alias.metric}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def note_latest(
    ledger: Ledger, storage: Storage, problems: Problems, transaction: Transaction, job_run: JobRun
) -> None:
    """Record the version that a finished job made or found unchanged as the latest version of its name.

    If a later run has already recorded its version as the latest, that version stays the latest. A run of a
    backfill does not change the latest version of a name, except for a sink: all versions of a sink are
    states of one table, so the newest state is the latest version.
    """
    run = transaction.get(Run, job_run.run_id)
    if run is None or not job_run.artifacts or (run.chunk and job_run.job.sink is None):
        return
    latest = transaction.get(Latest, job_run.name) or ledger.look_up(Latest, job_run.name)
    after = Latest(name=job_run.name, artifact=job_run.artifacts[-1], run=run.id, order=run.order)
    if latest is None or (latest.order <= run.order and latest != after):
        transaction.put(after)
        note_latest_move(storage, problems, transaction, latest, after)


def find_latest(ledger: Ledger, name: str) -> Latest | None:
    """Return the record of the latest version of a name. The result is None if no run has recorded a latest
    version."""
    return ledger.read(Latest, name)


def latest_of(catalog: Catalog, name: str) -> Artifact | None:
    """Return the latest version of a name that is not removed. If the record of the latest version is
    missing or this version was removed, the function returns the version that was created last. The result
    is None if the name has no version."""
    known = find_latest(catalog.ledger, name)
    latest = catalog.ledger.read(Artifact, known.artifact) if known is not None else None
    if latest is not None and not latest.removed:
        return latest
    newest = catalog.newest_artifact(name)
    if newest is None or not newest.removed:
        return newest
    versions = catalog.ledger.read_all(Artifact, parent=name, newest_first=True)
    return next((version for version in versions if not version.removed), None)
