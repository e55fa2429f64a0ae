"""What a job's data would cross to a site in another place and back, before it does."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from gridmill.model.choice import Travel
from gridmill.model.noun import dataclass
from gridmill.model.site import Site, SiteKind
from gridmill.model.staging import Staging
from gridmill.model.way import Pace, Paces, Way
from gridmill.planning.way import crossing_seconds

ELSEWHERE = frozenset({SiteKind.CLUSTER})
"""Kinds of sites to which data is carried."""


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
