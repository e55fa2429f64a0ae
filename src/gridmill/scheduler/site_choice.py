"""This module chooses the resource and site of a job by the expected time until its result is at home,
including data transfer.

The time of the transfers to a site in another place and back is computed from measured rates and from the
bytes that the job still has to transfer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.resource import (
    Resource,
    ResourceAlternative,
    ResourceChoice,
    TransferEstimate,
    alternative_text,
)
from gridmill.domain.route import AttemptTransfers, Route, Staging, Transfer, TransferRate, TransferRates
from gridmill.domain.site import ELSEWHERE, LOCAL, Site

GAIN_SHARE = 0.2
GAIN_SECONDS = 30.0
"""A job changes its queue only if another resource is expected to finish it sooner by a fifth and by this
number of seconds. This number of seconds doubles each time the job moves."""


def choose(alternatives: Sequence[ResourceAlternative], current: str = "", moves: int = 0) -> ResourceChoice:
    """Return the alternative with the earliest expected result at home. If several alternatives are equal,
    the function returns the alternative that the job names first.

    If the duration on an alternative is unknown, this alternative is chosen only if the job names it first,
    because the author of the list knows best. An alternative whose wait is unknown has a queue. Such an
    alternative comes after all alternatives whose duration and wait are both known. `current` is the
    resource in whose queue the job is, and `moves` is the number of times that the job has moved between
    resources. The job moves only if the gain is large enough.
    """
    possible = [one for one in alternatives if not one.problem]
    present = [one for one in possible if not one.unreachable] or possible or list(alternatives)
    measured = [one for one in present if one.quickest_seconds is not None]
    best = min(measured, key=_rank) if present[0].quickest_seconds is not None else present[0]
    stays = next((one for one in present if one.resource == current), None)
    if stays is not None and stays is not best and not is_worth_it(stays.seconds, best.seconds, moves):
        best = stays
        return _choice(
            best,
            alternatives,
            "the job is in the queue of this resource, and no other resource is sufficiently faster",
        )
    return _choice(best, alternatives, _reason(best, present, alternatives))


def _rank(one: ResourceAlternative) -> tuple[bool, float]:
    return one.wait_seconds is None, (one.quickest_seconds or 0.0) + (one.wait_seconds or 0.0)


def is_worth_it(stays_seconds: float | None, best_seconds: float | None, moves: int) -> bool:
    """Return whether a waiting job that has moved `moves` times gains enough time by another move. The
    seconds are the expected times until its result is at home."""
    if stays_seconds is None or best_seconds is None:
        return False
    gain = stays_seconds - best_seconds
    return gain >= GAIN_SECONDS * 2.0**moves and gain >= GAIN_SHARE * stays_seconds


def _choice(
    best: ResourceAlternative, alternatives: Sequence[ResourceAlternative], reason: str
) -> ResourceChoice:
    listed = "; ".join(alternative_text(alternative) for alternative in alternatives)
    why = f"{listed}: {best.label}, {reason}" if len(alternatives) > 1 else listed
    return ResourceChoice(resource=best.resource, alternatives=tuple(alternatives), why=why)


def _reason(
    best: ResourceAlternative,
    present: Sequence[ResourceAlternative],
    alternatives: Sequence[ResourceAlternative],
) -> str:
    if best.problem:
        return "named first"
    if len(present) == 1 and len(alternatives) > 1:
        return "the only resource available now"
    if best.quickest_seconds is None:
        return "the first resource that the job names; the duration of the job is not known yet"
    if best.seconds is None:
        return "the fastest resource after the wait, whose length is not known"
    return (
        "the earliest expected end"
        if all(one.seconds is not None for one in present)
        else "the earliest expected end of all resources with a known end"
    )


def labels(resources: Sequence[Resource]) -> Mapping[str, str]:
    """Return a label for each resource: the name of its site if no other resource has this site, otherwise
    the name of the resource."""
    sites = {resource.name: _place(resource) for resource in resources}
    alone = len(set(sites.values())) == len(sites)
    return sites if alone else {resource.name: resource.name for resource in resources}


def _place(resource: Resource) -> str:
    return f"{LOCAL} {'GPU' if resource.gpus else 'CPU'}" if resource.site == LOCAL else resource.site


FADING = 0.5
"""The weight that earlier transfers keep when a new transfer is known."""
MOST_BYTES = float(64 << 20)
"""The largest weight of one transfer in bytes. Without this limit, one large transfer would dominate the
average rate forever."""
LEAST_BYTES = 64 << 10
"""Transfers of fewer bytes than this measure round trips instead of the rate."""
ROUND_TRIPS = 4
"""The number of sequential requests in a transfer of any size."""
MOST_STAGED = 200


def learned(route: Route, carriage: AttemptTransfers, versions: Iterable[str] = ()) -> Route:
    """Return the route after the transfers of one more attempt. After these transfers, the site has the
    versions `versions`."""
    fresh = tuple(dict.fromkeys(versions))
    kept = tuple(one for one in route.staged if one not in fresh)
    before = route.rates(carriage.staging)
    upload, download = _learned(before.upload, carriage.upload), _learned(before.download, carriage.download)
    if carriage.staging == Staging.DIRECT:
        route = replace(route, upload=upload, download=download)
    elif upload or download:
        route = replace(
            route,
            others={**route.others, str(carriage.staging): TransferRates(upload=upload, download=download)},
        )
    return replace(
        route,
        round_trip_seconds=_first(carriage.round_trip_seconds, route.round_trip_seconds),
        staged=(*kept, *fresh)[-MOST_STAGED:],
    )


def _learned(transfer_rate: TransferRate | None, crossing: Transfer) -> TransferRate | None:
    if crossing.transferred_bytes < LEAST_BYTES or crossing.seconds <= 0:
        return transfer_rate
    before = transfer_rate or TransferRate(transferred_bytes=0.0, seconds=0.0)
    weight = min(1.0, MOST_BYTES / crossing.transferred_bytes)
    return TransferRate(
        transferred_bytes=FADING * before.transferred_bytes + weight * crossing.transferred_bytes,
        seconds=FADING * before.seconds + weight * crossing.seconds,
        transfers=before.transfers + 1,
    )


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def transfer_seconds(
    pace: TransferRate | None, round_trip_seconds: float | None, size_bytes: int
) -> float | None:
    """Return the expected duration in seconds of a transfer of that size. If no rate was measured, the result
    is None, except for a transfer that is so small that it takes only round trips."""
    waits = ROUND_TRIPS * (round_trip_seconds or 0.0)
    if pace is None:
        return waits if size_bytes < LEAST_BYTES else None
    return waits + size_bytes / pace.bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class InputVersion:
    """A version that a job reads, with the number of its bytes that each site does not have. `size_bytes` is
    None if no version exists yet. `missing_bytes` is the number of bytes of the version that are missing, by
    site; sites without an entry lack all of its bytes. `made_by` is the job of the same run that first makes
    a new version; if `made_by` is empty, the job reads the existing version."""

    name: str
    size_bytes: int | None = None
    missing_bytes: Mapping[str, int] = field(default_factory=dict)
    made_by: str = ""


def transfer_estimate(
    readings: Sequence[InputVersion],
    back_bytes: int | None,
    site: Site,
    sites: Mapping[str, str],
    staging: Staging | None = None,
) -> TransferEstimate | None:
    """Return the estimate of a job's transfers. The result is None if nothing is transferred. `sites` has
    the planned sites of jobs of the same run, by job; the results of these jobs are already at these sites.
    `back_bytes` is the expected size of the result of the job. `staging` is the way in which data is
    transferred."""
    if site.kind not in ELSEWHERE:
        return None
    route = site.route or Route()
    paces = route.rates(staging)
    sizes = [_missing_bytes(reading, site.name, sites) for reading in readings]
    upload_bytes = None if None in sizes else sum(size or 0 for size in sizes)
    whole = sum(reading.size_bytes or 0 for reading in readings)
    return TransferEstimate(
        upload_bytes=upload_bytes,
        upload_seconds=None
        if upload_bytes is None
        else transfer_seconds(paces.upload, route.round_trip_seconds, upload_bytes),
        reused_bytes=0 if upload_bytes is None else max(0, whole - upload_bytes),
        download_bytes=back_bytes,
        download_seconds=(
            None
            if back_bytes is None
            else transfer_seconds(paces.download, route.round_trip_seconds, back_bytes)
        ),
        upload_bytes_per_second=_rate(paces.upload),
        download_bytes_per_second=_rate(paces.download),
        unknown=tuple(_unknown(readings, sizes, back_bytes, paces, site.name)),
    )


def _missing_bytes(reading: InputVersion, site: str, sites: Mapping[str, str]) -> int | None:
    if reading.made_by and sites.get(reading.made_by) == site:
        return 0
    if reading.size_bytes is None:
        return None
    return min(reading.size_bytes, reading.missing_bytes.get(site, reading.size_bytes))


def _rate(pace: TransferRate | None) -> float | None:
    return None if pace is None else pace.bytes_per_second


def _unknown(
    readings: Sequence[InputVersion],
    sizes: Sequence[int | None],
    back: int | None,
    paces: TransferRates,
    site: str,
) -> list[str]:
    names = [one.name for one, size in zip(readings, sizes, strict=True) if size is None]
    result = [f"the size of {name}, until a first version exists" for name in names]
    if back is None:
        result.append("the size of the result, until the job has run once")
    upload_bytes = sum(size or 0 for size in sizes)
    if (paces.upload is None and upload_bytes >= LEAST_BYTES) or (
        paces.download is None and (back is None or back >= LEAST_BYTES)
    ):
        result.append(f"the transfer rate of {site}, which is not measured yet")
    return result
