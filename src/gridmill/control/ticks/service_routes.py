"""This module has the tick of the routers of services: if the replicas of a service run at another site, the
router at the site `local` gets the way to the attempt in which they run now, and ends if they cannot run."""

from collections import Counter
from collections.abc import Mapping

from gridmill.control.ledger import Transaction
from gridmill.control.state import Endings
from gridmill.control.steps.run_lifecycle import stop_run
from gridmill.control.steps.services import (
    add_event,
    live_attempt,
    replica_address,
    send_route_order,
)
from gridmill.domain.frozen import replace
from gridmill.domain.run import Attempt
from gridmill.domain.service import ROUTE, Service, ServiceRoute, ServiceState
from gridmill.domain.serving import LEAST_OPEN, MOST_OPEN, Upstream
from gridmill.domain.states import FINISHED_JOBS, RunState
from gridmill.ports.site import ServingSite, SitePort


def keep_routes(endings: Endings, sites: Mapping[str, SitePort], now: float) -> None:
    """Send each router the way to the replicas of its service, if it has changed. If the job of the replicas
    or of the router has ended, the other one is stopped, so that the run ends and the service can start
    again."""
    ledger = endings.ledger
    routed = [one for one in ledger.snapshot.services.values() if one.route and one.is_meant_to_run]
    if not routed:
        return
    transaction = ledger.begin(now)
    routers = Counter(one.site for one in routed)
    for service in routed:
        current = transaction.get(Service, service.name)
        if current is not None:
            _keep(endings, sites, transaction, current, routers[current.site])
            _stop_rest(endings, transaction, current)
    if transaction.nouns:
        ledger.stage(transaction)


def _keep(
    endings: Endings,
    sites: Mapping[str, SitePort],
    transaction: Transaction,
    service: Service,
    routers: int,
) -> None:
    attempt, port = live_attempt(transaction, service), sites.get(service.site)
    if attempt is None or not isinstance(port, ServingSite):
        return
    ways = _ways(transaction, port, service, attempt)
    problem = endings.problems.lasting.get(f"data at {service.site} {attempt.id}", "")
    after = decide_problem(decide_route(service, ways, routers), problem)
    if after is not service:
        transaction.put(after)
    if after.route is not None and service.route is not None:
        if after.route.generation != service.route.generation:
            send_route_order(endings.channels, transaction, after)
        if problem and problem != service.route.problem:
            add_event(transaction, after, ServiceState.FAILING, problem)


def _ways(
    transaction: Transaction, port: ServingSite, service: Service, attempt: Attempt
) -> tuple[Upstream, ...]:
    """Return the ways to the replicas of a service in all its pods that get requests."""
    address = replica_address(service.report, service.reported_by, attempt)
    found = [port.upstream(attempt.pod_id, attempt.id, address)]
    for one in service.further_pods:
        other = live_attempt(transaction, service, one.job) if one.leaving is None else None
        if other is not None:
            address = replica_address(one.report, one.reported_by, other)
            found.append(port.upstream(other.pod_id, other.id, address))
    return tuple(one for one in found if one is not None)


def _stop_rest(endings: Endings, transaction: Transaction, service: Service) -> None:
    snapshot = endings.ledger.snapshot
    run = snapshot.runs.get(service.run_id)
    job_runs = tuple(snapshot.job_runs_of(service.run_id)) if run is not None else ()
    if run is None or run.state is not RunState.ACTIVE:
        return
    needed = (service.serving_job, ROUTE)
    if not any(one.job.name in needed and one.state in FINISHED_JOBS for one in job_runs):
        return
    for one in job_runs:
        attempt = live_attempt(transaction, service, one.job.name)
        if one.state not in FINISHED_JOBS and not (attempt is not None and attempt.stop_requested):
            stop_run(endings.ledger, endings.channels, endings.candidates, transaction, run, one.job.name)


def decide_route(service: Service, upstreams: tuple[Upstream, ...], routers: int = 1) -> Service:
    """Decide the record of a service whose replicas can be reached in these ways now. While no way is known,
    the router keeps the ways that it has, and holds requests. All `routers` of the site share its
    connections."""
    route = service.route
    if route is None:
        return service
    most_open = max(LEAST_OPEN, MOST_OPEN // max(1, routers))
    wanted = replace(route, most_open=most_open)
    if upstreams:
        wanted = replace(wanted, upstream=upstreams[0], further_upstreams=upstreams[1:])
    return service if wanted == route else _with_route(service, wanted)


def _with_route(service: Service, route: ServiceRoute) -> Service:
    return replace(service, route=replace(route, generation=route.generation + 1))


def decide_problem(service: Service, problem: str) -> Service:
    """Decide the record of a service whose update cannot be transferred for this reason now, or whose data
    can be transferred (an empty text)."""
    route = service.route
    if route is None or route.problem == problem:
        return service
    return replace(service, route=replace(route, problem=problem))
