"""This module writes leases with their events, and the consequences of their changes for pods, attempts and
resources."""

from collections.abc import Callable, Iterable, Mapping

from gridmill.control.counters import Counters
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.renting_state import Rentals, SiteRental
from gridmill.control.state import BRING_UPS, BringUps, Problems, Starting
from gridmill.control.steps.end_attempt import settle_attempt
from gridmill.domain.amounts import show_seconds
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.gang import member_id
from gridmill.domain.lease import LaunchTry, Lease, LeaseState, TryState, lease_cost_micros
from gridmill.domain.lease_cost import Subject, live_uses
from gridmill.domain.pod_protocol import AttemptOutcome, Event
from gridmill.domain.reaping import reap_command
from gridmill.domain.rental_estimate import show_money
from gridmill.domain.run import Attempt, JobRun, attempt_id_of
from gridmill.domain.site import Site
from gridmill.domain.states import AttemptState, Cause, DeploymentState
from gridmill.ports.site import SitePort
from gridmill.scheduler.queue import JOB_RUN_ID
from gridmill.scheduler.renting import LIMIT_OF_MONEY, LIMIT_OF_TIME

LEASE_EVENT = "lease"
"""The type of the events about leases and budgets. The body has `what` (`lease` or `budget`), `id`, `state`
and `message`."""
MOST_RUNS = 10
"""The largest number of runs whose events show the changes of one lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renting:
    """The parts of the control node's state that are needed to rent and return machines."""

    starting: Starting
    bring_ups: BringUps
    rentals: Rentals
    sites: Mapping[str, SitePort]
    counters: Counters
    new_token: Callable[[], str]

    @property
    def ledger(self) -> Ledger:
        """The `Ledger` with the leases."""
        return self.starting.ledger

    @property
    def problems(self) -> Problems:
        """The lasting problems of the control node."""
        return self.starting.endings.problems

    def now(self) -> float:
        """See Timeline."""
        return self.starting.timeline.now()


def put_lease(renting: Renting, transaction: Transaction, rental: SiteRental, lease: Lease) -> None:
    """Write a lease if it has changed, with the events about its changes and with the consequences of its
    end."""
    before = transaction.get(Lease, lease.id)
    if before == lease:
        return
    transaction.put(lease)
    for message in changes(before, lease, transaction.now):
        _tell(renting.ledger, transaction, lease, message)
    if lease.state is LeaseState.RELEASING and before is not None and before.state != lease.state:
        _record_release(renting, transaction, lease)
    if not lease.is_open:
        rental.forget_closed(lease)
        renting.rentals.note_closed(lease)


def changes(before: Lease | None, lease: Lease, now: float) -> Iterable[str]:
    """Yield a sentence for each change of a lease that a reader of a run's events wants to know."""
    if before is None:
        yield f"a machine for {lease.resource} will be rented at {lease.provider}"
        return
    known = {one.number: one for one in before.tries}
    for one in lease.tries:
        yield from _try_changes(known.get(one.number), one)
    if lease.problem != before.problem and lease.problem:
        yield lease.problem
    if lease.state == before.state:
        return
    if lease.state is LeaseState.READY:
        yield f"the machine is ready after {show_seconds(now - lease.opened)}"
    elif lease.state is LeaseState.RELEASING:
        yield f"the machine is ended: {lease.reason}"
    elif lease.state is LeaseState.CLOSED:
        micros = lease_cost_micros(lease, now)
        last = lease.last_try
        cost = "an unknown amount" if micros is None else show_money(micros, last.currency if last else "USD")
        yield f"closed after {show_seconds(now - lease.opened)}: it has cost {cost}"


def _try_changes(before: LaunchTry | None, one: LaunchTry) -> Iterable[str]:
    place = one.zone or one.region
    if before is None:
        price = "an unknown price" if one.price_micros is None else show_money(one.price_micros, one.currency)
        spot = " (spot)" if one.spot else ""
        yield f"requests {one.instance_type}{spot} in {place} for {price} per hour"
    elif one.state != before.state and one.state is TryState.CONFIRMED:
        yield f"machine {one.machine_id} boots in {place}"
    elif one.state != before.state and one.state is TryState.REFUSED:
        yield f"refused in {place}: {one.message}"
    elif one.state != before.state and one.state is TryState.ABSENT:
        yield f"the provider has not started the machine that was requested in {place}"
    elif one.problem != before.problem and one.problem is not None:
        yield f"machine {one.machine_id} is replaced or lost ({one.problem}): {one.message}"


def _tell(ledger: Ledger, transaction: Transaction, lease: Lease, message: str) -> None:
    body = {"what": "lease", "id": lease.id, "state": lease.state.value, "message": message}
    for run_id, job in runs_of(ledger, lease):
        transaction.events.append(
            Event(time=transaction.now, type=LEASE_EVENT, run_id=run_id, job=job, body=body)
        )


def runs_of(ledger: Ledger, lease: Lease) -> tuple[tuple[str, str], ...]:
    """Return the active runs whose jobs use the machine of a lease or wait for it, each with one of these
    jobs."""
    snapshot = ledger.snapshot
    queue = snapshot.lines.waiting.get(lease.resource)
    ids = [one.job_run_id for one in snapshot.attempts_on(lease.pod_id)]
    for group in queue.classes.values() if queue is not None else ():
        ids.extend(ticket[JOB_RUN_ID] for ticket, _ in zip(group.members, range(MOST_RUNS), strict=False))
    found = {one.run_id: one.job.name for key in ids if (one := snapshot.job_runs.get(key)) is not None}
    used = {one.run_id: one.job for one in lease.uses if one.run_id in snapshot.runs}
    return tuple({**used, **found}.items())[:MOST_RUNS]


