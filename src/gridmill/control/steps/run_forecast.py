"""This module computes the expected cost of the rented machines of a run before the run starts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from gridmill.control.state import JobMoves
from gridmill.control.steps.expected_sizes import expected_sizes
from gridmill.control.steps.planned_transfers import transfer_input
from gridmill.control.steps.run_lifecycle import resources_used
from gridmill.control.steps.source_listing import SourceListing
from gridmill.domain.frozen import replace
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.rental_estimate import CostForecast, forecast_of
from gridmill.domain.resource import Resource
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.views import PlannedJob
from gridmill.errors import GridmillError
from gridmill.scheduler.dry_run import dry_run
from gridmill.scheduler.rental_preview import market_of, preview_rental


def run_forecasts(
    moves: JobMoves, pipeline: Pipeline, listings: Mapping[str, SourceListing], unchanged: Collection[str]
) -> Mapping[str, CostForecast]:
    """Return the expected costs of the jobs of a run that a schedule or a backfill starts, by job. No
    provider is asked: the offers are those of the last observation of each site. `unchanged` has the jobs
    that will not run. If the run is going to be refused, there are no forecasts."""
    snapshot = moves.ledger.snapshot
    clouds = {one.name: one for one in snapshot.sites.values() if one.kind is SiteKind.CLOUD}
    if not clouds:
        return {}
    resources = {**snapshot.resources, **{one.name: one for one in pipeline.resources}}
    try:
        used = resources_used(moves.ledger, pipeline, resources)
        if not any(one.site in clouds for one in used.values()):
            return {}
        return rental_forecasts(_planned(moves, pipeline, used, listings, frozenset(unchanged)), clouds)
    except GridmillError:
        return {}


def _planned(
    moves: JobMoves,
    pipeline: Pipeline,
    used: Mapping[str, Resource],
    listings: Mapping[str, SourceListing],
    unchanged: frozenset[str],
) -> Sequence[PlannedJob]:
    sizes = expected_sizes(moves.catalog, pipeline, listings, unchanged)
    carrying = transfer_input(moves.catalog, moves.site_states, pipeline, unchanged, {})
    jobs = tuple(
        job if used[job.name].default or job.resources else replace(job, resource=used[job.name].name)
        for job in pipeline.jobs
    )
    snapshot = moves.ledger.snapshot
    now = moves.timeline.now()
    leases = moves.ledger.read_all(Lease)
    resources = {**snapshot.resources, **{one.name: one for one in used.values()}}
    rent = partial(_with_rental, resources=resources, sites=snapshot.sites, leases=leases)
    return dry_run(replace(pipeline, jobs=jobs), snapshot, sizes, unchanged, carrying, now, rent).jobs


def _with_rental(
    planned: PlannedJob,
    resources: Mapping[str, Resource],
    sites: Mapping[str, Site],
    leases: Sequence[Lease],
) -> PlannedJob:
    """Return the planned job with the machine that is expected to be rented for it."""
    resource, site = resources.get(planned.resource), sites.get(planned.site)
    if resource is None or site is None or site.kind is not SiteKind.CLOUD:
        return planned
    preview = preview_rental(
        resource,
        site,
        planned.sizing,
        market_of(site),
        leases,
        run_seconds=planned.sizing.expected_seconds,
        transfer=planned.transfer,
    )
    rentals = {} if preview.rental is None else {planned.resource: preview.rental}
    return replace(planned, rentals=rentals, unchecked=planned.unchecked or preview.unchecked)


def rental_forecasts(planned: Iterable[PlannedJob], clouds: Collection[str]) -> Mapping[str, CostForecast]:
    """Return the expected costs of the jobs that will run on rented machines, by job. If it is unknown what
    the provider offers, the cost of the job is unknown. `clouds` has the names of the cloud sites."""
    forecasts: dict[str, CostForecast] = {}
    for one in planned:
        rental = one.rentals.get(one.resource)
        if one.unchanged or one.site not in clouds or (rental is None and not one.unchecked):
            continue
        unknown = CostForecast(unknown=(f"{one.job}: {one.unchecked}",))
        forecasts[one.job] = unknown if rental is None else forecast_of(one.job, rental)
    return forecasts
