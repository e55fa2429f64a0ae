"""What is noted of attempts at a farm, over restarts, and what is told of their ends by it."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

from gridmill.codec import decode, encode, from_builtins, to_builtins
from gridmill.errors import InputError, StorageError, from_body
from gridmill.model.event import PodEvent
from gridmill.model.message import Outcome
from gridmill.model.noun import dataclass
from gridmill.model.staging import Staging
from gridmill.model.state import AttemptState, Cause
from gridmill.model.way import Carriage, Crossing

_KEPT_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is known of an attempt at the farm, over restarts and sessions.

    It leaves there its own folder and its checkpoints (`checkpoints_there`), by their URIs; a `part` leaves
    something in any case. `refusal` is why it never began, as `errors.to_body` writes it. `told` is the
    body of its end as it was told, once all that it made is here: then it is told so again. `there` is what
    was carried there for it, `staging` how, and how what it made comes. `pod_id` is where it runs, `alike`
    are folders here that may hold some of what it makes. `carried` is what its checkpoints here were when
    they were last carried, there or back (a manifest's fingerprint; empty: there were none). `lost`: its pod
    was given up while the farm was cut off; `over`: nothing more is asked about it.
    """

    token: str
    output_uri: str
    checkpoint_uri: str = ""
    checkpoints_there: str = ""
    part: bool = False
    refusal: Mapping[str, Any] | None = None
    told: Mapping[str, Any] | None = None
    there: Crossing = Crossing()
    staging: Staging = Staging.DIRECT
    pod_id: str = ""
    alike: tuple[str, ...] = ()
    carried: str = ""
    lost: bool = False
    over: bool = False

    @property
    def is_open(self) -> bool:
        """Whether something of it may still come."""
        return self.told is None and not self.over


class Notes:
    """One file per attempt, below a folder. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Notes of long ago go: nobody asks for them any more."""
        self._folder = folder
        self._lock = Lock()
        self._open: dict[str, Note] = {}
        oldest = time.time() - _KEPT_SECONDS
        for path in folder.glob("*.json"):
            with suppress(OSError, InputError):
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
                elif (note := decode(path.read_bytes(), Note)).is_open:
                    self._open[path.stem] = note

    def find(self, attempt_id: str) -> Note | None:
        """None where it never was at this farm."""
        try:
            return decode(self._path(attempt_id).read_bytes(), Note)
        except OSError:
            return None

    def write(self, attempt_id: str, note: Note) -> None:
        """Keep or replace it. Raises StorageError."""
        path = self._path(attempt_id)
        draft = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(encode(note))
            draft.rename(path)
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(path)) from error
        with self._lock:
            self._open.pop(attempt_id, None)
            if note.is_open:
                self._open[attempt_id] = note

    def open(self) -> Mapping[str, Note]:
        """Those whose end was not told, by attempt."""
        with self._lock:
            return dict(self._open)

    def _path(self, attempt_id: str) -> Path:
        return self._folder / f"{attempt_id}.json"


def never_begun(event: PodEvent, note: Note) -> PodEvent:
    """Stopped, or refused for what was noted, before its pod heard of it."""
    known = replace(event, token=note.token)
    if note.refusal is None:
        return known
    why = from_body(dict(note.refusal))
    cause = Cause.STORAGE if isinstance(why, StorageError) else Cause.INPUT
    return ended(known, AttemptState.FAILED, why.message, hint=why.hint, cause=cause)


def succeeded(event: PodEvent) -> bool:
    """Whether it tells that its attempt did."""
    return from_builtins(event.body["outcome"], Outcome).state == AttemptState.SUCCEEDED


def with_carriage(event: PodEvent, carriage: Carriage) -> PodEvent:
    """Its outcome says what was carried."""
    outcome = replace(from_builtins(event.body["outcome"], Outcome), carriage=carriage)
    return replace(event, body={**event.body, "outcome": to_builtins(outcome)})


def ended(
    event: PodEvent, state: AttemptState, message: str, *, hint: str = "", cause: Cause = Cause.STORAGE
) -> PodEvent:
    """The event with that end in the place of its own."""
    outcome = Outcome(
        state=state, cause=Cause.LOST if state == AttemptState.LOST else cause, message=message, hint=hint
    )
    return replace(event, body={"outcome": to_builtins(outcome)})
