"""Times in JSON for people and scripts: ISO 8601 in UTC, where nouns have Unix times."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

TIMES: Mapping[str, frozenset[str]] = {
    "Alias": frozenset({"changed"}),
    "Alterations": frozenset({"changed"}),
    "Artifact": frozenset({"created"}),
    "Attempt": frozenset({"placed", "started", "ended"}),
    "ComparedModel": frozenset({"created"}),
    "ControlView": frozenset({"started"}),
    "Deployment": frozenset({"created", "idle_since"}),
    "Event": frozenset({"time"}),
    "JobRun": frozenset({"not_before", "ready", "started", "ended"}),
    "LoadTask": frozenset({"loaded", "looked", "following"}),
    "Pod": frozenset({"began", "ends"}),
    "Project": frozenset({"used_at"}),
    "Run": frozenset({"created", "started", "ended", "due"}),
    "Schedule": frozenset({"since", "done"}),
    "ScheduleView": frozenset({"next"}),
    "SourceLine": frozenset({"added", "heard"}),
    "Told": frozenset({"began", "ended"}),
}
"""By the name of a noun's class, its fields that are Unix times. (Its class would have to be imported.)"""


def with_times(value: Any) -> Any:  # noqa: ANN401  any part of a noun
    """The value as dicts, lists and scalars, with its times as text; a time that is not known is null."""
    if is_dataclass(value):
        times = TIMES.get(type(value).__name__, frozenset())
        found = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
        return {name: _time(part) if name in times else with_times(part) for name, part in found}
    if isinstance(value, Mapping):
        return {key: with_times(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_times(part) for part in value]
    return value


def _time(value: Any) -> Any:  # noqa: ANN401  as with_times
    if isinstance(value, list | tuple):
        return [_time(part) for part in value]
    return written(value) if isinstance(value, int | float) and value and isfinite(value) else None


def written(seconds: float) -> str:
    """`2026-11-25T18:54:10.123Z`: all have the same length, so texts are ordered as the times are."""
    moment = datetime.fromtimestamp(round(seconds, 3), UTC)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{moment.microsecond // 1000:03}Z"
