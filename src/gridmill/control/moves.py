"""Moves of aliases, told to the storage root once they are committed."""

import os
import pwd
from functools import partial

from gridmill.control.ledger import Transaction
from gridmill.control.state import Control
from gridmill.errors import StorageError
from gridmill.model.alias import LATEST, Alias
from gridmill.model.latest import Latest
from gridmill.model.stored import AliasMove


def note_set(
    control: Control, transaction: Transaction, before: Alias | None, after: Alias | None, by: str = ""
) -> None:
    """An alias is set, moved or removed: by that, or by the user whom the control node belongs to."""
    alias = after or before
    if alias is not None:
        moved = _stands_for(before), _stands_for(after)
        _note(control, transaction, alias.name, alias.alias, moved, by or _user())


def note_latest_move(
    control: Control, transaction: Transaction, before: Latest | None, after: Latest, by: str = ""
) -> None:
    """`latest` becomes another version."""
    old = before.artifact if before is not None else ""
    if old != after.artifact:
        _note(control, transaction, after.name, LATEST, (old, after.artifact), by or after.run)


def _note(
    control: Control, transaction: Transaction, name: str, alias: str, moved: tuple[str, str], by: str
) -> None:
    before, after = moved
    move = AliasMove(time=transaction.now, name=name, alias=alias, before=before, after=after, by=by)
    transaction.then(partial(_append, control, move))


def _append(control: Control, move: AliasMove) -> None:
    """What is committed stands, also where it cannot be told."""
    try:
        control.storage.note_move(move)
    except StorageError as error:
        control.warn(f"a move of {move.name}@{move.alias} is not noted: {error}")


def _stands_for(alias: Alias | None) -> str:
    if alias is None:
        return ""
    return f"{alias.name}@{alias.number}" if alias.number is not None else f"best by {alias.metric}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
