"""This module runs an attempt of a gang: it gives its ranks the addresses of all ranks, and ends the ranks
together. The module also sends messages to pods.

Messages are sent to pods whose link is open. Pods whose link is not open get the messages when they send
their next Hello.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Channels
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import replace
from gridmill.domain.gang import Gang, member_id, roles_in_order
from gridmill.domain.job import Job
from gridmill.domain.pod_protocol import AttemptOutcome, Stop, ToPod
from gridmill.domain.run import Attempt, JobRun
from gridmill.domain.service_spec import STOP_SECONDS
from gridmill.domain.site import LOCAL
from gridmill.domain.states import ATTEMPT_MOVES, AttemptState, check_move
from gridmill.scheduler.gang_results import choose_ports, gang_of, to_dismiss, together


def stop_message(channels: Channels, attempt_id: str, reason: str, job: Job | None = None) -> Stop:
    """Return a Stop message with the configured grace period. If the attempt belongs to a service, the period
    is long enough for the last answers of its replicas."""
    least = STOP_SECONDS if job is not None and job.service is not None else 0.0
    return Stop(attempt_id=attempt_id, reason=reason, grace_seconds=max(channels.grace_seconds, least))


def send_to_pod(channels: Channels, pod_id: str, message: ToPod) -> None:
    """Send a message to a pod if the pod is connected."""
    channel = channels.by_pod.get(pod_id)
    if channel is not None:
        channels.links.send(channel, [message])


def taken_ports(ledger: Ledger, transaction: Transaction) -> frozenset[int]:
    """Return the ports of all live ranks."""
    taken = {attempt.port for attempt in ledger.snapshot.attempts.values() if attempt.port}
    return frozenset(taken | {one.port for one in transaction.nouns.values() if isinstance(one, Attempt)})


def rendezvous(
    members: Sequence[Attempt], addresses: Sequence[str], taken: Collection[int]
) -> tuple[Attempt, ...]:
    """Return the ranks of a new gang in order, each with its address and with a port that is not in
    `taken`."""
    ports = choose_ports([member.token for member in members], taken)
    return tuple(
        replace(
            member,
            gang=members[0].id,
            rank=rank,
            ranks=len(members),
            address=address,
            port=port,
        )
        for rank, (member, address, port) in enumerate(zip(members, addresses, ports, strict=True))
    )


def address_of(transaction: Transaction, deployment_id: str, pod_id: str) -> str:
    """Return the host that the pod has reported, otherwise the host name of its node."""
    deployment = transaction.get(Deployment, deployment_id)
    pods = deployment.pods if deployment else ()
    pod = next((pod for pod in pods if pod.id == pod_id), None)
    return (pod.address or pod.node) if pod else ""


def members_of(transaction: Transaction, attempt: Attempt) -> tuple[Attempt, ...]:
    """Return all ranks of the attempt's gang in order, with the changes of the transaction. The records of
    all ranks of a gang are ended in the same transaction."""
    return tuple(_members(transaction, attempt))


def _members(transaction: Transaction, attempt: Attempt) -> Iterator[Attempt]:
    for rank in range(attempt.ranks):
        member = transaction.get(Attempt, member_id(attempt.gang, rank))
        if member is not None:
            yield member


def gang_for(ledger: Ledger, transaction: Transaction, attempt: Attempt, job_run: JobRun) -> Gang | None:
    """Return the description of the gang in the order for a rank. The result is None if the attempt is not a
    rank of a gang."""
    if not attempt.ranks:
        return None
    deployment = ledger.snapshot.deployments.get(attempt.deployment_id)
    elsewhere = deployment is not None and deployment.site != LOCAL
    return gang_of(
        members_of(transaction, attempt),
        attempt.rank,
        _roles(job_run),
        by_pod=attempt.given.gpus > 0 and elsewhere,
        restarts=max(0, job_run.attempts - 1),
    )


def _roles(job_run: JobRun) -> Mapping[str, int]:
    spec = job_run.job.command or job_run.job.training
    return spec.roles if spec is not None else {}


def note_end(
    channels: Channels, transaction: Transaction, attempt: Attempt, outcome: AttemptOutcome
) -> tuple[Attempt, AttemptOutcome] | None:
    """Record how a rank ended. If the rank failed, the other ranks are stopped. Ranks that only serve other
    ranks are stopped after the last of the other ranks has ended. When all ranks have ended, the function
    returns the attempt of rank 0 and the outcome of the gang. Before that, it returns None.

    Ranks keep their places until all ranks have ended. Otherwise another job could take some of these
    places, and the gang could not start again in the same places.
    """
    if attempt.outcome is not None:
        return None
    if attempt.dismissed:
        outcome = AttemptOutcome(
            state=AttemptState.SUCCEEDED,
            use=outcome.use,
            metrics=outcome.metrics,
            transfers=outcome.transfers,
        )
    check_move(ATTEMPT_MOVES, attempt.state, outcome.state, f"attempt {attempt.id}")
    transaction.put(replace(attempt, outcome=outcome, ended=transaction.now))
    members = members_of(transaction, attempt)
    if any(member.outcome is None for member in members):
        if outcome.state != AttemptState.SUCCEEDED:
            _end(channels, transaction, members, f"rank {attempt.rank} of the gang has ended")
        else:
            _dismiss(channels, transaction, attempt, members)
        return None
    for member in members[1:]:
        transaction.put(_final(member, transaction.now))
    head, whole = together(members)
    return replace(head, outcome=None), whole


def _dismiss(
    channels: Channels, transaction: Transaction, attempt: Attempt, members: Sequence[Attempt]
) -> None:
    job_run = transaction.get(JobRun, attempt.job_run_id)
    serving = to_dismiss(members, roles_in_order(len(members), _roles(job_run))) if job_run else ()
    dismissed = [replace(member, dismissed=True) for member in serving if not member.dismissed]
    transaction.put(*dismissed)
    _end(channels, transaction, dismissed, "the ranks that this rank served have ended")


def _end(channels: Channels, transaction: Transaction, members: Sequence[Attempt], why: str) -> None:
    """Ask each member to end, unless it has ended or was asked before."""
    for member in members:
        if member.outcome is None and not member.stop_requested and member.interrupted is None:
            transaction.put(replace(member, stop_requested=True))
            message = stop_message(channels, member.id, why)
            transaction.then(partial(send_to_pod, channels, member.pod_id, message))


def _final(member: Attempt, now: float) -> Attempt:
    outcome = member.outcome or AttemptOutcome(state=AttemptState.LOST)
    return replace(
        member,
        state=outcome.state,
        outcome=None,
        ended=member.ended or now,
        cause=outcome.cause,
        exit_code=outcome.exit_code,
        message=outcome.message,
        hint=outcome.hint,
        use=outcome.use,
        metrics=outcome.metrics,
        transfers=outcome.transfers,
    )
