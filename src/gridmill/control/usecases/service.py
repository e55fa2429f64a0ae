"""This module has the service, which offers all use cases of the control node (ports/grid.py) in its
process."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from gridmill.control.node import ControlNode
from gridmill.control.steps.problems import problems
from gridmill.control.usecases.advice import AdviceUseCases
from gridmill.control.usecases.archives import ArchiveUseCases
from gridmill.control.usecases.backfills import BackfillUseCases
from gridmill.control.usecases.cloud_accounts import CloudAccountUseCases
from gridmill.control.usecases.disk import DiskUseCases
from gridmill.control.usecases.images import ImageUseCases
from gridmill.control.usecases.leases import LeaseUseCases
from gridmill.control.usecases.pipelines import PipelineUseCases
from gridmill.control.usecases.projects import ProjectUseCases
from gridmill.control.usecases.resources import ResourceUseCases
from gridmill.control.usecases.run_views import ViewLimit
from gridmill.control.usecases.runs import RunUseCases
from gridmill.control.usecases.secrets import SecretUseCases
from gridmill.control.usecases.service_jobs import ServiceJobUseCases
from gridmill.control.usecases.sites import SiteUseCases
from gridmill.control.usecases.views import events_to_show, log_ends, run_before
from gridmill.domain.advice import Advice
from gridmill.domain.amounts import show_count
from gridmill.domain.frozen import dataclass
from gridmill.domain.job_log import LogLine
from gridmill.domain.pod_protocol import Event
from gridmill.domain.run import Run
from gridmill.domain.service import Service as ServiceRecord
from gridmill.domain.service import ServiceView
from gridmill.domain.service_job import service_name
from gridmill.domain.views import ClientView, ControlView, RunView
from gridmill.errors import ConflictError, GridmillError, explained

_RUNS_NAMED = 10
_STOP_SECONDS = 60.0
"""The seconds that stopped runs may take to end; after these seconds the control node stops even if the runs
have not ended."""
_LEAVE_SECONDS = 5.0
_RETURN_SECONDS = 120.0
"""The seconds for which a control node that is stopped waits for the end of its rented machines. A machine
that exists longer ends itself."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The values that the control node reports about itself."""

    version: str
    home: str
    address: str
    embedded: bool


LogEnds = Mapping[str, tuple[LogLine, ...]]
Render = Callable[
    [
        RunView,
        tuple[Event, ...],
        tuple[Advice, ...],
        RunView | None,
        LogEnds,
        tuple[str, ...],
        tuple[ServiceView, ...],
    ],
    str,
]
"""A function that renders the report of a run from the view of the run, its events, the advice on its jobs,
the run before it, the last lines of the logs of failed attempts, sentences about rented machines, and the
services of the run."""
REPORTED_JOBS = ViewLimit(all_of=500, chosen=500)
"""The number of jobs that a report shows."""
EARLIER_RUNS = 1000
"""The number of the newest runs among which the previous run is searched for a report."""


