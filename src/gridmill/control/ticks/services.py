"""This module has the tick of services: a service that follows an alias gets the version that the alias names
now, and a service whose run has ended is marked as ended."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import BackgroundReads, Endings, FollowedNames, RunCreation
from gridmill.control.steps.references import fetch_artifact, find_version
from gridmill.control.steps.reuse_forecast import why_broken
from gridmill.control.steps.run_lifecycle import begin_run
from gridmill.control.steps.service_chains import chain_stages, check_stages_trusted
from gridmill.control.steps.service_features import (
    define_features,
    feature_question,
    why_other_requests,
    with_definition,
)
from gridmill.control.steps.service_gpus import check_gpu_memory
from gridmill.control.steps.services import (
    add_event,
    changed_version,
    live_attempt,
    live_attempts,
    outdated_pod,
    send_order,
    send_order_again,
)
from gridmill.domain.amounts import show_seconds
from gridmill.domain.artifact import Artifact
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service import (
    JOB,
    ROUTE,
    Service,
    ServiceState,
    has_own_code,
    pipeline_of,
    why_not_served,
)
from gridmill.domain.service_canary import why_no_room, with_canary, without_canary
from gridmill.domain.service_features import CHECK_SECONDS, FeatureDefinition
from gridmill.domain.service_rollback import with_terms_before
from gridmill.domain.service_succession import Succession
from gridmill.domain.states import JobState, RunState
from gridmill.errors import (
    CapacityError,
    GridmillError,
    NotFoundError,
    StorageError,
    UnavailableError,
    explained,
)
from gridmill.scheduler.outcomes import backoff_seconds

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 10.0, 900.0
"""The first and the longest pause before a service starts again whose run failed, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedAlias:
    """The version that the alias of a service names now, or None with the reason in `problem`. `current` is
    the version that the service serves. `features` is the definition of the contextual features of the
    target, and `stages` are the versions that predict features of it. `room_bytes` is the memory of the
    running attempt of the service. If the problem `may_pass`, the version is tried again after the next
    change of an alias or a version."""

    current: Artifact
    target: Artifact | None = None
    problem: str = ""
    features: FeatureDefinition | None = None
    stages: tuple[Artifact, ...] = ()
    may_pass: bool = False
    room_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """The state in which the run of a service ended, and the message of its failed job. `is_unmeasured` means
    that the job could not measure the version on a rented machine."""

    state: RunState
    message: str = ""
    is_unmeasured: bool = False


def keep_services(
    endings: Endings, reads: BackgroundReads, names: FollowedNames, creation: RunCreation, now: float
) -> float:
    """Follow the aliases that services follow, if an alias or a version has changed. Mark services as ended
    whose runs have ended, and start a service again whose run has failed. Returns the number of seconds until
    the next service starts again."""
    ledger = endings.ledger
    services = [one for one in ledger.snapshot.services.values() if one.is_meant_to_run]
    if not services:
        return math.inf
    transaction = ledger.begin(now)
    for service, run in _ended(ledger, services):
        has_resource = not service.resource or service.resource in ledger.snapshot.resources
        after = decide_end_of_service(service, run, has_resource, transaction.now)
        transaction.put(after)
        if after.problem:
            add_event(transaction, after, ServiceState.FAILED, after.problem)
    for service in services:
        if service.retry_at is not None and service.retry_at <= transaction.now:
            transaction.put(_start_again(creation, transaction, service))
    has_moved = names.may_have_moved
    if has_moved:
        _follow_all(endings, reads, names, transaction, services)
    if has_moved or now >= names.views_at:
        names.views_at = now + CHECK_SECONDS
        _send_views(endings, transaction, services)
    if transaction.nouns or transaction.after:
        ledger.stage(transaction)
    waits = [one.retry_at - now for one in ledger.snapshot.services.values() if one.retry_at is not None]
    return max(0.0, min(waits, default=math.inf))


def _follow_all(
    endings: Endings,
    reads: BackgroundReads,
    names: FollowedNames,
    transaction: Transaction,
    services: Iterable[Service],
) -> None:
    names.may_have_moved = False
    try:
        for service in services:
            current = transaction.get(Service, service.name)
            if current is not None and current.is_meant_to_run and current.follows:
                _follow(endings, reads, names, transaction, current)
    except StorageError:  # the store failed: the next tick looks at all aliases again
        names.may_have_moved = True
        raise


