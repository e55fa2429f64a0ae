"""This module has the use cases of runs: plan, start, show, stop, resume and follow runs."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from gridmill.codec import encode
from gridmill.control.node import ControlNode
from gridmill.control.steps.expected_sizes import expected_sizes
from gridmill.control.steps.pipeline_folders import conflict_of
from gridmill.control.steps.planned_transfers import Lacking, transfer_input
from gridmill.control.steps.result_names import check_names_exist
from gridmill.control.steps.reuse_forecast import ReuseDecision, decide_reuse, find_broken
from gridmill.control.steps.run_forecast import rental_forecasts
from gridmill.control.steps.run_lifecycle import (
    all_resources_used,
    as_altered,
    begin_run,
    changes_of,
    check_project,
    chosen,
    resources_used,
    resume_run,
    stop_run,
)
from gridmill.control.steps.secrets import check_secrets_exist
from gridmill.control.steps.service_jobs import check_service_jobs, service_job_problem
from gridmill.control.steps.source_listing import NOTHING, SourceListing, list_sources
from gridmill.control.usecases.advice import advice_with
from gridmill.control.usecases.preview import (
    check_columns,
    missing_at_sites,
    predecessors,
    versions_read,
    with_columns_checked,
    with_preflight,
)
from gridmill.control.usecases.rental_preview import (
    NOTHING_RENTED,
    RentalFacts,
    cloud_sites,
    read_markets,
    used_budgets_of,
    with_rentals,
)
from gridmill.control.usecases.run_views import RunViews
from gridmill.control.usecases.sinks import AlterationUseCases
from gridmill.domain.due_times import check_times
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.graph import order
from gridmill.domain.job import Job
from gridmill.domain.job_log import LogEntry, offset_of
from gridmill.domain.lease import Lease
from gridmill.domain.pipeline import Pipeline, with_lines
from gridmill.domain.pod_protocol import Event, sequence_of
from gridmill.domain.preflight import PreflightFinding, show_finding, written_late
from gridmill.domain.resource import Resource
from gridmill.domain.run import JobRun, Run
from gridmill.domain.service_log import with_log_files
from gridmill.domain.sink_overrides import altered_pipeline
from gridmill.domain.site import SiteKind
from gridmill.domain.states import JobState, RunState
from gridmill.domain.views import DryRun, JobView, PlannedJob, RunView
from gridmill.errors import GridmillError, InputError, NotFoundError, PipelineError, explained
from gridmill.ports.logs import LogQuery
from gridmill.ports.pages import PAGE_BYTES, PAGE_ITEMS, Page, cut_page, page_request
from gridmill.ports.site import QueueSite
from gridmill.ports.store import Order
from gridmill.scheduler.bottleneck import has_workers, may_be_cut
from gridmill.scheduler.dry_run import dry_run

MOST_TAIL_LINES = 1_000_000
_FIRST_EVENTS = 250
"""The number of events in the first read. A further read has as many events as may fit, and at most four
times as many as the read before."""


_VIEWS_AT_ONCE = 50
_NAMED_JOBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foreseen:
    """The predicted run, the first resource of each job, the files of its sources, the versions that would be
    used again, and the jobs that would not run again."""

    made: DryRun
    used: Mapping[str, Resource]
    listings: Mapping[str, SourceListing]
    reuse: Mapping[str, ReuseDecision]
    unchanged: frozenset[str]


class RunUseCases(AlterationUseCases):
    """The use cases of runs and their jobs."""

    def __init__(self, node: ControlNode) -> None:
        super().__init__(node)
        self._run_views = RunViews(node)
        self._reading_events = threading.Lock()

    def start_run(
        self, pipeline: Pipeline, *, force: bool = False, only: tuple[str, ...] = (), adopt: bool = False
    ) -> RunView:
        """Start a run, and return immediately."""
        declared = pipeline
        if changes := changes_of(self._ledger, pipeline):
            pipeline = altered_pipeline(pipeline, changes)
        if only:
            pipeline = chosen(pipeline, only)
        if not pipeline.jobs:
            raise PipelineError(f"pipeline {pipeline.name!r} has no jobs", place=pipeline.name)
        planned: tuple[PlannedJob, ...] = ()
        if any(job.deadline_seconds or job.budget_micros is not None for job in pipeline.jobs):
            pipeline, planned = self._within_terms(pipeline)
        elif self._may_rent(pipeline):
            planned = self._expected_jobs(pipeline)
        with with_lines(pipeline.lines, pipeline.name), self._node.changing() as transaction:
            check_names_exist(self._control.catalog, pipeline.jobs)
            check_columns(self._control.catalog, pipeline)
            check_secrets_exist(self._ledger, pipeline.jobs)
            check_service_jobs(self._control.catalog, pipeline)
            run = begin_run(
                self._control.run_creation,
                transaction,
                pipeline,
                force=force,
                only=only,
                adopt=adopt,
                forecasts=rental_forecasts(planned, self._clouds()),
            )
            stored_pipeline, ran = (
                self._ledger.look_up(Pipeline, declared.name),
                replace(declared, applied=False),
            )
            # a pipeline that was applied must stay marked as applied
            if stored_pipeline is None or (not stored_pipeline.applied and stored_pipeline != ran):
                transaction.put(ran)
        return self._run_views.view(run.id, fresh=True)

    def plan_run(self, pipeline: Pipeline) -> DryRun:
        """Predict what a run would do."""
        with with_lines(pipeline.lines, pipeline.name):
            return self._plan_run(with_log_files(pipeline, self._control.storage.location))

    def _clouds(self) -> frozenset[str]:
        sites = self._ledger.snapshot.sites.values()
        return frozenset(one.name for one in sites if one.kind is SiteKind.CLOUD)

    def _may_rent(self, pipeline: Pipeline) -> bool:
        """Return whether a job of the pipeline may run at a cloud site."""
        with self._node.lock:
            clouds = self._clouds()
            if not clouds:
                return False
            try:
                resources = all_resources_used(self._ledger, pipeline, self._resources(pipeline))
            except GridmillError:
                return False  # the run will be refused with this error
            return any(one.site in clouds for some in resources.values() for one in some)

    def _expected_jobs(self, pipeline: Pipeline) -> tuple[PlannedJob, ...]:
        """Return the jobs of a run that is about to start, with the machines that are expected to be rented.
        If the run is going to be refused, there are none."""
        try:
            return self._foreseen(pipeline).made.jobs
        except GridmillError:
            return ()

    def _plan_run(self, pipeline: Pipeline) -> DryRun:
        pipeline = as_altered(self._ledger, pipeline)
        seen = self._foreseen(pipeline)
        made, used = seen.made, seen.used
        with self._node.lock:
            resources = self._resources(pipeline)
            going = {one.job: resources.get(one.resource, used[one.job]) for one in made.jobs}
            advice = {job.name: self._advice(job, pipeline.name, going[job.name]) for job in pipeline.jobs}
            conflict = conflict_of(self._ledger, self._control.storage, pipeline)
            checked = [
                with_columns_checked(self._control.catalog, pipeline, one, seen.unchanged)
                for one in made.jobs
            ]
            checked = [self._with_request(one, going[one.job]) for one in checked]
        problems = {**self._service_problems(pipeline), **self._unlisted(pipeline, seen.listings)}
        told = (
            replace(
                job,
                problem=job.problem or problems.get(job.job, "") or seen.reuse[job.job].problem,
                reason=seen.reuse[job.job].reason,
                advice=advice[job.job],
                waiting=seen.listings.get(job.job, NOTHING).waiting,
            )
            for job in checked
        )
        made = replace(made, jobs=tuple(told), conflict=conflict)
        return with_preflight(self._control.catalog, self._control.storage, pipeline, made, self._node.lock)

    def _foreseen(self, pipeline: Pipeline) -> _Foreseen:
        """Predict the sizes, times, places and costs of the jobs, without a check of their data."""
        check_times(pipeline)
        with self._node.lock:
            check_secrets_exist(self._ledger, pipeline.jobs)
        listings = list_sources(
            self._control.storage, pipeline.jobs, pipeline.folder, self._control.clock.now()
        )
        lacking = self._missing_at_farms(pipeline)
        renting = self._rental_facts(pipeline)
        broken = find_broken(
            self._control.catalog,
            self._control.storage,
            self._control.code,
            self._control.timeline,
            pipeline,
            listings,
            self._node.lock,
        )
        with self._node.lock:
            snapshot, resources = self._ledger.snapshot, self._resources(pipeline)
            used = resources_used(self._ledger, pipeline, resources)
            jobs = tuple(
                job if used[job.name].default or job.resources else replace(job, resource=used[job.name].name)
                for job in pipeline.jobs
            )
            reuse = decide_reuse(
                self._control.catalog, self._control.code, self._control.timeline, pipeline, listings, broken
            )
            unchanged = frozenset(name for name, one in reuse.items() if one.version is not None)
            sizes = expected_sizes(self._control.catalog, pipeline, listings, unchanged)
            carrying = transfer_input(
                self._control.catalog, self._control.site_states, pipeline, unchanged, lacking
            )
            now = self._control.timeline.now()
            rent = partial(_with_rentals, pipeline, resources, renting)
            made = dry_run(replace(pipeline, jobs=jobs), snapshot, sizes, unchanged, carrying, now, rent)
        return _Foreseen(made=made, used=used, listings=listings, reuse=reuse, unchanged=unchanged)

    def _rental_facts(self, pipeline: Pipeline) -> RentalFacts:
        """Return what cloud sites offer for the jobs of a pipeline. The providers are asked without the
        node's lock."""
        with self._node.lock:
            resources = all_resources_used(self._ledger, pipeline, self._resources(pipeline))
            sites = dict(self._ledger.snapshot.sites)
            project = self._ledger.snapshot.projects.get(pipeline.project)
            used = cloud_sites(sites, {one.name: one for some in resources.values() for one in some}.values())
            ports = dict(self._control.sites)
        if not used:
            return NOTHING_RENTED
        markets = read_markets(sites, used, ports, self._control.open_site)
        leases = tuple(self._list(Lease))
        rented = [one for some in used.values() for one in some]
        budgets = used_budgets_of(rented, project, sites, leases, self._control.now())
        return RentalFacts(sites=sites, markets=markets, leases=leases, used_budgets=budgets)

    def _within_terms(self, pipeline: Pipeline) -> tuple[Pipeline, tuple[PlannedJob, ...]]:
        """Return the pipeline in which each job with a deadline or a budget names first the resource that is
        expected to meet it at the lowest cost, and the expected jobs. The choice is made again when the job
        is ready. Raises PipelineError if a job is expected to cost more than its budget, before anything is
        rented."""
        with with_lines(pipeline.lines, pipeline.name):
            jobs = self._foreseen(pipeline).made.jobs
        planned = {one.job: one for one in jobs}
        for job in pipeline.jobs:
            one = planned.get(job.name)
            if one is not None and job.budget_micros is not None and one.problem and not one.unchanged:
                raise PipelineError(one.problem, place=f"{pipeline.name}: jobs.{job.name}")
        chosen_first = replace(
            pipeline,
            jobs=tuple(
                _named_first(job, planned[job.name].resource)
                if job.deadline_seconds or job.budget_micros is not None
                else job
                for job in pipeline.jobs
            ),
        )
        return chosen_first, jobs

    def _unlisted(self, pipeline: Pipeline, listings: Mapping[str, SourceListing]) -> Mapping[str, str]:
        """Return the errors with which sources cannot be listed, by job. Sources whose files may first be
        written by a command of the run are left out."""
        late, result = written_late(pipeline), {}
        for name, one in listings.items():
            if one.error is not None and name not in late:
                finding = PreflightFinding(
                    job=name, path="sink.source", message=str(one.error), hint=one.error.hint
                )
                result[name] = show_finding(pipeline, finding)
        return result

    def _service_problems(self, pipeline: Pipeline) -> Mapping[str, str]:
        """Return why jobs cannot start or update their services, with the line, by job."""
        result: dict[str, str] = {}
        with self._node.lock:
            for job in pipeline.jobs:
                problem = service_job_problem(self._control.catalog, pipeline.name, job)
                if problem is not None:
                    lines = pipeline.lines
                    place = lines.place(problem.place) if lines is not None else problem.place
                    result[job.name] = explained(InputError(problem.message, hint=problem.hint, place=place))
        return result

    def _missing_at_farms(self, pipeline: Pipeline) -> Lacking:
        """Return the missing bytes that farms report for the jobs that may use these farms. The farms are
        queried without the node's lock."""
        with self._node.lock:
            order(pipeline)
            check_project(self._ledger, pipeline)
            resources = all_resources_used(self._ledger, pipeline, self._resources(pipeline))
            versions = versions_read(self._control.catalog, pipeline, resources)
            sites = self._control.sites.items()
            ports = {name: port for name, port in sites if name not in self._control.site_states.unreachable}
            before = predecessors(self._control.catalog, versions)
        return missing_at_sites(ports, versions, before)

    def _resources(self, pipeline: Pipeline) -> dict[str, Resource]:
        resources = self._ledger.snapshot.resources.values()
        return {one.name: one for one in (*resources, *pipeline.resources)}

    def _with_request(self, planned: PlannedJob, resource: Resource) -> PlannedJob:
        """Return the planned job with the request that its site would get. The request is known only for
        sites with a queue, and has the syntax of the site. The caller holds the node's lock."""
        port = self._control.sites.get(planned.site)
        if planned.asked is None or not isinstance(port, QueueSite):
            return planned
        expected = planned.asked
        return replace(planned, request=port.request(expected.amounts, expected.workers, resource.settings))

    def _advice(self, job: Job, pipeline: str, resource: Resource) -> str:
        """Return the advice on a job in one line. The result is empty if there is no advice. The caller
        holds the node's lock."""
        if not (has_workers(job) or may_be_cut(job)):
            return ""
        advice = advice_with(self._ledger, job, pipeline, resource)
        return advice.summary if advice else ""

    def runs(
        self,
        *,
        pipeline: str | None = None,
        states: tuple[RunState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Return runs, newest first."""
        request = page_request(int, "runs", limit, cursor, pipeline, states)
        return self._page_by_position(
            Run,
            request,
            Order.NEWEST_FIRST,
            parent=pipeline,
            selects=lambda run: not states or run.state in states,
        )

    def jobs(
        self,
        run_id: str,
        *,
        states: tuple[JobState, ...] = (),
        limit: int = PAGE_ITEMS,
        cursor: str | None = None,
    ) -> Page[JobView]:
        """Return the jobs of a run, each with its parts."""
        request = page_request(int, "jobs", limit, cursor, run_id, states)
        self._check_run(run_id)
        found = self._following(JobRun, Order.OLDEST_FIRST, request.after, run_id)
        chosen = (
            (mark, job)
            for mark, job in found
            if isinstance(mark, int) and job.part is None and (not states or job.state in states)
        )
        return cut_page(request, self._viewed(chosen))

    def _viewed(self, numbered: Iterator[tuple[int, JobRun]]) -> Iterator[tuple[int, JobView]]:
        """Return the views of jobs, made in groups."""
        while some := [*islice(numbered, _VIEWS_AT_ONCE)]:
            views = self._run_views.of_jobs([job for _, job in some])
            yield from zip((mark for mark, _ in some), views, strict=True)

    def job(self, run_id: str, name: str) -> JobView:
        """Return one job of a run."""
        return self._run_views.of_jobs([self._job_run(run_id, name)])[0]

    def _job_run(self, run_id: str, name: str) -> JobRun:
        record = self._ledger.store.get(JobRun, f"{run_id}/{name}")
        if record is None or not isinstance(record.noun, JobRun) or record.noun.part is not None:
            view = self.run(run_id)
            names = [one.job.job.name for one in view.jobs[:_NAMED_JOBS]]
            more = sum(view.states.values()) - len(names)
            hint = f"It has: {', '.join(names)}{f' and {more} more' if more else ''}."
            raise NotFoundError(f"run {run_id} has no job {name!r}", hint=hint)
        return record.noun

    def _check_run(self, run_id: str) -> None:
        if run_id not in self._ledger.snapshot.runs and self._ledger.store.get(Run, run_id) is None:
            raise NotFoundError(f"there is no run {run_id!r}", hint="`gridmill list runs` shows them.")

    def run(self, run_id: str, *, since: str = "") -> RunView:
        """Return a run with its jobs."""
        return self._run_views.view(run_id, since=since)

    def resume(self, run_id: str) -> RunView:
        """Continue a failed or stopped run."""
        with self._node.changing() as transaction:
            repeated = resume_run(
                self._control.catalog,
                self._control.storage,
                self._control.candidates,
                self._control.clients,
                transaction,
                run_id,
            )
            self._check_secrets(repeated)
        return self._run_views.view(run_id, fresh=True)

    def _check_secrets(self, job_runs: Sequence[JobRun]) -> None:
        """Check that the secrets of jobs exist. An error has the line of the file if the stored pipeline has
        the same declaration of the job."""
        for one in job_runs:
            stored = self._ledger.look_up(Pipeline, one.pipeline)
            lines = stored.lines if stored is not None and one.job in stored.jobs else None
            with with_lines(lines, one.pipeline):
                check_secrets_exist(self._ledger, (one.job,))

    def stop_run(self, run_id: str, *, job: str | None = None) -> RunView:
        """Ask a run, or one job of it, to stop."""
        self._check_run(run_id)
        if job is not None:
            self._job_run(run_id, job)
        with self._node.changing() as transaction:
            run = self._ledger.snapshot.runs.get(run_id)
            if run is not None:
                stop_run(
                    self._control.ledger,
                    self._control.channels,
                    self._control.candidates,
                    transaction,
                    run,
                    job,
                )
        return self._run_views.view(run_id, fresh=True)

    def events(
        self,
        run_id: str,
        *,
        job: str | None = None,
        after: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[Event, ...]:
        """Return the stored events after a given event. If there are no such events, the call waits for new
        events."""
        begin = sequence_of(after)
        self._check_run(run_id)
        if job is not None:
            self._job_run(run_id, job)
        else:
            self._keep_events(run_id)
        deadline = self._control.clock.monotonic() + wait_seconds
        while True:
            seen = self._node.commits
            result = self._events(run_id, job, begin, limit)
            left = deadline - self._control.clock.monotonic()
            if self._node.taken_over is not None:
                raise self._node.taken_over
            if result or left <= 0 or self._node.ending:
                return result
            self._node.wait_for_commit(seen, left)

    def logs(
        self,
        run_id: str,
        *,
        job: str | None = None,
        attempt: str | None = None,
        after: str = "",
        until: int | None = None,
        tail: int | None = None,
        search: str = "",
        limit: int = 1000,
        wait_seconds: float = 0,
    ) -> tuple[LogEntry, ...]:
        """Return the texts of the logs of a run. If there are no such texts, the call waits for new
        texts."""
        if "\n" in search:
            raise InputError(
                "the text to search for has a line break",
                place="search",
                hint="Search for the text of one line.",
            )
        if tail is not None and tail > MOST_TAIL_LINES:
            raise InputError(
                f"{tail} lines are too many to read from the end of a log",
                place="tail",
                hint=f"The maximum is {MOST_TAIL_LINES:,}. To read the lines after an offset, pass `after`.",
            )
        query = LogQuery(
            run_id=run_id, job=job, attempt=attempt, after=offset_of(after), until=until, search=search
        )
        deadline = self._control.clock.monotonic() + wait_seconds
        while True:
            seen = self._node.commits
            logs = self._ledger.logs
            result = tuple(logs.read(query) if tail is None or search else logs.tail(query, tail))
            left = deadline - self._control.clock.monotonic()
            if self._node.taken_over is not None:
                raise self._node.taken_over
            if result or left <= 0 or self._node.ending:
                return tuple(_first(result, limit)) or self._none_of(run_id)
            self._node.wait_for_commit(seen, left)

    def _none_of(self, run_id: str) -> tuple[LogEntry, ...]:
        """Return an empty result for an existing run. Raises NotFoundError."""
        self._check_run(run_id)
        return ()

    def _keep_events(self, run_id: str) -> None:
        """Hold the events of an active run in memory from now on, for the clients that follow the run."""
        if run_id in self._ledger.snapshot.runs and not self._ledger.doubtful:
            self._ledger.tails.follow(run_id, lambda: self._ledger.store.last_event(run_id))

    def ready(self, name: str, arguments: Mapping[str, Any]) -> bytes | None:
        """See ports.grid.ReadyAnswers."""
        run_id = arguments.get("run_id", "")
        if name == "run":
            return self._run_views.ready(run_id, arguments.get("since", ""))
        follows = name == "events" and arguments.get("job") is None
        if not follows or run_id not in self._ledger.snapshot.runs or self._node.taken_over is not None:
            return None
        after, limit = sequence_of(arguments.get("after", "")), arguments.get("limit", 1000)
        return self._ledger.tails.after(run_id, after, limit)

    def encoded(self, name: str, arguments: Mapping[str, Any]) -> bytes:
        """See ports.grid.ReadyAnswers."""
        if name == "run":
            return self._run_views.encoded(arguments["run_id"], arguments.get("since", ""))
        if name == "events" and arguments.get("job") is None:
            # one at a time: many followers begin with the same event, and the first answer is kept for them
            with self._reading_events:
                body = self.ready(name, arguments)
                return self._encoded_events(arguments) if body is None else body
        return encode(getattr(self, name)(**arguments))

    def _encoded_events(self, arguments: Mapping[str, Any]) -> bytes:
        events = self.events(**arguments)
        body = encode(events)
        run_id, limit = arguments["run_id"], arguments.get("limit", 1000)
        if len(events) == limit and run_id in self._ledger.snapshot.runs:
            self._ledger.tails.keep_page(run_id, sequence_of(arguments.get("after", "")), limit, body)
        return body

    def watch(self, watcher: Callable[[], None]) -> None:
        """See ports.grid.ReadyAnswers."""
        self._node.watchers.append(watcher)

    def _events(self, run_id: str, job: str | None, after: int, limit: int) -> tuple[Event, ...]:
        """Return the stored events after a given event: at most `limit` events, and at most as many bytes as
        a page of a list has."""
        found, left, wanted = list[Event](), PAGE_BYTES, _FIRST_EVENTS
        while True:
            wanted = min(wanted, limit - len(found))
            rows = self._ledger.store.events(run_id=run_id, job=job, after=after, limit=wanted)
            size = len(encode(rows))
            if size > left:
                return (*found, *_that_fit(rows, left, at_least=0 if found else 1))
            found, left = [*found, *rows], left - size
            if len(rows) < wanted or len(found) == limit:
                return tuple(found)
            after, wanted = sequence_of(rows[-1].id), min(4 * wanted, 1 + left * len(rows) // size)


def _first(entries: Sequence[LogEntry], limit: int) -> Iterator[LogEntry]:
    """Return the first entries up to the limit, and all further entries that end at the same position as the
    last of these entries."""
    for number, entry in enumerate(entries):
        if number >= limit and entry.id != entries[limit - 1].id:
            return
        yield entry


def _that_fit(events: Sequence[Event], size: int, *, at_least: int) -> Iterator[Event]:
    """Return as many of the first events as have a total size of at most `size` bytes, but at least
    `at_least` events."""
    for number, event in enumerate(events):
        size -= len(encode(event))
        if size < 0 and number >= at_least:
            return
        yield event


def _named_first(job: Job, resource: str) -> Job:
    """Return the job with this resource as the first one of its choice."""
    others = (name for name in job.resources if name != resource)
    return replace(job, resources=(resource, *others)) if job.resources else job


def _with_rentals(
    pipeline: Pipeline, resources: Mapping[str, Resource], facts: RentalFacts, planned: PlannedJob
) -> PlannedJob:
    return with_rentals(planned, pipeline.job(planned.job), resources, facts)
