"""This module has the tick that moves a waiting job with several possible resources to another resource if
the job would end sooner there."""

from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Catalog, Control, Problems, SiteChoices, SiteStates
from gridmill.control.steps.resource_choice import _may_move, joining_now, move
from gridmill.domain.run import JobRun
from gridmill.domain.states import FINISHED_JOBS
from gridmill.scheduler.alternatives import CachedForecasts
from gridmill.scheduler.queue import rank_of

LOOK_AGAIN_SECONDS = 10.0
"""The time after which a waiting job checks again whether another resource would finish it sooner."""
LOOKS_PER_TICK = 50
PAUSE_SECONDS = 0.5
"""The seconds between two ticks in which some of the jobs check their resources. All other jobs check their
resources in later ticks, so that each tick stays short."""


def reconsider_sites(control: Control) -> float:
    """Move waiting jobs with several possible resources to the resource that finishes them sooner, if the
    gain is large enough. Each tick checks some of these jobs, beginning with the jobs at the end of the
    queue, because they gain the most. The function returns the seconds until the next check."""
    if not control.choices.choosing:
        return float("inf")
    now = control.clock.monotonic()
    if now < control.choices.next_at:
        return control.choices.next_at - now
    if not control.choices.to_recheck:
        control.choices.to_recheck = _waiting(control.ledger, control.choices)
    joining, transaction = (
        joining_now(control.ledger, control.site_states, control.timeline),
        control.ledger.begin(control.timeline.now()),
    )
    for _ in range(min(LOOKS_PER_TICK, len(control.choices.to_recheck))):
        _look_at(
            control.catalog,
            control.problems,
            control.choices,
            control.site_states,
            joining,
            transaction,
            control.choices.to_recheck.pop(),
        )
    control.ledger.stage(transaction)
    pause = PAUSE_SECONDS if control.choices.to_recheck else LOOK_AGAIN_SECONDS
    control.choices.next_at = now + pause
    return pause


def _waiting(ledger: Ledger, choices: SiteChoices) -> list[str]:
    """Return the ids of the jobs that may move, in the order of the queue. Jobs that have ended are removed
    from `choices`."""
    snapshot = ledger.snapshot
    job_runs = {key: one for key in choices.choosing if (one := snapshot.job_runs.get(key)) is not None}
    choices.choosing = {key for key, one in job_runs.items() if one.state not in FINISHED_JOBS}
    waiting = [one for one in job_runs.values() if _may_move(one) and one.run_id in snapshot.runs]
    return [one.id for one in sorted(waiting, key=lambda one: rank_of(one, snapshot.runs[one.run_id]))]


def _look_at(
    catalog: Catalog,
    problems: Problems,
    choices: SiteChoices,
    sites_seen: SiteStates,
    joining: CachedForecasts,
    transaction: Transaction,
    job_run_id: str,
) -> None:
    job_run = transaction.get(JobRun, job_run_id)
    if job_run is not None and _may_move(job_run):
        move(catalog, problems, choices, sites_seen, joining, transaction, job_run)
