"""How a gang ended, from how each of its ranks did."""

from collections.abc import Sequence
from dataclasses import replace

from gridmill.model.gang import CHIEF, SERVER, WORKER
from gridmill.model.message import Outcome
from gridmill.model.resource import Use
from gridmill.model.run import Attempt
from gridmill.model.state import AttemptState, Cause
from gridmill.model.way import Carriage


def together(members: Sequence[Attempt]) -> tuple[Attempt, Outcome]:
    """Rank 0's attempt as it stands for all, and the outcome. All ranks have ended, and are given by rank.

    What went wrong first decides; ranks that were told to end because of it do not. What is kept of a success
    is rank 0's; of the files in the folder that all share, what the last to end found. The gang was stopped
    where every rank that did not succeed was, and made room for others where one of them was asked to.
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
    asked = next((member.interrupted for member in bad if member.interrupted is not None), None)
    head = replace(members[0], stop_requested=stopped, interrupted=asked)
    used = together_used([one.use for one in outcomes])
    return head, replace(outcome, use=used, carriage=_carried([one.carriage for one in outcomes]))


def _with_files(outcome: Outcome, members: Sequence[Attempt]) -> Outcome:
    """A success with the files in the folder that all ranks share; a failure where the last one to end found
    that they cannot be kept."""
    last = _of(max(members, key=lambda one: (not one.dismissed, one.ended or 0.0, one.rank)))
    if last.cause is Cause.OUTPUT:
        return replace(last, state=AttemptState.FAILED, outputs=())
    outputs = max((_of(one).outputs for one in members), key=lambda made: sum(out.size_bytes for out in made))
    return replace(outcome, outputs=outputs, cause=None, message="", hint="")


def _carried(carriages: Sequence[Carriage | None]) -> Carriage | None:
    known = [one for one in carriages if one is not None]
    return sum(known[1:], known[0]) if known else None


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


def _of(member: Attempt) -> Outcome:
    return member.outcome or Outcome(state=AttemptState.LOST)


def _order(member: Attempt) -> tuple[bool, bool, bool, float, int]:
    """A lost rank goes before one that failed: others fail when it is cut off, are heard of first, and have
    it told to end, which it does not hear. The same holds for one that was killed. Then whichever ended first
    of those that ended by themselves."""
    outcome = _of(member)
    lost, killed = outcome.state is AttemptState.LOST, outcome.cause in (Cause.MEMORY, Cause.SIGNAL)
    return not lost, member.stop_requested, not killed, member.ended or 0.0, member.rank


def together_used(uses: Sequence[Use]) -> Use:
    """What several ranks used: CPU seconds and bytes added up, the longest time, the most memory of one."""
    return Use(
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
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def counted(values: Sequence[int | None]) -> int | None:
    """Bytes together; None where any are not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
