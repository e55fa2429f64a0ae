"""What is noted of attempts at a farm, and what is told of their ends by it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gridmill.codec import from_builtins, to_builtins
from gridmill.errors import StorageError, from_body
from gridmill.model.event import PodEvent
from gridmill.model.message import Outcome
from gridmill.model.noun import dataclass
from gridmill.model.staging import Staging
from gridmill.model.state import AttemptState, Cause
from gridmill.model.way import Carriage, Crossing


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is known of an attempt at the farm, over restarts and sessions.

    It leaves there its own folder and its checkpoints (`checkpoints_there`), by their URIs; a `part` leaves
    something in any case. `refusal` is why it never began, as `errors.to_body` writes it. `told` is the
    body of its end as it was told, once all that it made is here: then it is told so again. `there` is what
    was carried there for it, `staging` how, and how what it made comes.
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
