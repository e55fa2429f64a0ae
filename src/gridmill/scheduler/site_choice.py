"""Chooses the resource and site of a job by the expected time to its result, including data transfer.

The transfer time to a site elsewhere and back is computed from measured rates, and from what the job would
have to transfer there before it does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.resource import Alternative, Choice, Resource, Travel, told
from gridmill.domain.route import Carriage, Crossing, Pace, Paces, Staging, Way
from gridmill.domain.site import LOCAL, Site, SiteKind

GAIN_SHARE = 0.2
GAIN_SECONDS = 30.0
"""A job keeps its place in the queue unless another resource finishes it sooner by a fifth, and by this; by
twice as much after each move."""


def choose(alternatives: Sequence[Alternative], current: str = "", moves: int = 0) -> Choice:
    """The one with the least seconds until its result is here, the first named of equals. One where nobody
    knows how long it takes is chosen where it is named first: nobody knows better than who wrote the list.
    One where only the wait is not known comes behind those where all is: there is a line. `current` is where
    the job stands in line, having moved so often: it moves only for a gain that is worth it."""
    possible = [one for one in alternatives if not one.problem]
    present = [one for one in possible if not one.away] or possible or list(alternatives)
    known = [one for one in present if one.quickest_seconds is not None]
    best = min(known, key=_rank) if present[0].quickest_seconds is not None else present[0]
    stays = next((one for one in present if one.resource == current), None)
    if stays is not None and stays is not best and not _is_worth_it(stays, best, moves):
        best = stays
        return _choice(best, alternatives, "it stands in line there, and elsewhere gains too little")
    return _choice(best, alternatives, _reason(best, present, alternatives))


def _rank(one: Alternative) -> tuple[bool, float]:
    return one.wait_seconds is None, (one.quickest_seconds or 0.0) + (one.wait_seconds or 0.0)


def _is_worth_it(stays: Alternative, best: Alternative, moves: int) -> bool:
    if stays.seconds is None or best.seconds is None:
        return False
    gain = stays.seconds - best.seconds
    return gain >= GAIN_SECONDS * 2.0**moves and gain >= GAIN_SHARE * stays.seconds


def _choice(best: Alternative, alternatives: Sequence[Alternative], reason: str) -> Choice:
    listed = "; ".join(told(one) for one in alternatives)
    why = f"{listed}: {best.label}, {reason}" if len(alternatives) > 1 else listed
    return Choice(resource=best.resource, alternatives=tuple(alternatives), why=why)


def _reason(best: Alternative, present: Sequence[Alternative], alternatives: Sequence[Alternative]) -> str:
    if best.problem:
        return "named first"
    if len(present) == 1 and len(alternatives) > 1:
        return "the only one that can be used now"
    if best.quickest_seconds is None:
        return "named first, and not known yet how long it takes there"
    if best.seconds is None:
        return "the quickest once it has its turn, and no wait is known"
    return "done first" if all(one.seconds is not None for one in present) else "done first of those known"


def labels(resources: Sequence[Resource]) -> Mapping[str, str]:
    """What to call each: its site, where that tells them apart, else its name."""
    sites = {one.name: _place(one) for one in resources}
    alone = len(set(sites.values())) == len(sites)
    return sites if alone else {one.name: one.name for one in resources}


def _place(resource: Resource) -> str:
    return f"{LOCAL} {'GPU' if resource.gpus else 'CPU'}" if resource.site == LOCAL else resource.site


FADING = 0.5
"""The weight of earlier transfers when a new one is known."""
MOST_BYTES = float(64 << 20)
"""The largest weight of a transfer; otherwise one large transfer would dominate for ever."""
LEAST_BYTES = 64 << 10
"""Smaller transfers measure round trips, not the rate."""
ROUND_TRIPS = 4
"""Sequential requests of a transfer of any size."""
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


ELSEWHERE = frozenset({SiteKind.CLUSTER})
"""Kinds of sites to which data is transferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A version that a job reads. `size_bytes`: None before one was made. `lacking`: how much of it, by site,
    is not there; all of it at sites that are not named. `made_by` is the job that makes it anew before, in
    the same run; empty: it stands as it is."""

    name: str
    size_bytes: int | None = None
    lacking: Mapping[str, int] = field(default_factory=dict)
    made_by: str = ""


def travel(
    readings: Sequence[Reading],
    back_bytes: int | None,
    site: Site,
    sites: Mapping[str, str],
    staging: Staging | None = None,
) -> Travel | None:
    """None where nothing is carried. `sites`: where jobs of the same run are to run, by job: what is made
    there is there. `back_bytes` is what the job is expected to make, `staging` how it is carried."""
    if site.kind not in ELSEWHERE:
        return None
    way = site.way or Way()
    paces = way.paces(staging)
    sizes = [_lacking(one, site.name, sites) for one in readings]
    there = None if None in sizes else sum(size or 0 for size in sizes)
    whole = sum(one.size_bytes or 0 for one in readings)
    return Travel(
        there_bytes=there,
        there_seconds=None if there is None else crossing_seconds(paces.there, way.round_trip_seconds, there),
        reused_bytes=0 if there is None else max(0, whole - there),
        back_bytes=back_bytes,
        back_seconds=(
            None if back_bytes is None else crossing_seconds(paces.back, way.round_trip_seconds, back_bytes)
        ),
        there_bytes_per_second=_rate(paces.there),
        back_bytes_per_second=_rate(paces.back),
        unknown=tuple(_unknown(readings, sizes, back_bytes, paces, site.name)),
    )


def _lacking(reading: Reading, site: str, sites: Mapping[str, str]) -> int | None:
    if reading.made_by and sites.get(reading.made_by) == site:
        return 0
    if reading.size_bytes is None:
        return None
    return min(reading.size_bytes, reading.lacking.get(site, reading.size_bytes))


def _rate(pace: Pace | None) -> float | None:
    return None if pace is None else pace.bytes_per_second


def _unknown(
    readings: Sequence[Reading], sizes: Sequence[int | None], back: int | None, paces: Paces, site: str
) -> list[str]:
    names = [one.name for one, size in zip(readings, sizes, strict=True) if size is None]
    told = [f"how large {name} is, before it was made once" for name in names]
    if back is None:
        told.append("how large what it makes is, before it was made once")
    if paces.there is None or paces.back is None:
        told.append(f"how quick the way to {site} is: not measured yet")
    return told