def _start_again(creation: RunCreation, transaction: Transaction, service: Service) -> Service:
    """Return the service in a new run. If no run can begin, the service waits again."""
    beginning = transaction.within()
    try:
        run = begin_run(creation, beginning, pipeline_of(service), force=False)
    except StorageError:  # the store failed, not the service: the next tick tries again
        raise
    except GridmillError as error:
        return decide_retry(service, explained(error), transaction.now)
    transaction.join(beginning)
    route = replace(service.route, report=None, reported_by="") if service.route is not None else None
    # the report of the earlier run says nothing about this run
    again = replace(
        service,
        run_id=run.id,
        started=transaction.now,
        retry_at=None,
        serving_job=JOB,
        further_pods=(),
        waits_for_pods=False,
        succession=Succession(warm_up=service.succession.warm_up),
        report=None,
        reported_by="",
        route=route,
        features_before=(),
    )
    add_event(transaction, again, ServiceState.STARTING, f"starts again with {service.version}")
    return again


def _send_views(endings: Endings, transaction: Transaction, services: Iterable[Service]) -> None:
    """Send the newest versions of the tables behind the views. Services also get unchanged versions, so that
    they know that their views are fresh."""
    for service in services:
        current = transaction.get(Service, service.name)
        if current is not None and current.is_meant_to_run and current.features:
            send_order_again(endings.catalog, endings.storage, endings.channels, transaction, current)


def _ended(ledger: Ledger, services: list[Service]) -> Iterator[tuple[Service, EndedRun]]:
    for service in services:
        if service.run_id in ledger.snapshot.runs or service.retry_at is not None:
            continue
        run = ledger.read(Run, service.run_id)
        read = (ledger.read(JobRun, f"{service.run_id}/{name}") for name in (service.serving_job, ROUTE))
        yield service, decide_ended_run(run, [one for one in read if one is not None])


def decide_ended_run(run: Run | None, jobs: Sequence[JobRun]) -> EndedRun:
    """Decide how the run of a service ended: as the job of its replicas or its router has ended. A successor
    of the replicas that could not run does not matter."""
    failed = next((one for one in jobs if one.state is JobState.FAILED), None)
    state = run.state if run is not None else RunState.STOPPED
    if state is RunState.FAILED and failed is None:
        state = RunState.STOPPED
    told = failed if failed is not None else next(iter(jobs), None)
    spec = failed.job.service if failed is not None else None
    is_unmeasured = spec is not None and spec.measures_first
    message = told.message if told is not None else ""
    return EndedRun(state=state, message=message, is_unmeasured=is_unmeasured)


def decide_end_of_service(service: Service, run: EndedRun, has_resource: bool, now: float) -> Service:
    """Decide the record of a service whose run has ended. A service whose run failed starts again after a
    pause, because most causes pass: machines get free, a budget gets new money, or a user changes a resource.
    Without its resource, the service cannot start again. A new service whose size could not be measured on
    its rented machine does not start again either."""
    if run.state is not RunState.FAILED:
        return replace(service, ended=now, problem="")
    why = run.message or "its run failed"
    if run.is_unmeasured and service.size is None:
        # another machine would cost as much, and would very likely fail in the same way
        hint = f"Start it without a measurement: gridmill start service {service.name} --replicas N"
        problem = f"its size could not be measured: {why.removesuffix('.')}. {hint}"
        return replace(service, ended=now, problem=problem)
    if has_resource:
        return decide_retry(service, why, now)
    hint = (
        f"Create the resource, and start the service: gridmill configure resource {service.resource} --type "
        f"service; gridmill start service {service.name}"
    )
    return replace(service, ended=now, problem=f"{why}. {hint}")


