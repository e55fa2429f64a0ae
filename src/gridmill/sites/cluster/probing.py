"""A first look at how quick the way to a farm is, before anything was carried over it."""

import time
from collections.abc import Callable
from functools import partial

from gridmill.errors import GridmillError, UnavailableError
from gridmill.model.way import Pace, Way
from gridmill.sites.cluster.farm import Farm

_SIZES = (64 << 10, 512 << 10, 4 << 20)
_ENOUGH_SECONDS = 0.25
"""What took so long tells enough: a larger one would only take longer."""
_LEAST_SECONDS = 1e-4
_TRIPS = 3


def probe(
    farm: Farm, limit_bytes_per_second: float | None = None, clock: Callable[[], float] = time.monotonic
) -> Way:
    """Some bytes there, some back. Raises UnavailableError. A farm that does not know probes tells only how
    long a round trip is."""
    trip = min(_timed(farm.greet, clock) for _ in range(_TRIPS))
    try:
        farm.probe(0, 0)  # data has connections of its own: making one is not counted
        there = _pace(lambda size: partial(farm.probe, size, 0), trip, limit_bytes_per_second, clock)
        back = _pace(lambda size: partial(farm.probe, 0, size), trip, limit_bytes_per_second, clock)
    except UnavailableError:
        raise
    except GridmillError:
        return Way(round_trip_seconds=trip)
    return Way(there=there, back=back, round_trip_seconds=trip)


def _pace(
    asking: Callable[[int], Callable[[], None]],
    trip: float,
    limit: float | None,
    clock: Callable[[], float],
) -> Pace:
    for size in _SIZES:
        took = max(_LEAST_SECONDS, _timed(asking(size), clock) - trip)
        if took >= _ENOUGH_SECONDS:
            break
    return Pace(carried_bytes=float(size), seconds=max(took, size / limit if limit else 0.0))


def _timed(act: Callable[[], None], clock: Callable[[], float]) -> float:
    began = clock()
    act()
    return clock() - began
