"""This module combines the result and the resource use of a gang from its ranks, and chooses the ports
through which the ranks connect.

If a job ran in parts, its use is one measurement of the whole job, combined from the measurements of its
parts. `gang_of` gives all ranks the address and port of each rank.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, stdev

from gridmill.domain.frozen import replace
from gridmill.domain.gang import CHIEF, SERVER, WORKER, Gang, GangMember, roles_in_order
from gridmill.domain.pod_protocol import AttemptOutcome, PartReport
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.route import AttemptTransfers
from gridmill.domain.run import Attempt
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.usage import ParallelTiming


def together(members: Sequence[Attempt]) -> tuple[Attempt, AttemptOutcome]:
    """Return the attempt of rank 0, which represents the gang, and the outcome of the gang. All ranks of the
    gang must have ended. `members` are in the order of their ranks.

    The first failure of a rank determines the outcome of the gang. Ranks that were stopped because of this
    failure do not change the outcome. If the gang succeeded, its result is the result of rank 0, with the
    files that the last rank to end found in the shared folder. The gang is stopped if every unsuccessful
    rank was stopped, and it is preempted if a rank was preempted.
    """
    bad = [member for member in members if _of(member).state is not AttemptState.SUCCEEDED]
    deciding = min(bad, key=_order, default=None)
    stopped = bool(bad) and all(member.stop_requested for member in bad)
    outcome = _of(members[0] if deciding is None else deciding)
    outcomes = [_of(member) for member in members]
    if deciding is None:
        outcome = _with_files(outcome, members)
    elif len(members) > 1 and not stopped:
        outcome = replace(outcome, message=f"rank {deciding.rank} of {len(members)}: {outcome.message}")
    interruption = next((member.interrupted for member in bad if member.interrupted is not None), None)
    head = replace(members[0], stop_requested=stopped, interrupted=interruption)
    used = together_used([one.use for one in outcomes])
    return head, replace(outcome, use=used, transfers=_summed_transfers([one.transfers for one in outcomes]))


def _with_files(outcome: AttemptOutcome, members: Sequence[Attempt]) -> AttemptOutcome:
    """Return a successful outcome with the files in the folder that all ranks share. If the last rank to end
    found that these files cannot be stored, the outcome is a failure."""
    last = _of(max(members, key=lambda one: (not one.dismissed, one.ended or 0.0, one.rank)))
    if last.cause is Cause.OUTPUT:
        return replace(last, state=AttemptState.FAILED, outputs=())
    outputs = max(
        (_of(member).outputs for member in members), key=lambda made: sum(out.size_bytes for out in made)
    )
    return replace(outcome, outputs=outputs, cause=None, message="", hint="")


def _summed_transfers(carriages: Sequence[AttemptTransfers | None]) -> AttemptTransfers | None:
    present_carriages = [carriage for carriage in carriages if carriage is not None]
    return sum(present_carriages[1:], present_carriages[0]) if present_carriages else None


def to_dismiss(members: Sequence[Attempt], roles: Sequence[str]) -> tuple[Attempt, ...]:
    """Return the ranks that must be stopped after all other ranks have succeeded, because they only serve
    other ranks and never end by themselves. `roles` are in the order of the ranks.

    Parameter servers never end by themselves. If there are parameter servers, workers that get their work
    from a chief do not end by themselves either.
    """
    if SERVER not in roles:
        return ()
    serving = {SERVER, WORKER} if CHIEF in roles else {SERVER}
    named = tuple(zip(members, roles, strict=True))
    led = [member for member, role in named if role not in serving]
    done = bool(led) and all(_of(one).state is AttemptState.SUCCEEDED for one in led)
    return tuple(one for one, role in named if role in serving and one.outcome is None) if done else ()


def _of(member: Attempt) -> AttemptOutcome:
    return member.outcome or AttemptOutcome(state=AttemptState.LOST)


def _order(member: Attempt) -> tuple[bool, bool, bool, float, int]:
    """Return the sort key that determines which rank failed first. A rank that was lost or killed comes
    before a rank that failed, because the loss of a rank causes failures of other ranks that are reported
    before the loss. Among all other ranks, the rank that ended first by itself comes first."""
    outcome = _of(member)
    lost, killed = outcome.state is AttemptState.LOST, outcome.cause in (Cause.MEMORY, Cause.SIGNAL)
    return not lost, member.stop_requested, not killed, member.ended or 0.0, member.rank


def together_used(uses: Sequence[MeasuredUse]) -> MeasuredUse:
    """Return the combined use of several ranks: the sums of CPU seconds and bytes, the longest time, and the
    largest memory of one rank."""
    return MeasuredUse(
        wall_seconds=max(use.wall_seconds for use in uses),
        cpu_seconds=sum(use.cpu_seconds for use in uses),
        peak_memory_bytes=max(use.peak_memory_bytes for use in uses),
        system_seconds=added([use.system_seconds for use in uses]),
        disk_seconds=added([use.disk_seconds for use in uses]),
        read_bytes=counted([use.read_bytes for use in uses]),
        written_bytes=counted([use.written_bytes for use in uses]),
    )


def added(values: Sequence[float | None]) -> float | None:
    """Return the sum of the seconds. The sum is None if a value is unknown."""
    present_values = [value for value in values if value is not None]
    return sum(present_values) if len(present_values) == len(values) else None


def counted(values: Sequence[int | None]) -> int | None:
    """Return the sum of the bytes. The sum is None if a value is unknown."""
    present_values = [value for value in values if value is not None]
    return sum(present_values) if len(present_values) == len(values) else None


FIRST_PORT, PORTS = 20_000, 12_000
"""The first port and the number of ports that ranks of gangs may use. The range of ports is below the ports
that systems use for outgoing connections, and above the ports that most services use."""


def choose_ports(tokens: Sequence[str], taken: Collection[int]) -> tuple[int, ...]:
    """Return a port for each rank, derived from the token of its attempt. The ports differ from `taken` and
    from each other. The pod of the rank checks whether the port is free. If the port is not free, the next
    attempt has other tokens and therefore other ports."""
    used = set(taken)
    ports: list[int] = []
    for token in tokens:
        start = int.from_bytes(hashlib.sha256(token.encode()).digest()[:8], "big")
        ports.append(_first_free(start, used))
        used.add(ports[-1])
    return tuple(ports)


def _first_free(start: int, used: Collection[int]) -> int:
    places = (FIRST_PORT + (start + step) % PORTS for step in range(PORTS))
    return next((port for port in places if port not in used), FIRST_PORT)


def gang_of(
    members: Sequence[Attempt], rank: int, roles: Mapping[str, int], *, by_pod: bool, restarts: int
) -> Gang:
    """Return the description of the gang that one of its ranks receives. `members` are the attempts in the
    order of their ranks.

    Ranks that have the same address are on the same host. With `by_pod`, each pod is treated as its own
    host, because its ranks see only the devices of their own pod.
    """
    named = zip(members, roles_in_order(len(members), roles), strict=True)
    return Gang(
        id=members[0].id,
        rank=rank,
        restarts=restarts,
        members=tuple(
            GangMember(
                rank=one.rank,
                host=one.pod_id if by_pod else one.address,
                address=one.address,
                port=one.port,
                role=role,
                gpus=one.gpu_indices,
            )
            for one, role in named
        ),
    )


def use_of_whole(parts: Sequence[PartReport], gathered: MeasuredUse) -> MeasuredUse:
    """Return the use of the whole job, from the use of its parts and of the attempt that combined their
    results. The memory is the largest memory that one pod needed."""
    use = together_used([*(part.use for part in parts), gathered])
    return replace(use, wall_seconds=_stage(parts) + gathered.wall_seconds)


def parallel_of_whole(work: str, rows: int, parts: Sequence[PartReport]) -> ParallelTiming:
    """Return the parallel timing of a job whose parts are treated as shards. The number of workers is the
    number of parts that ran at the same time. `rows` is the amount of work of the job, in the same unit as
    for other attempts with this `work`."""
    uses = [part.use for part in parts]
    seconds = [use.wall_seconds for use in uses]
    mean = fmean(seconds)
    return ParallelTiming(
        work=work,
        workers=_at_once(parts),
        pods=_at_once(parts),
        shards=len(parts),
        rows=rows,
        whole_rows=rows,
        stage_seconds=_stage(parts),
        opening_seconds=0.0,
        opening_cpu_seconds=0.0,
        opening_delay_seconds=0.0,
        busy_seconds=sum(seconds),
        longest_seconds=max(seconds),
        deviation=stdev(seconds) / mean if len(seconds) > 1 and mean else 0.0,
        cpu_seconds=sum(use.cpu_seconds for use in uses),
        disk_seconds=added([use.disk_seconds for use in uses]),
        read_bytes=counted([use.read_bytes for use in uses]),
        written_bytes=counted([use.written_bytes for use in uses]),
    )


def parallel_of_swarm(timing: ParallelTiming, parts: Sequence[PartReport]) -> ParallelTiming:
    """Return the timing that the workers of all parts reported together, adjusted to the number of parts
    that ran at the same time."""
    at_once = _at_once(parts)
    if at_once == len(parts):
        return replace(timing, pods=at_once)
    workers = max(1, timing.workers * at_once // len(parts))
    return replace(timing, pods=at_once, workers=workers, stage_seconds=_stage(parts))


def _stage(parts: Sequence[PartReport]) -> float:
    return max(part.ended for part in parts) - min(part.began for part in parts)


def _at_once(parts: Sequence[PartReport]) -> int:
    """Return the largest number of parts that ran at the same time. Two parts do not run at the same time if
    one of them begins at the moment at which the other part ends."""
    moments = sorted([(part.began, 1) for part in parts] + [(part.ended, -1) for part in parts])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
