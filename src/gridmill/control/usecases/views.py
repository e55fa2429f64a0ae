"""This module builds views for readers: live records from memory, finished records from the store.

The module also selects the data that a report needs besides the run: the events that it shows, and the run
before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gridmill.control.catalog import Catalog
from gridmill.control.ledger import Ledger
from gridmill.control.state import BringUps, Control, Problems, ReportedProgress, Timeline
from gridmill.control.steps.problems import DISK, problem_of_site, why_excluded
from gridmill.control.steps.references import fetch_artifact, metrics_of
from gridmill.domain.amounts import KIB
from gridmill.domain.artifact import Artifact
from gridmill.domain.deployment import Deployment
from gridmill.domain.environment_build import ENVIRONMENT
from gridmill.domain.frozen import replace
from gridmill.domain.gang import member_id
from gridmill.domain.job_log import LogLine, last_lines, lines_of
from gridmill.domain.pod_protocol import Event, EventType, sequence_of
from gridmill.domain.promotion import PROMOTION_EVENT
from gridmill.domain.run import Attempt, JobRun, Run, attempt_id_of
from gridmill.domain.run_failures import at_fault, failed_jobs
from gridmill.domain.site import PAID
from gridmill.domain.states import DONE_JOBS, LIVE_ATTEMPTS, URGENCY, JobState, RunState
from gridmill.domain.views import JobView, PartView, RunView
from gridmill.ports.logs import LogQuery, LogStore
from gridmill.ports.site import SitePort, TransferSite
from gridmill.ports.store import Store
from gridmill.scheduler.explain import why_waiting
from gridmill.scheduler.rental_words import why_renting
from gridmill.scheduler.wait_estimate import WaitForecasts

ADDED = "rows_added"
"""The metric of a sink that belongs to the run and not to the version."""
WHYS_PER_VIEW = 100
"""The number of waiting jobs for which reasons are computed, because nobody would read thousands of
reasons."""
SHOWN_ATTEMPTS, SHOWN_RANKS, SHOWN_PARTS = 20, 200, 200
"""The largest numbers of attempts, ranks of gangs and parts in the view of a job."""
Attempts = Mapping[str, Sequence[Attempt]]


def attempts_of(store: Store, run_id: str) -> Attempts:
    """Return the attempts of each JobRun of a run, oldest first, with all ranks of each gang. The caller
    needs no lock."""
    by_job: dict[str, list[Attempt]] = {}
    for record in store.list(Attempt, parent=run_id):
        if isinstance(record.noun, Attempt):
            by_job.setdefault(record.noun.job_run_id, []).append(record.noun)
    return by_job


def attempts_of_jobs(ledger: Ledger, job_runs: Iterable[JobRun]) -> Attempts:
    """Return the last attempts of some jobs. Live attempts are in memory. All other attempts are read from
    the store by their ids."""
    return {job.id: tuple(_last_attempts(ledger, job)) for job in job_runs}


def _last_attempts(ledger: Ledger, job_run: JobRun) -> Iterator[Attempt]:
    for number in range(max(0, job_run.attempts - SHOWN_ATTEMPTS) + 1, job_run.attempts + 1):
        name = attempt_id_of(job_run.id, number)
        first = _attempt(ledger, name)
        if first is not None:
            yield first
            others = (_attempt(ledger, member_id(name, rank)) for rank in range(1, first.ranks))
            yield from filter(None, others)


def _attempt(ledger: Ledger, name: str) -> Attempt | None:
    return ledger.snapshot.attempts.get(name) or ledger.read(Attempt, name)


def job_views(
    control: Control, whole: Sequence[JobRun], parts: Mapping[str, Sequence[JobRun]], attempts: Attempts
) -> tuple[JobView, ...]:
    """Return the views of some jobs, with their parts. The caller holds the node's lock."""
    whys = _whys(
        control.ledger,
        control.problems,
        control.bring_ups,
        control.timeline,
        islice(filter(_waits, whole), WHYS_PER_VIEW),
    )
    return tuple(
        _shortened(
            _with_parts(
                control.ledger,
                control.reported,
                control.timeline,
                _job_view(
                    control.catalog,
                    control.problems,
                    control.reported,
                    control.sites,
                    job,
                    attempts.get(job.id, ()),
                    whys.get(job.id, ""),
                ),
                parts.get(job.id, ()),
                attempts,
            )
        )
        for job in whole
    )


def _shortened(view: JobView) -> JobView:
    """Return the view of a job, with a limited number of attempts and parts."""
    if max(len(view.attempts), len(view.ranks), len(view.parts)) <= SHOWN_ATTEMPTS:
        return view
    parts = sorted(view.parts, key=lambda part: URGENCY.index(part.job.state))[:SHOWN_PARTS]
    return replace(
        view,
        attempts=view.attempts[-SHOWN_ATTEMPTS:],
        ranks=view.ranks[-SHOWN_RANKS:],
        parts=tuple(sorted(parts, key=lambda part: part.job.part.number if part.job.part else 0)),
    )