def decide_retry(service: Service, why: str, now: float) -> Service:
    """Decide when a service starts again whose run failed for the reason `why`."""
    failures = service.failures + 1
    pause = backoff_seconds(failures, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
    again = (
        f"The service starts again in {show_seconds(pause)}; to end it: gridmill stop service {service.name}"
    )
    return replace(
        service, failures=failures, retry_at=now + pause, problem=f"{why.removesuffix('.')}. {again}"
    )


def _follow(
    endings: Endings,
    reads: BackgroundReads,
    names: FollowedNames,
    transaction: Transaction,
    service: Service,
) -> None:
    try:
        followed = _read_alias(endings, reads, service, names.look_again)
    except NotFoundError as error:  # a damaged record must not end the tick for all other services
        transaction.put(_refused(service, "", f"{service.follows} cannot be followed: {explained(error)}"))
        return
    if followed is None:
        return
    attempt = live_attempt(transaction, service)
    room_bytes = attempt.given.memory_bytes if attempt is not None else None
    after = decide_follow(service, replace(followed, room_bytes=room_bytes), transaction.now)
    outdated = outdated_pod(endings.channels, service, live_attempts(transaction, service))
    if outdated is not None and after.generation != service.generation:
        after = _refused(service, "", f"{service.follows} names another version: {explained(outdated)}")
    try:
        check_gpu_memory(endings.catalog, service, after)
    except (CapacityError, NotFoundError) as error:  # a damaged record must not end the tick
        after = _refused(service, "", f"{service.follows} names another version: {explained(error)}")
    if after is service:
        return
    after = with_terms_before(service, after)
    transaction.put(after)
    if after.generation != service.generation:
        named = after.canary or after.version
        add_event(transaction, after, ServiceState.UPDATING, f"{after.follows} now names {named}")
        send_order(endings.catalog, endings.storage, endings.channels, transaction, after)
    elif after.refusal and after.refusal != service.refusal:
        add_event(transaction, after, ServiceState.RUNNING, after.refusal)


def _read_alias(
    endings: Endings, reads: BackgroundReads, service: Service, look_again: Callable[[], None]
) -> FollowedAlias | None:
    """Return the version that the alias names. The result is None while the files of the version are being
    checked, or its features are being defined; `look_again` is called afterwards."""
    catalog = endings.catalog
    current = fetch_artifact(catalog, service.version)
    try:
        target = find_version(catalog, service.follows)
    except NotFoundError as error:
        return FollowedAlias(current=current, problem=explained(error))
    if target.id in (service.version, service.canary, service.refused):
        # the files of a canary were checked when it started, and its features are defined
        return FollowedAlias(current=current, target=target, features=service.features.get(target.id))
    broken = why_broken(reads, (target,), f"service {service.name}", then=look_again)
    if broken is None:
        return None
    if broken:
        # the text is also used for jobs, for which it states that they run again
        return FollowedAlias(current=current, target=target, problem=broken.removeprefix("runs again: "))
    return _with_features(endings, reads, service, FollowedAlias(current=current, target=target), look_again)


def _with_features(
    endings: Endings,
    reads: BackgroundReads,
    service: Service,
    followed: FollowedAlias,
    look_again: Callable[[], None],
) -> FollowedAlias | None:
    """Return the followed alias with the definition of the features of its version. The result is None while
    the features are being defined in the background."""
    target = followed.target
    if target is None or why_not_served(target, followed.current):
        return followed
    try:
        question = feature_question(
            endings.catalog,
            endings.storage,
            service.name,
            target,
            service.feature_settings,
            service.definitions,
        )
        if question is None:
            return followed
        key = f"features of {target.id} for {service.name}"
        if key not in reads.pending.files:
            define = partial(define_features, endings.storage, question)
            reads.runner.submit(key, define, partial(_keep, reads, key, look_again))
        future: Future[FeatureDefinition | None] | None = reads.pending.files.pop(key, None)
        if future is None:
            return None
        features = future.result()
        check_stages_trusted(endings.catalog, service, (features,))
        return replace(followed, features=features, stages=chain_stages(endings.catalog, features))
    except GridmillError as error:
        may_pass = isinstance(error, UnavailableError)
        return replace(followed, problem=explained(error), may_pass=may_pass)


def _keep(
    reads: BackgroundReads,
    key: str,
    look_again: Callable[[], None],
    future: "Future[FeatureDefinition | None]",
) -> None:
    reads.pending.files[key] = future
    look_again()


def decide_follow(service: Service, followed: FollowedAlias, now: float) -> Service:
    """Decide the record of a service after its alias or a version may have changed. If the service cannot
    serve the new version, it still serves the version before, and its record has the reason."""
    target = followed.target
    if target is None:
        return _refused(service, "", f"{service.follows} names no version: {followed.problem}")
    percent = service.settings.follow_percent
    if target.id == service.version:
        is_of_alias = service.canary and service.canary_follows == service.follows
        after = without_canary(service, now) if is_of_alias else service
        return replace(after, refused="", refusal="") if after.refusal else after
    if target.id == service.refused or (percent is not None and target.id == service.canary):
        return service
    before = service.features.get(service.version)
    why = (
        followed.problem
        or why_not_served(target, followed.current)
        or _why_not_trusted(service, target)
        or why_other_requests(before, followed.features)
    )
    if why:
        refused = "" if followed.may_pass else target.id
        return _refused(service, refused, f"{service.follows} names {target.id}, which is not served: {why}")
    if percent is not None:
        after = with_canary(
            service,
            target,
            stages=followed.stages,
            model=service.model,
            follows=service.follows,
            percent=percent,
            now=now,
        )
        if no_room := why_no_room(after, service, followed.room_bytes):
            named = f"{service.follows} names {target.id}, which is not a canary: {no_room}"
            return _refused(service, target.id, named)
        after = replace(after, refused="", refusal="")
    else:
        after = changed_version(service, target, service.follows, service.model, now)
    return with_definition(after, target.id, followed.features)


def _why_not_trusted(service: Service, target: Artifact) -> str:
    if service.settings.trust or not has_own_code(target):
        return ""
    return (
        "it predicts with its own code, and the service has no --trust. If you trust its author: gridmill "
        f"update service {service.name} --model {service.follows} --trust"
    )


def _refused(service: Service, version: str, why: str) -> Service:
    message = f"{why}. The service still serves {service.version}."
    return service if service.refusal == message else replace(service, refused=version, refusal=message)
