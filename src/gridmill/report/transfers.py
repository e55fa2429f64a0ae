"""The transfers of the jobs of a run to and from other sites, as rows of a table."""

from gridmill.domain.amounts import about, show_bytes, show_seconds
from gridmill.domain.frozen import dataclass
from gridmill.domain.route import AttemptTransfers, Transfer
from gridmill.domain.views import JobView, RunView


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferDirection:
    """The transfers in one direction: the transferred bytes, the fraction that was already present, the
    time, and the rate."""

    carried: str
    reused: str
    took: str
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLine:
    """The transfers of a job, with all its attempts and parts."""

    job: str
    there: TransferDirection
    back: TransferDirection


def transfer_lines(view: RunView) -> tuple[TransferLine, ...]:
    """Return the transfers of the jobs that ran at another site."""
    pairs = ((job.job.job.name, transfers_of(job)) for job in view.jobs)
    return tuple(
        TransferLine(job=name, there=_direction(one.upload), back=_direction(one.download))
        for name, one in pairs
        if one is not None
    )


def transfers_of(job: JobView) -> AttemptTransfers | None:
    """Return the sum of the transfers of a job. Return None if the job ran only at this site."""
    attempts = (*job.attempts, *(attempt for part in job.parts for attempt in part.attempts))
    transfers = [attempt.transfers for attempt in attempts if attempt.transfers is not None]
    return sum(transfers[1:], transfers[0]) if transfers else None


def in_fact(job: JobView) -> tuple[str, ...]:
    """Return the measured time of a job in the form of a forecast, if the job ran at another site or could
    have run there."""
    carried, last = transfers_of(job), job.attempts[-1] if job.attempts else None
    if last is None or last.use is None or not (carried or job.job.job.resources):
        return ()
    words = [about(last.use.wall_seconds)]
    if carried is not None:
        words.append(f"{about(carried.upload.seconds + carried.download.seconds)} transfer")
    waited = 0.0 if job.job.ready is None else job.attempts[0].placed - job.job.ready
    if waited >= 1:
        words.append(f"{about(waited)} wait")
    return (f"actual: {' + '.join(words)}, on {last.pod_id}",)


def _direction(crossing: Transfer) -> TransferDirection:
    rate, share = crossing.bytes_per_second, crossing.reused_share
    return TransferDirection(
        carried=show_bytes(crossing.transferred_bytes),
        reused=f"{share:.0%}" if share else "",
        took=show_seconds(crossing.seconds) if crossing.transferred_bytes else "",
        rate=f"{show_bytes(rate)}/s" if rate else "",
    )