def _whys(
    ledger: Ledger, problems: Problems, bring_ups: BringUps, timeline: Timeline, job_runs: Iterable[JobRun]
) -> Mapping[str, str]:
    """Return the reason why each job waits, as far as the control node knows it."""
    snapshot, now = ledger.snapshot, timeline.now()
    waits = WaitForecasts(snapshot, now)

    def told(job_run: JobRun) -> Iterable[str]:
        if job_run.state is JobState.WAITING:
            yield problems.lasting.get(DISK, "")
        yield why_waiting(snapshot, job_run.id, now, waits)
        yield why_excluded(bring_ups, timeline, job_run)
        if job_run.state is JobState.WAITING and snapshot.leases:
            yield why_renting(snapshot.leases.values(), job_run.resource, now)
        if job_run.state is JobState.WAITING:
            resource = snapshot.resource_of(job_run.resource, job_run.job.kind)
            yield problem_of_site(problems, resource.site) if resource is not None else ""
            yield _used_budget(ledger, problems, job_run)

    return {job_run.id: "; ".join(filter(None, told(job_run))) for job_run in job_runs}


def _used_budget(ledger: Ledger, problems: Problems, job_run: JobRun) -> str:
    """Return the name of the budget that is used up, so that the job waits, or an empty text."""
    resource = ledger.snapshot.resource_of(job_run.resource, job_run.job.kind)
    site = None if resource is None else ledger.snapshot.sites.get(resource.site)
    if site is None or site.kind not in PAID:
        return ""
    owners = (f"project {job_run.project}", f"resource {job_run.resource}")
    return next(filter(None, (problems.lasting.get(f"budget of {one}") for one in owners)), "")


def _with_parts(
    ledger: Ledger,
    reported: ReportedProgress,
    timeline: Timeline,
    view: JobView,
    parts: Sequence[JobRun],
    attempts: Attempts,
) -> JobView:
    """Return the view of a job with its parts. While the parts are running, their combined progress is the
    progress of the job."""
    if not parts:
        return view
    views = tuple(_part_view(ledger, reported, timeline, part, attempts.get(part.id, ())) for part in parts)
    gathering = view.job.attempt_id is not None
    return replace(view, parts=views, progress=view.progress if gathering else _together(views))


def _part_view(
    ledger: Ledger, reported: ReportedProgress, timeline: Timeline, part: JobRun, attempts: Sequence[Attempt]
) -> PartView:
    snapshot, node = ledger.snapshot, part.part.node if part.part else ""
    last = attempts[-1] if attempts else None
    return PartView(
        job=part,
        node=node or (_node_of(ledger, last) if last else ""),
        exit_code=last.exit_code if last else None,
        seconds=last.ended - last.placed if last and last.ended is not None else None,
        attempts=tuple(attempts),
        why=why_waiting(snapshot, part.id, timeline.now()) if part.id in snapshot.job_runs else "",
        progress=reported.progress.get(part.id, {}),
    )


def _node_of(ledger: Ledger, attempt: Attempt) -> str:
    deployment: object = ledger.snapshot.deployments.get(attempt.deployment_id)
    if deployment is None:
        record = ledger.store.get(Deployment, attempt.deployment_id)
        deployment = record.noun if record is not None else None
    pods = deployment.pods if isinstance(deployment, Deployment) else ()
    return next((pod.node for pod in pods if pod.id == attempt.pod_id), "")


def _together(parts: Sequence[PartView]) -> Mapping[str, Any]:
    done = sum(part.job.state in DONE_JOBS for part in parts)
    reports = [part.progress for part in parts if part.progress]
    note = f"{done} of {len(parts)} parts"
    if len(reports) + done < len(parts) or not all(one.get("total") for one in reports):
        return {"done": done, "total": len(parts), "unit": "parts", "note": note}
    share = (done + sum(one["done"] / one["total"] for one in reports)) / len(parts)
    return {"done": round(100 * share), "total": 100, "unit": "%", "note": note}


def is_behind(job_run: JobRun, attempts: Sequence[Attempt]) -> bool:
    """Return whether the attempts are out of date, because they were read before a commit that changed the
    job."""
    return sum(one.rank == 0 for one in attempts) < job_run.attempts or any(
        attempt.state in LIVE_ATTEMPTS and job_run.state != JobState.RUNNING for attempt in attempts
    )


def _waits(job_run: JobRun) -> bool:
    return job_run.state in (JobState.BLOCKED, JobState.WAITING)