def _record_release(renting: Renting, transaction: Transaction, lease: Lease) -> None:
    """Record that the pod of a lease loses its machine. If no machine can be rented, the waiting jobs of the
    resource fail with the reason. If the machine reached its limits, its jobs fail, because another machine
    would reach them too."""
    if lease.hopeless and not lease.image_name:
        renting.bring_ups.failed[lease.resource] = BRING_UPS + 1
        renting.bring_ups.problems[lease.resource] = lease.reason
        deployment = transaction.get(Deployment, lease.deployment_id)
        if deployment is not None and deployment.state is DeploymentState.STARTING:
            gone = replace(deployment, state=DeploymentState.RELEASING, message=lease.reason)
            transaction.put(gone)
    if lease.reason not in (LIMIT_OF_TIME, LIMIT_OF_MONEY):
        return
    name = "max_hours" if lease.reason == LIMIT_OF_TIME else "max_cost"
    hint = f"Increase the setting {name} of the resource: `gridmill alter resource {lease.resource} --set`."
    outcome = AttemptOutcome(state=AttemptState.FAILED, cause=Cause.TIMEOUT, message=lease.reason, hint=hint)
    for one in renting.ledger.snapshot.attempts_on(lease.pod_id):
        attempt = transaction.get(Attempt, one.id) or one
        settle_attempt(renting.starting.endings, transaction, attempt, outcome)


def sent_by(ledger: Ledger, attempts: Iterable[str]) -> Iterable[tuple[Subject, int]]:
    """Yield the bytes that were transferred from the machine for each of these ended attempts, with the job.
    The record of the first rank of a gang has the sum of all ranks, which run on other machines too."""
    for one in filter(None, (ledger.read(Attempt, key) for key in attempts)):
        sent_bytes = _downloaded(one)
        if one.ranks and not one.rank:
            others = (ledger.read(Attempt, member_id(one.id, rank)) for rank in range(1, one.ranks))
            sent_bytes -= sum(_downloaded(other) for other in others if other is not None)
        if sent_bytes > 0:
            yield _subject(ledger, one), sent_bytes


def _downloaded(attempt: Attempt) -> int:
    return 0 if attempt.transfers is None else attempt.transfers.download.transferred_bytes


def _subject(ledger: Ledger, attempt: Attempt) -> Subject:
    job_run = ledger.snapshot.find(JobRun, attempt.job_run_id)
    job = job_run.job.name if isinstance(job_run, JobRun) else attempt.job_run_id.partition("/")[2]
    return attempt.project, attempt.run_id, job


def live_on(ledger: Ledger, lease: Lease) -> Mapping[Subject, int]:
    """Return the number of live attempts on the machine of a lease, by job."""
    counts: dict[Subject, int] = {}
    for attempt in ledger.snapshot.attempts_on(lease.pod_id):
        key = _subject(ledger, attempt)
        counts[key] = counts.get(key, 0) + 1
    return counts


def last_attempts(ledger: Ledger, lease: Lease) -> frozenset[str]:
    """Return the last attempts on the machine of a lease of the jobs that used it when the lease was written.
    After a restart, those that are not live any more have ended meanwhile."""
    found: set[str] = set()
    for _, run_id, job in live_uses(lease):
        job_run = ledger.read(JobRun, f"{run_id}/{job}")
        attempt = (
            None if job_run is None else ledger.read(Attempt, attempt_id_of(job_run.id, job_run.attempts))
        )
        if attempt is not None and attempt.pod_id == lease.pod_id:
            found.add(attempt.id)
    return frozenset(found)


def has_failed(ledger: Ledger, attempts: Iterable[str]) -> bool:
    """Return whether one of these attempts has failed."""
    ended = (ledger.read(Attempt, key) for key in attempts)
    return any(one is not None and one.state is AttemptState.FAILED for one in ended)


def provider_of(sites: Mapping[str, Site], site: str) -> str:
    """Return the kind of the provider of a site, such as `aws`."""
    return sites[site].settings.get("provider", site) if site in sites else site


def machine_text(lease: Lease, provider: str) -> str:
    """Return a sentence about the machine of a lease, its cost per hour and the commands that end it. The
    sentence is empty if the lease has no machine."""
    one = lease.machine_try
    if one is None:
        return ""
    cost = "an unknown amount" if one.price_micros is None else show_money(one.price_micros, one.currency)
    return (
        f". Machine {one.machine_id} costs {cost} per hour; `gridmill stop lease {lease.id}` ends it, and"
        f" `{reap_command(provider, lease.owner, lease.id)}` ends it without the control node"
    )


def with_machine(problem: str, lease: Lease, provider: str) -> str:
    """Return a problem of a lease, followed by the sentence of `machine_text`."""
    machine = machine_text(lease, provider)
    return f"{problem.removesuffix('.')}{machine}" if machine else problem


def left_text(lease: Lease, provider: str, *, exports: bool) -> str:
    """Return a warning about a lease that is open while the control node ends. `exports` is whether a bucket
    takes the results of its jobs, so that a running job may continue."""
    dead_man = show_seconds(lease.terms.dead_man_seconds)
    what = f"lease {lease.id} is still open while the control node ends{machine_text(lease, provider)}"
    if lease.terms.accept_no_self_end:
        return f"{what}. The machine does not end itself. The next control node of this home continues"
    longest = show_seconds(lease.terms.max_seconds)
    since = "its last job has ended" if exports else "the last contact, also while a job runs"
    return (
        f"{what}. Without a control node, the machine ends itself {dead_man} after {since},"
        f" but at the latest {longest} after its start"
    )
