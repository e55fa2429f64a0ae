"""Transfers of a run's jobs to other sites and back, as rows of a table."""

from gridmill.domain.amounts import about, show_bytes, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.route import Carriage, Crossing
from gridmill.domain.views import JobView, RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """What travelled, the share that did not have to, how long it took, and how much that is in a second."""

    carried: str
    reused: str
    took: str
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedLine:
    """A job, with all its attempts and parts."""

    job: str
    there: Direction
    back: Direction


def carried_lines(view: RunView) -> tuple[CarriedLine, ...]:
    """Those of jobs that ran in another place."""
    found = ((job.job.job.name, carried_for(job)) for job in view.jobs)
    return tuple(
        CarriedLine(job=name, there=_direction(one.there), back=_direction(one.back))
        for name, one in found
        if one is not None
    )


def carried_for(job: JobView) -> Carriage | None:
    """Together; None where nothing ran in another place."""
    attempts = (*job.attempts, *(attempt for part in job.parts for attempt in part.attempts))
    known = [attempt.carriage for attempt in attempts if attempt.carriage is not None]
    return sum(known[1:], known[0]) if known else None


def in_fact(job: JobView) -> tuple[str, ...]:
    """Of a job that ran in another place, or could have: how long it took there, as a forecast says it."""
    carried, last = carried_for(job), job.attempts[-1] if job.attempts else None
    if last is None or last.use is None or not (carried or job.job.job.resources):
        return ()
    words = [about(last.use.wall_seconds)]
    if carried is not None:
        words.append(f"{about(carried.there.seconds + carried.back.seconds)} transfer")
    waited = 0.0 if job.job.ready is None else job.attempts[0].placed - job.job.ready
    if waited >= 1:
        words.append(f"{about(waited)} wait")
    return (f"in fact {' + '.join(words)}, on {last.pod_id}",)


def _direction(crossing: Crossing) -> Direction:
    rate, share = crossing.bytes_per_second, crossing.reused_share
    return Direction(
        carried=show_bytes(crossing.carried_bytes),
        reused=f"{share:.0%}" if share else "",
        took=show_seconds(crossing.seconds) if crossing.carried_bytes else "",
        rate=f"{show_bytes(rate)}/s" if rate else "",
    )