def _transfer_progress(
    ledger: Ledger, sites: Mapping[str, SitePort], attempts: Sequence[Attempt]
) -> Mapping[str, Any]:
    """Return the progress of the data transfers of an attempt to or from its site."""
    last = attempts[-1] if attempts else None
    site = sites.get(_site_of(ledger, last)) if last is not None else None
    return site.transfer_progress(last.id) if last is not None and isinstance(site, TransferSite) else {}


def _held_up(ledger: Ledger, problems: Problems, attempts: Sequence[Attempt]) -> str:
    """Return the reason why an attempt does not continue: its site does not answer, or its data cannot be
    transferred. The result is empty if there is no such reason."""
    last = attempts[-1] if attempts else None
    site = _site_of(ledger, last) if last is not None else ""
    if last is None or not site:
        return ""
    return problem_of_site(problems, site) or problems.lasting.get(f"data at {site} {last.id}", "")


def _site_of(ledger: Ledger, attempt: Attempt) -> str:
    """Return the site of a live attempt. The result is empty for an attempt that has ended."""
    deployment = ledger.snapshot.deployments.get(attempt.deployment_id)
    return deployment.site if deployment is not None and attempt.state in LIVE_ATTEMPTS else ""


def _standing_metrics(catalog: Catalog, versions: Sequence[Artifact]) -> Mapping[str, float]:
    """Return the metrics of the versions that an unchanged job keeps. For a sink, the number of added rows
    is 0."""
    metrics = {name: value for version in versions for name, value in metrics_of(catalog, version).items()}
    return metrics | ({ADDED: 0.0} if ADDED in metrics else {})


def _job_view(
    catalog: Catalog,
    problems: Problems,
    reported: ReportedProgress,
    sites: Mapping[str, SitePort],
    job_run: JobRun,
    attempts: Sequence[Attempt],
    why: str,
) -> JobView:
    whole = tuple(attempt for attempt in attempts if attempt.rank == 0)
    final = dict(whole[-1].metrics) if whole and not _waits(job_run) else {}
    artifacts = tuple(fetch_artifact(catalog, name) for name in job_run.artifacts)
    if job_run.state == JobState.UNCHANGED:
        final = dict(_standing_metrics(catalog, artifacts))
    return JobView(
        job=job_run,
        attempts=whole,
        ranks=tuple(attempt for attempt in attempts if attempt.rank > 0),
        artifacts=artifacts,
        why=why or _held_up(catalog.ledger, problems, whole),
        progress=_transfer_progress(catalog.ledger, sites, whole) or reported.progress.get(job_run.id, {}),
        metrics=final or reported.metrics.get(job_run.id, {}),
    )


PAGE = 10_000
MOST_METRICS = 200_000
LOGS_SHOWN = 5
"""The number of failed jobs whose logs a report shows."""
Read = Callable[[int, int], Sequence[Event]]
"""A function that reads the run's events after a sequence number, up to a given count."""


def events_to_show(read: Read) -> tuple[Event, ...]:
    """Return the events of a run that a report shows: its metrics by step, the builds of environments, and
    the comparisons of aliases.
    All events of the run are read page by page."""
    kept: list[Event] = []
    for event in _all(read):
        if event.type == EventType.METRIC and event.body.get("step") is not None:
            if len(kept) < MOST_METRICS:
                kept.append(event)
        elif event.type in (ENVIRONMENT, PROMOTION_EVENT):
            kept.append(event)
    return tuple(kept)


LOG_LINES = 20
"""The number of last lines of the log of a failed job that a report shows."""
LONGEST_LINE = 2000
_LOG_END_BYTES = 256 * KIB
"""The size in bytes of the text that is searched for the last lines, which is limited because a single line
may have a gigabyte."""


def log_ends(view: RunView, logs: LogStore) -> Mapping[str, tuple[LogLine, ...]]:
    """Return the last lines of the logs of failed jobs: of the attempt that shows the reason, and for a gang
    of all its ranks."""
    ends: dict[str, tuple[LogLine, ...]] = {}
    for job in failed_jobs(view)[:LOGS_SHOWN]:
        if (attempt := at_fault(job)) is not None:
            query = LogQuery(run_id=view.run.id, attempt=attempt.id)
            entries = logs.tail(query, LOG_LINES, most_bytes=_LOG_END_BYTES)
            ends[attempt.id] = tuple(last_lines(lines_of(entries, longest=LONGEST_LINE), LOG_LINES))
    return ends


def _all(read: Read) -> Iterator[Event]:
    after = 0
    while page := read(after, PAGE):
        yield from page
        after = sequence_of(page[-1].id)


def run_before(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the last successful run of the pipeline before this run. Probes are not considered."""
    earlier = [
        one
        for one in runs
        if one.order < run.order
        and one.state == RunState.SUCCEEDED
        and not one.probe
        and one.pipeline == run.pipeline
    ]
    return max(earlier, key=lambda one: one.order, default=None)
