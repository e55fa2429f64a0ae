"""How a gang ended, from how each of its ranks did."""

from collections.abc import Sequence
from dataclasses import replace

from gridmill.model.message import Outcome
from gridmill.model.resource import Use
from gridmill.model.run import Attempt
from gridmill.model.state import AttemptState


def together(members: Sequence[Attempt]) -> tuple[Attempt, Outcome]:
    """Rank 0's attempt as it stands for all, and the outcome. All ranks have ended, and are given by rank.

    What went wrong first decides; ranks that were told to end because of it do not. What is kept of a success
    is rank 0's; of the files in the folder that all share, what the last to end found.
    """
    deciding = _deciding(members)
    outcome = _of(members[0] if deciding is None else deciding)
    outcomes = [_of(member) for member in members]
    if deciding is None:
        outputs = max((one.outputs for one in outcomes), key=lambda made: sum(out.size_bytes for out in made))
        outcome = replace(outcome, outputs=outputs)
    elif len(members) > 1 and not deciding.stop_requested:
        outcome = replace(outcome, message=f"rank {deciding.rank} of {len(members)}: {outcome.message}")
    head = replace(members[0], stop_requested=deciding is not None and deciding.stop_requested)
    return head, replace(outcome, use=together_used([one.use for one in outcomes]))


def _of(member: Attempt) -> Outcome:
    return member.outcome or Outcome(state=AttemptState.LOST)


def _deciding(members: Sequence[Attempt]) -> Attempt | None:
    """The rank that ended the gang; None where all did what they should.

    Of those that ended by themselves a lost one goes before one that failed: the others fail when it is cut
    off, and may be heard of first. Then the one that ended first.
    """
    bad = [member for member in members if _of(member).state is not AttemptState.SUCCEEDED]
    return min(bad, key=_order, default=None)


def _order(member: Attempt) -> tuple[bool, bool, float, int]:
    lost = _of(member).state is AttemptState.LOST
    return member.stop_requested, not lost, member.ended or 0.0, member.rank


def together_used(uses: Sequence[Use]) -> Use:
    """What several ranks used: CPU seconds and bytes added up, the longest time, the most memory of one."""
    return Use(
        wall_seconds=max(use.wall_seconds for use in uses),
        cpu_seconds=sum(use.cpu_seconds for use in uses),
        peak_memory_bytes=max(use.peak_memory_bytes for use in uses),
        system_seconds=_added([use.system_seconds for use in uses]),
        disk_seconds=_added([use.disk_seconds for use in uses]),
        read_bytes=_counted([use.read_bytes for use in uses]),
        written_bytes=_counted([use.written_bytes for use in uses]),
    )


def _added(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _counted(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
