"""Stores notes on attempts at a farm on the disk, and builds the end events of attempts from these notes."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from gridmill.codec import decode, encode, from_builtins, to_builtins
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOutcome, PodEvent
from gridmill.domain.route import AttemptTransfers, Staging, Transfer
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import InputError, StorageError, from_body
from gridmill.private_files import write_private

_KEPT_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptNote:
    """The state of an attempt at a farm, stored so that it is known after a restart of the control node.

    The attempt leaves its own folder and its checkpoints (`farm_checkpoints`) at the farm, each under its
    URI. A `part` of a job always leaves files at the farm. `refusal` is the reason why the attempt never
    started, in the form of `errors.to_body`. `end_event` is the body of the attempt's end event, which is
    reported after all results arrived. If the end of the attempt is reported again, the same body is
    reported. `upload` is the transfer of the attempt's inputs, `early` is what was transferred of them before
    the attempt started, and `staging` is the way in which its data is
    transferred. `pod_id` is the id of the attempt's pod. `alike` are local folders that may contain parts of
    the attempt's results. `carried` is the manifest fingerprint of the local checkpoints at their last
    transfer in either direction. `carried` is empty if there were no checkpoints. `lost` is true if the
    control node gave up the pod of the attempt while the farm could not be reached. `ended` is true if the
    control node sends no more requests about the attempt. `is_there` is true if the end of the attempt was
    reported, but the farm has not deleted the attempt yet. `log_uri` is the folder in this home for the
    request log of the service that the attempt runs (empty: there is none), and `log_writer` is the part of
    the names of its files that belongs to this attempt.
    """

    token: str
    output_uri: str
    checkpoint_uri: str = ""
    farm_checkpoints: str = ""
    part: bool = False
    refusal: Mapping[str, Any] | None = None
    end_event: Mapping[str, Any] | None = None
    upload: Transfer = Transfer()
    early: Transfer = Transfer()
    staging: Staging = Staging.DIRECT
    pod_id: str = ""
    alike: tuple[str, ...] = ()
    carried: str = ""
    lost: bool = False
    ended: bool = False
    is_there: bool = False
    log_uri: str = ""
    log_writer: str = ""

    @property
    def is_open(self) -> bool:
        """Returns whether more results of the attempt may arrive."""
        return self.end_event is None and not self.ended


class AttemptLog:
    """Stores the notes on attempts in a folder, one file per attempt. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Deletes old notes that are not needed any more."""
        self._folder = folder
        self._lock = Lock()
        self._open: dict[str, AttemptNote] = {}
        self._at_farm: dict[str, AttemptNote] = {}
        oldest = time.time() - _KEPT_SECONDS
        for path in folder.glob("*.json"):
            with suppress(OSError, InputError):
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
                else:
                    self._sort(path.stem, decode(path.read_bytes(), AttemptNote))

    def find(self, attempt_id: str) -> AttemptNote | None:
        """Returns the note of the attempt, or None if the attempt never was at this farm or if its note is
        damaged."""
        try:
            return decode(self._path(attempt_id).read_bytes(), AttemptNote)
        except (OSError, InputError):
            return None

    def is_damaged(self, attempt_id: str) -> bool:
        """Returns whether the attempt was at this farm but its note is damaged."""
        return self._path(attempt_id).exists() and self.find(attempt_id) is None

    def write(self, attempt_id: str, note: AttemptNote) -> None:
        """Writes the note to the disk, or replaces the existing note. Raises StorageError."""
        path = self._path(attempt_id)
        with self._lock:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_private(path, encode(note))
            except OSError as error:
                raise StorageError(f"cannot be written: {error.strerror}", place=str(path)) from error
            self._sort(attempt_id, note)

    def _sort(self, attempt_id: str, note: AttemptNote) -> None:
        for kept, belongs in ((self._open, note.is_open), (self._at_farm, note.is_there)):
            kept.pop(attempt_id, None)
            if belongs:
                kept[attempt_id] = note

    def to_delete_at_farm(self) -> Mapping[str, AttemptNote]:
        """Returns the attempts that the farm must delete because their end was reported, with their
        notes."""
        with self._lock:
            return dict(self._at_farm)

    def open(self) -> Mapping[str, AttemptNote]:
        """Returns the attempts whose end was not reported yet, with their notes."""
        with self._lock:
            return dict(self._open)

    def _path(self, attempt_id: str) -> Path:
        return self._folder / f"{attempt_id}.json"


def not_started(event: PodEvent, note: AttemptNote) -> PodEvent:
    """Returns the end event of an attempt that was stopped, or refused for the noted reason, before its pod
    received it."""
    result = replace(event, token=note.token)
    if note.refusal is None:
        return result
    why = from_body(dict(note.refusal))
    cause = Cause.STORAGE if isinstance(why, StorageError) else Cause.INPUT
    return ended(result, AttemptState.FAILED, str(why), hint=why.hint, cause=cause)


def lost_note(event: PodEvent) -> PodEvent:
    """Returns the end event of an attempt whose results cannot be found because its note is damaged."""
    return ended(event, AttemptState.LOST, "the record of this attempt in the home is damaged")


def succeeded(body: Mapping[str, Any]) -> bool:
    """Returns whether the body of an end event reports success."""
    return from_builtins(body["outcome"], AttemptOutcome).state == AttemptState.SUCCEEDED


def with_transfers(event: PodEvent, carriage: AttemptTransfers) -> PodEvent:
    """Returns the event with the attempt's transfers added to its outcome."""
    outcome = replace(from_builtins(event.body["outcome"], AttemptOutcome), transfers=carriage)
    return replace(event, body={**event.body, "outcome": to_builtins(outcome)})


def ended(
    event: PodEvent, state: AttemptState, message: str, *, hint: str = "", cause: Cause = Cause.STORAGE
) -> PodEvent:
    """Returns a copy of the end event in which the end state and the message are replaced with the given
    values."""
    outcome = AttemptOutcome(
        state=state, cause=Cause.LOST if state == AttemptState.LOST else cause, message=message, hint=hint
    )
    return replace(event, body={"outcome": to_builtins(outcome)})
