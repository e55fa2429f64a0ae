"""The result and the resource use of a gang, combined from its ranks; and the ports where its ranks meet.

The use of a job that was done in parts is one measurement of the whole, added up from those of its parts.
`gang_of` gives all ranks the address and port of each.
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
    """Rank 0's attempt, which represents the gang, and the outcome of the gang. All ranks have ended, and
    are given by rank.

    The first failure decides; ranks that were told to end because of it do not count. The result of a success
    is that of rank 0, with the files that the last rank to end found in the shared folder. The gang counts as
    stopped if every unsuccessful rank was stopped, and as preempted if one of them was asked to make room.
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
    """A success with the files in the folder that all ranks share; a failure where the last one to end found
    that they cannot be kept."""
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
    """The ranks that only serve others and go on, once all others have succeeded. `roles` are by rank.

    Parameter servers never end by themselves; beside them nor do workers that a chief gives their work.
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
    """The order of blame. A lost or killed rank is first, before one that failed: the failure of the
    others follows from its loss but is reported earlier. Then the first that ended by itself."""
    outcome = _of(member)
    lost, killed = outcome.state is AttemptState.LOST, outcome.cause in (Cause.MEMORY, Cause.SIGNAL)
    return not lost, member.stop_requested, not killed, member.ended or 0.0, member.rank


def together_used(uses: Sequence[MeasuredUse]) -> MeasuredUse:
    """What several ranks used: CPU seconds and bytes added up, the longest time, the most memory of one."""
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
    """Seconds together; None where any is not known."""
    present_values = [value for value in values if value is not None]
    return sum(present_values) if len(present_values) == len(values) else None


def counted(values: Sequence[int | None]) -> int | None:
    """Bytes together; None where any are not known."""
    present_values = [value for value in values if value is not None]
    return sum(present_values) if len(present_values) == len(values) else None


FIRST_PORT, PORTS = 20_000, 12_000
"""Below the ports that systems use for outgoing connections, and above those that most services listen on."""


def choose_ports(tokens: Sequence[str], taken: Collection[int]) -> tuple[int, ...]:
    """A port for each rank, by its attempt's token, other than those taken and than each other's. The pod
    that serves it looks whether it is free; the next attempt has other tokens, and so other ports."""
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
    """The gang of these attempts (by rank) as one of them sees it.

    Hosts are told apart by their addresses. `by_pod`: each pod counts as a host of its own, because its
    ranks see no devices but its own.
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
    """Of the parts and of the attempt that put them together. The memory is what one pod needed."""
    use = together_used([*(part.use for part in parts), gathered])
    return replace(use, wall_seconds=_stage(parts) + gathered.wall_seconds)


def parallel_of_whole(work: str, rows: int, parts: Sequence[PartReport]) -> ParallelTiming:
    """Its parts as shards: as many workers as there were parts at work at once. `rows` is how much it did,
    in whatever attempts of one `work` count."""
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
    """What the workers of all parts told together, by how many parts were at work at once."""
    at_once = _at_once(parts)
    if at_once == len(parts):
        return replace(timing, pods=at_once)
    workers = max(1, timing.workers * at_once // len(parts))
    return replace(timing, pods=at_once, workers=workers, stage_seconds=_stage(parts))


def _stage(parts: Sequence[PartReport]) -> float:
    return max(part.ended for part in parts) - min(part.began for part in parts)


def _at_once(parts: Sequence[PartReport]) -> int:
    """The most that were at work at a time. One that begins as another ends comes after it."""
    moments = sorted([(part.began, 1) for part in parts] + [(part.ended, -1) for part in parts])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
