"""How long it takes to carry data to a site in another place and back, by what was measured."""

from collections.abc import Iterable
from dataclasses import replace

from gridmill.model.staging import Staging
from gridmill.model.way import Carriage, Crossing, Pace, Paces, Way

FADING = 0.5
"""What the transfers before count for when one more is known."""
MOST_BYTES = float(64 << 20)
"""No transfer counts for more: else one large one would be believed for ever."""
LEAST_BYTES = 64 << 10
"""Less tells of round trips, not of the rate."""
ROUND_TRIPS = 4
"""Questions that are asked one after the other for a transfer of any size."""
MOST_STAGED = 200


def learned(way: Way, carriage: Carriage, versions: Iterable[str] = ()) -> Way:
    """The way, with what was carried for one more attempt. `versions` are there since then."""
    fresh = tuple(dict.fromkeys(versions))
    kept = tuple(one for one in way.staged if one not in fresh)
    before = way.paces(carriage.staging)
    there, back = _learned(before.there, carriage.there), _learned(before.back, carriage.back)
    if carriage.staging == Staging.DIRECT:
        way = replace(way, there=there, back=back)
    elif there or back:
        way = replace(way, others={**way.others, str(carriage.staging): Paces(there=there, back=back)})
    return replace(
        way,
        round_trip_seconds=_first(carriage.round_trip_seconds, way.round_trip_seconds),
        staged=(*kept, *fresh)[-MOST_STAGED:],
    )


def _learned(known: Pace | None, crossing: Crossing) -> Pace | None:
    if crossing.carried_bytes < LEAST_BYTES or crossing.seconds <= 0:
        return known
    before = known or Pace(carried_bytes=0.0, seconds=0.0)
    weight = min(1.0, MOST_BYTES / crossing.carried_bytes)
    return Pace(
        carried_bytes=FADING * before.carried_bytes + weight * crossing.carried_bytes,
        seconds=FADING * before.seconds + weight * crossing.seconds,
        transfers=before.transfers + 1,
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def crossing_seconds(pace: Pace | None, round_trip_seconds: float | None, size_bytes: int) -> float | None:
    """How long so much takes; None where that was not measured yet."""
    waits = ROUND_TRIPS * (round_trip_seconds or 0.0)
    if not size_bytes:
        return waits
    return None if pace is None else waits + size_bytes / pace.bytes_per_second