class Service(
    ImageUseCases,
    RunUseCases,
    ResourceUseCases,
    SiteUseCases,
    LeaseUseCases,
    PipelineUseCases,
    BackfillUseCases,
    AdviceUseCases,
    DiskUseCases,
    ArchiveUseCases,
    ProjectUseCases,
    SecretUseCases,
    ServiceJobUseCases,
    CloudAccountUseCases,
):
    """The implementation of ports.grid.Grid in the control node. The class combines the use cases of each
    kind of record, and adds the remaining use cases."""

    def __init__(
        self,
        node: ControlNode,
        identity: Identity,
        *,
        render: Render,
        end: Callable[[], None],
    ) -> None:
        super().__init__(node)
        self._identity = identity
        self._render = render
        self._end = end
        self._started = node.control.timeline.now()
        self.clients: Callable[[], tuple[ClientView, ...]] = tuple

    def control(self) -> ControlView:
        """Return the description of the control node itself."""
        waiting, running = self._node.counts()
        return ControlView(
            version=self._identity.version,
            home=self._identity.home,
            root=self._control.storage.location,
            pid=os.getpid(),
            address=self._identity.address,
            embedded=self._identity.embedded,
            started=self._started,
            active_runs=len(self._node.active_runs()),
            waiting_jobs=waiting,
            running_jobs=running,
            deployments=len(self._ledger.snapshot.deployments),
            disks=self._control.home_folders.spaces(),
            evicted_bytes=self._control.disk.evicted_bytes,
            problems=problems(self._control.problems),
            clients=self.clients(),
        )

    def probe(self, name: str, *, workers: int, share: float = 0.1) -> RunView:
        """Start a run of only that job on a part of its data."""
        return self.run(self.start_probe(name, workers=workers, share=share))

    def check_store(self) -> None:
        """Read the whole store, to find damage that no use case has found yet."""
        self._node.check_store()

    def shutdown(self, *, all: bool = False) -> None:
        """Stop the control node. With `all`, the method first stops the active runs of the control node, with
        its services."""
        services = {one.run_id for one in self._ledger.snapshot.services.values()}
        active = tuple(run.id for run in self._node.active_runs())
        # services do not need the control node, and go on without it
        runs = tuple(run for run in active if all or run not in services)
        if runs and not all:
            raise ConflictError(
                f"the control node is running {self._named(runs)}",
                hint="`gridmill down --all` stops these runs and the control node; `gridmill resume RUN`"
                " continues one.",
            )
        threading.Thread(target=self._shut_down, args=(runs,), name="shutdown", daemon=True).start()

    def _named(self, runs: Sequence[str]) -> str:
        """Return the runs, each with the client that waits for it."""
        by_run = {run: f" (process {one.pid}: {one.command})" for one in self.clients() for run in one.runs}
        named = [f"{run}{by_run.get(run, '')}" for run in runs[:_RUNS_NAMED]]
        more = f" and {len(runs) - _RUNS_NAMED} more" if len(runs) > _RUNS_NAMED else ""
        return f"{show_count(len(runs), 'run')}: {', '.join(named)}{more}"

    def _shut_down(self, runs: Sequence[str]) -> None:
        """Stop the runs, let their clients see the results, then stop the control node."""
        try:
            for run in runs:
                self.stop_run(run)
            self._wait(
                lambda: not {one.id for one in self._node.active_runs()}.intersection(runs), _STOP_SECONDS
            )
            self._wait(lambda: not any(set(one.runs) & set(runs) for one in self.clients()), _LEAVE_SECONDS)
        except GridmillError as error:
            self._control.problems.warn(f"not all runs were stopped: {explained(error)}")
        self._node.return_machines(_RETURN_SECONDS)
        self._end()

    def _wait(self, over: Callable[[], bool], seconds: float) -> None:
        until = self._control.clock.monotonic() + seconds
        while not over() and self._control.clock.monotonic() < until:
            self._node.wait_for_commit(self._node.commits, _POLL_SECONDS)

    def report(self, run_id: str) -> str:
        """Return the run's report, which is one self-contained HTML document."""
        view = self._run_views.report(run_id, REPORTED_JOBS)
        read = partial(self._ledger.store.events, run_id=run_id)
        events = events_to_show(lambda after, limit: read(after=after, limit=limit))
        logs = log_ends(view, self._ledger.logs)
        before = run_before(view.run, self._earlier(view.run.pipeline))
        earlier = self._run_views.report(before.id, REPORTED_JOBS) if before is not None else None
        advice, rented = self.advice_on_run(view), self._rented_lines(view.run)
        return self._render(view, events, advice, earlier, logs, rented, self._services_of(view))

    def _services_of(self, view: RunView) -> tuple[ServiceView, ...]:
        """Return the services that jobs of a run have started or updated, or that serve a version of the
        run."""
        declared = {service_name(one.job.job) for one in view.jobs if one.job.job.starts_service}
        made = {version.id for job in view.jobs for version in job.artifacts}
        with self._node.lock:
            return tuple(
                self._service_view(one)
                for one in self._list(ServiceRecord)
                if one.name in declared or made.intersection((one.version, one.canary, one.shadow_version))
            )

    def _earlier(self, pipeline: str) -> tuple[Run, ...]:
        return self._list(Run, parent=pipeline, limit=EARLIER_RUNS, newest_first=True)

    def has_bundle(self, bundle: str) -> bool:
        """Return whether the code bundle with that hash is stored."""
        return self._control.storage.has_bundle(bundle)

    def put_bundle(self, bundle: str, data: bytes) -> None:
        """Store a code bundle in the home."""
        self._control.storage.put_bundle(bundle, data)
