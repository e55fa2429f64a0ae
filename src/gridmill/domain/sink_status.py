"""This module has the status of a sink: the load task of each source, and rejected rows, drift and position
of the last load.

A load task describes a source of a sink, what was loaded from it, and when it is checked again. Load tasks
are computed when a client requests them, and are not stored.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gridmill.domain.amounts import show_count
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass
from gridmill.domain.states import JobState

WAITING = "waiting"
"""A key in the details of a version: its value is the number of files of the source that were still
changing, and how long files must be unchanged."""
_REASONS = 3


def rejects_of(artifact: Artifact) -> Mapping[str, Any]:
    """Return the rejected rows of a version. The result has the total number of rejected rows (`rows`), the
    number of rows that the last load rejected (`added`), the `reasons` with counts, the `uri` and
    `table_version` of the Delta table with all rejected rows, and a `sample` of these rows. The result is
    empty if no row was rejected."""
    details: Mapping[str, Any] = artifact.output.details.get("rejects") or {}
    return details


def shifted_of(artifact: Artifact) -> Mapping[str, float]:
    """Return the columns that drifted by more than the sink allows, with their population stability
    index."""
    result: Mapping[str, float] = (artifact.output.details.get("drift") or {}).get("shifted", {})
    return result


def source_of(artifact: Artifact) -> str:
    """Return the source of the rows of the version, as declared."""
    return str(artifact.output.details.get("source", ""))


def position_of(artifact: Artifact, *, files: bool = True) -> str:
    """Return the position up to which the source was read: the position in each part of the source, or the
    number of `files` that were seen. The result is empty for a source without positions and for a source
    without rows."""
    positions = artifact.output.details.get("positions") or {}
    texts = [text for text in map(_position_text, positions.values()) if text]
    if texts:
        return ", ".join(texts)
    if not files:
        return ""
    counted = (at.get("count") for at in positions.values() if isinstance(at, Mapping))
    seen = next((count for count in counted if count), artifact.output.details.get("files", 0))
    return show_count(seen, "file")


def _position_text(position: object) -> str:
    """Return the value of a cursor, or the id of a stream's entry, as text. The internal state of a reader
    is not shown."""
    if not isinstance(position, Mapping):
        return ""
    return str(position.get("value", position.get("id", "")))


def lag_of(artifact: Artifact, now: float) -> float | None:
    """Return the seconds from the position to `now` (Unix seconds). The result is None if the position is
    not a time."""
    for position in (artifact.output.details.get("positions") or {}).values():
        moment = _moment(position) if isinstance(position, Mapping) else None
        if moment is not None:
            return max(0.0, now - moment)
    return None


def _moment(position: Mapping[str, Any]) -> float | None:
    """Return the time in the value of a cursor or in the id of a stream's entry."""
    if position.get("kind") == "time":
        moment = datetime.fromisoformat(str(position["value"]))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    milliseconds = str(position.get("id", "")).partition("-")[0]
    return int(milliseconds) / 1000 if milliseconds.isdigit() else None


def rejects_line(artifact: Artifact) -> str:
    """Return a line about rejected rows, such as `shops/sales@3: 12 rows rejected, 2 by its last load: 9
    price: missing, 3 ...`; empty if no row was rejected."""
    text = rejects_text(artifact)
    return f"{artifact.id}: {text}" if text else ""


def rejects_text(artifact: Artifact) -> str:
    """Return a text about rejected rows, such as `12 rows rejected, 2 by its last load: 9 price: missing, 3
    ...`; empty if no row was rejected."""
    rejects = rejects_of(artifact)
    if not rejects:
        return ""
    rows, added, reasons = rejects["rows"], rejects["added"], rejects["reasons"]
    listed = ", ".join(f"{count:,} {reason}" for reason, count in list(reasons.items())[:_REASONS])
    more = f", and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
    counted = f"{rows:,} row{'s' * (rows != 1)} rejected, {added:,} by its last load"
    return f"{counted}: {listed}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """One source of a sink (`pipeline/job`), with the state of its last load. All times are Unix seconds, or
    None if there is no time.

    `rows` and `rejects` are the numbers of rows and of rejected rows from this source in the newest version
    of the sink. `rows_added` is the number of rows from all sources in the load that made the version.
    `position` is the position up to which the source was read. `state` is the state of the job in its newest
    run, `checked` is the time when that run ended, and `loaded` is the time when rows were last loaded.
    `lag_seconds` is the time by which `position` is behind the present time, if the position is a time.
    `following` is the next time at which the schedule checks the source. `why` is the reason why the source
    or the job waits, or the reason why the job failed. `drifted` has the columns that drifted, and
    `alterations` is the number of alterations of the sink.
    """

    sink: str
    source: str
    state: JobState | None = None
    version: str = ""
    rows: int = 0
    rows_added: int = 0
    rejects: int = 0
    position: str = ""
    lag_seconds: float | None = None
    loaded: float | None = None
    checked: float | None = None
    schedule: str = ""
    following: float | None = None
    why: str = ""
    run: str = ""
    drifted: tuple[str, ...] = ()
    alterations: int = 0
