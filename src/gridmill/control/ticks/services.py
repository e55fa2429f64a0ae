"""This module has the tick of services: a service that follows an alias gets the version that the alias names
now, and a service whose run has ended is marked as ended."""

from collections.abc import Callable, Iterator

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import BackgroundReads, Endings, FollowedNames
from gridmill.control.steps.references import fetch_artifact, find_version
from gridmill.control.steps.reuse_forecast import why_broken
from gridmill.control.steps.services import add_event, changed_version, send_order
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import JOB, Service, ServiceState, why_not_served
from gridmill.domain.states import RunState
from gridmill.errors import NotFoundError, explained


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedAlias:
    """The version that the alias of a service names now, or None with the reason in `problem`. `current` is
    the version that the service serves."""

    current: Artifact
    target: Artifact | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """The state in which the run of a service ended, and the message of its job if it failed."""

    state: RunState
    message: str = ""


def keep_services(endings: Endings, reads: BackgroundReads, names: FollowedNames, now: float) -> None:
    """Follow the aliases that services follow, if an alias or a version has changed, and mark services as
    ended whose runs have ended."""
    ledger = endings.ledger
    services = [one for one in ledger.snapshot.services.values() if one.is_meant_to_run]
    if not services:
        return
    transaction = ledger.begin(now)
    for service, run in _ended(ledger, services):
        transaction.put(decide_end_of_service(service, run, transaction.now))
    if names.may_have_moved:
        names.may_have_moved = False
        for service in services:
            current = transaction.get(Service, service.name)
            if current is not None and current.is_meant_to_run and current.follows:
                _follow(endings, reads, names, transaction, current)
    if transaction.nouns:
        ledger.stage(transaction)


def _ended(ledger: Ledger, services: list[Service]) -> Iterator[tuple[Service, EndedRun]]:
    for service in services:
        if service.run_id in ledger.snapshot.runs:
            continue
        run = ledger.read(Run, service.run_id)
        job_run = ledger.read(JobRun, f"{service.run_id}/{JOB}")
        state = run.state if run is not None else RunState.STOPPED
        yield service, EndedRun(state=state, message=job_run.message if job_run is not None else "")


def decide_end_of_service(service: Service, run: EndedRun, now: float) -> Service:
    """Decide the record of a service whose run has ended."""
    failed = run.state is RunState.FAILED
    return replace(service, ended=now, problem=(run.message or "its run failed") if failed else "")


def _follow(
    endings: Endings,
    reads: BackgroundReads,
    names: FollowedNames,
    transaction: Transaction,
    service: Service,
) -> None:
    followed = _read_alias(endings.catalog, reads, service, names.look_again)
    if followed is None:
        return
    after = decide_follow(service, followed, transaction.now)
    if after is service:
        return
    transaction.put(after)
    if after.version != service.version:
        add_event(transaction, after, ServiceState.UPDATING, f"{after.follows} names {after.version} now")
        send_order(endings.catalog, endings.storage, endings.channels, transaction, after)
    elif after.refusal and after.refusal != service.refusal:
        add_event(transaction, after, ServiceState.RUNNING, after.refusal)


def _read_alias(
    catalog: Catalog, reads: BackgroundReads, service: Service, look_again: Callable[[], None]
) -> FollowedAlias | None:
    """Return the version that the alias names. The result is None while the files of the version are being
    checked; `look_again` is called after the check."""
    current = fetch_artifact(catalog, service.version)
    try:
        target = find_version(catalog, service.follows)
    except NotFoundError as error:
        return FollowedAlias(current=current, problem=explained(error))
    if target.id in (service.version, service.refused):
        return FollowedAlias(current=current, target=target)
    broken = why_broken(reads, (target,), f"service {service.name}", then=look_again)
    if broken is None:
        return None
    return FollowedAlias(current=current, target=target, problem=broken)


def decide_follow(service: Service, followed: FollowedAlias, now: float) -> Service:
    """Decide the record of a service after its alias or a version may have changed. If the service cannot
    serve the new version, it still serves the version before, and its record has the reason."""
    target = followed.target
    if target is None:
        return _refused(service, "", f"{service.follows} names no version: {followed.problem}")
    if target.id == service.version:
        return replace(service, refused="", refusal="") if service.refusal else service
    if target.id == service.refused:
        return service
    why = followed.problem or why_not_served(target, followed.current)
    if why:
        return _refused(
            service, target.id, f"{service.follows} names {target.id}, which is not served: {why}"
        )
    return changed_version(service, target, service.follows, service.model, now)


def _refused(service: Service, version: str, why: str) -> Service:
    message = f"{why}. The service still serves {service.version}."
    return service if service.refusal == message else replace(service, refused=version, refusal=message)
