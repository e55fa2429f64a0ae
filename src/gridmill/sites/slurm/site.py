"""The Slurm site. The Slurm site stores its state only in its folder on the cluster and in Slurm.

Therefore a control node finds the state of the site after a restart, and so does another control node that
replaces it.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from gridmill.domain.amounts import Amounts
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import ConfiguredNodes, Node, NodeUtilization, Site
from gridmill.errors import InputError, UnavailableError
from gridmill.plugins import find
from gridmill.ports.site import PodListeners, PodReport, PodStatus, SitePort
from gridmill.settings import Settings
from gridmill.sites.marks import mark_of, mark_root
from gridmill.sites.slurm import script
from gridmill.sites.slurm.commands import packed, shell_of
from gridmill.sites.slurm.parse import (
    SacctJob,
    SlurmNodes,
    SqueueJob,
    clock_ahead,
    most_alive,
    parse_sacct,
    parse_sinfo,
    parse_squeue,
)
from gridmill.sites.slurm.pod_state import PodEvidence, is_unexplained, report_of, with_log
from gridmill.sites.slurm.script import BatchJob, deployment_of
from gridmill.sites.slurm.settings import SlurmSettings, resource_settings, settings_of
from gridmill.sites.slurm.states import SlurmPhase
from gridmill.sites.ssh import CompletedCommand, Shell

_NODES_SECONDS = 60.0  # rarely read again, because nodes and partitions change rarely
_QUICKEST_SECONDS, _SLOWEST_SECONDS, _SLOWING = 0.5, 15.0, 10.0
_ASKED_SECONDS, _END_SECONDS, _KILL_SECONDS = 2.0, 6.0, 6.0
_POLL_SECONDS = 0.1
_END_BYTES = 4096  # enough for the last line of a log
_WAITING = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT")
_BUSY = (
    "Unable to contact",
    "Socket timed out",
    "Connection refused",
    "Connection timed out",
    "Zero Bytes",
    "temporarily unable",
    "Resource temporarily unavailable",
    "Slurm backup controller in standby",
    "Communication connection failure",
)
"""Messages of sbatch about errors that the job does not cause. After such an error, the submission is
retried."""


@dataclass(slots=True)
class _QueryCache:
    """Caches the last observations, so that Slurm is asked less often while nothing changes."""

    pod_reports: dict[str, PodReport] = field(default_factory=dict)
    asked_at: float = 0.0
    changed: float = 0.0
    since: dict[str, tuple[str, float]] = field(default_factory=dict)
    """For each deployment, its state and the time since which it has this state."""
    refused: dict[str, str] = field(default_factory=dict)
    """Slurm's message for each deployment that it refused."""


class SlurmSite:
    """Implements SitePort with a Slurm cluster. This class is safe to use from several threads."""

    def __init__(self, settings: Settings, site: Site, doors: PodListeners, shell: Shell, mark: str) -> None:
        self._settings, self._site, self._listeners = settings, site, doors
        self._slurm_settings: SlurmSettings = settings_of(site)
        self._shell = shell
        self._mark = mark
        self._lock = threading.RLock()
        self._memory = _QueryCache()
        self._accounting = True
        self._ahead = 0.0
        """The time of the cluster's clock minus the time of this machine's clock, in seconds."""
        self._nodes: tuple[float, SlurmNodes] | None = None
        self._link = ""

    # --- properties

    def nodes(self) -> tuple[Node, ...]:
        """Returns the usable nodes of the partition. The site asks Slurm for the nodes once a minute.

        Raises UnavailableError (also if the storage root does not exist on the cluster), StorageError if the
        storage root cannot be written, and InputError if the partition is unknown.
        """
        return self._known_nodes().usable

    def configured_nodes(self) -> ConfiguredNodes:
        """Returns the nodes that are down, drained or in maintenance, and that may become usable again."""
        known = self._known_nodes()
        return ConfiguredNodes(away=known.away, partitions=known.partitions)

    def request(self, amounts: Amounts, pods: int, settings: Mapping[str, str]) -> str:
        """Checks the options of sbatch and returns them as text. Raises InputError."""
        return script.request(amounts, pods, resource_settings(self._site, settings))

    def _known_nodes(self) -> SlurmNodes:
        with self._lock:
            now = time.monotonic()
            if self._nodes is None or now - self._nodes[0] > _NODES_SECONDS:
                seen = mark_root(self._settings.root, self._mark)
                done = self._shell.run(script.nodes(str(seen)))
                if done.status == script.UNSEEN:
                    raise self._unseen()
                if done.status != 0:
                    raise _trouble("sinfo", done)
                self._nodes = now, self._parsed(done.text)
            return self._nodes[1]

    def _parsed(self, text: str) -> SlurmNodes:
        wanted = self._slurm_settings.partition
        known = parse_sinfo(text, self._slurm_settings.gres, wanted)
        unknown = [name for name in wanted.split(",") if name and name not in known.partitions]
        if unknown:
            raise InputError(
                f"Slurm has no partition {unknown[0]!r}",
                hint=f"The partitions are: {', '.join(known.partitions)}.",
                place=f"site {self._site.name}: settings.partition",
            )
        return known

    def _unseen(self) -> UnavailableError:
        where, root = self._site.address or "the login node", self._settings.root
        return UnavailableError(
            f"the storage root {root} does not exist at {where}",
            hint="Gridmill exchanges data, code and messages through this folder. Mount it under the same "
            "path here, on "
            "the login node and on all nodes, and set GRIDMILL_ROOT to this path.",
        )

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """Returns no load, because measuring the load would need a job on each node."""
        return {}

    def link(self) -> str:
        """Returns the address for the connections of pods: files in the folder of the site, or TLS. Raises
        UnavailableError."""
        with self._lock:
            if not self._link and self._slurm_settings.link == "tls":
                self._link = self._listeners.tls(
                    self._slurm_settings.host or socket.gethostname(), self._slurm_settings.port
                )
            elif not self._link:
                self._link = self._listeners.spool(Path(self._folder()) / "spool")
            return self._link

    def pod_home(self, pod_id: str) -> str:
        """The site's folder."""
        return self._folder()

    def _folder(self) -> str:
        """Returns the folder from the settings, or a folder beside the storage root, which all nodes can
        use. In either folder, the site uses the subfolder whose name is the mark of this home."""
        return f"{self._slurm_settings.folder or f'{self._settings.root}-slurm'}/{self._mark}"

    def prepare(self) -> None:
        """Does nothing, because Slurm determines when pods start."""

    def _job(self, deployment_id: str) -> str:
        return f"gridmill-{self._mark}-{deployment_id}"

    # --- starting

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Submits one batch job for each deployment, at most once. Raises UnavailableError."""
        by_deployment: dict[str, dict[str, PodOrder]] = {}
        for order in orders:
            by_deployment.setdefault(deployment_of(order.pod_id), {})[order.pod_id] = order
        for deployment_id, pods in by_deployment.items():
            self._submit(deployment_id, list(pods.values()))

    def _submit(self, deployment_id: str, orders: Sequence[PodOrder]) -> None:
        pods = tuple(order.pod_id for order in orders)
        wishes = resource_settings(self._site, orders[0].settings)
        batch = BatchJob(
            deployment_id=deployment_id,
            job=self._job(deployment_id),
            pods=pods,
            capacity=orders[0].capacity,
            folder=self._folder(),
            python=wishes.python or sys.executable,
            variables=self._variables(wishes),
            node=orders[0].node if orders[0].pinned else "",
        )
        text = script.submit(batch.folder, deployment_id, batch.job, pods)
        done = self._shell.run(text, packed(batch, wishes, orders))
        if done.status == script.REFUSED and not any(word in done.err for word in _BUSY):
            self._refused(deployment_id, pods, done)
        elif done.status != 0:
            raise _trouble("sbatch", done)
        self._changed()

    def _variables(self, wishes: SlurmSettings) -> dict[str, str]:
        """Returns the environment of pods with the present settings as variables. Gridmill's own cgroups are
        switched off, because Slurm limits the memory of pods and Gridmill's cgroups would bypass this
        limit."""
        handed_on = {name: os.environ[name] for name in wishes.environment if name in os.environ}
        return {
            **handed_on,
            "GRIDMILL_HOME": self._folder(),
            "GRIDMILL_ROOT": str(self._settings.root),
            "GRIDMILL_GRACE": str(self._settings.grace_seconds),
            "GRIDMILL_ZYGOTE": str(int(self._settings.zygote)),
            "GRIDMILL_CGROUPS": "0",
        }

    def _refused(self, deployment_id: str, pods: Sequence[str], done: CompletedCommand) -> None:
        """Records that the pods of a Slurm job which Slurm refused have ended, with Slurm's message."""
        text = "; ".join(line.removeprefix("sbatch: error: ") for line in done.err.strip().splitlines())
        with self._lock:
            self._memory.refused[deployment_id] = f"Slurm refuses the job: {text}"
        self._ask(script.bar(self._folder(), pods))

    # --- observing

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns the reports on all these pods. One squeue reads all jobs, less often if nothing changes,
        and one sacct reads the ended jobs."""
        with self._lock:
            if not self._is_due(pod_ids):
                return {pod_id: self._memory.pod_reports[pod_id] for pod_id in pod_ids}
        reports = self._look(pod_ids) if pod_ids else {}
        with self._lock:
            now = time.monotonic()
            self._memory.asked_at = now
            if reports != self._memory.pod_reports:
                self._memory.pod_reports, self._memory.changed = dict(reports), now
                names = set(map(deployment_of, reports))
                self._memory.since = {k: v for k, v in self._memory.since.items() if k in names}
        return reports

    def _is_due(self, pod_ids: Sequence[str]) -> bool:
        memory, now = self._memory, time.monotonic()
        pause = min(max(_QUICKEST_SECONDS, (now - memory.changed) / _SLOWING), _SLOWEST_SECONDS)
        return now - memory.asked_at >= pause or any(pod_id not in memory.pod_reports for pod_id in pod_ids)

    def _changed(self) -> None:
        with self._lock:
            self._memory.pod_reports, self._memory.changed = {}, time.monotonic()

    def _look(self, pod_ids: Sequence[str]) -> dict[str, PodReport]:
        jobs, marks = self._list(pod_ids)
        deployments = dict.fromkeys(map(deployment_of, pod_ids))
        jobs_by_name = {name: most_alive(jobs, self._job(name)) for name in deployments}
        accounts = self._accounts(
            [name for name in jobs_by_name if self._wants_account(name, jobs_by_name[name], marks)]
        )
        reports = {
            pod_id: self._pod_report(pod_id, jobs_by_name[deployment_of(pod_id)], marks, accounts)
            for pod_id in pod_ids
        }
        self._clear_away(reports, jobs_by_name, marks)
        return reports

    def _list(self, pod_ids: Sequence[str]) -> tuple[tuple[SqueueJob, ...], dict[str, set[str]]]:
        """Returns the Slurm jobs, and for each pod the names of its mark files."""
        names = [self._job(name) for name in dict.fromkeys(map(deployment_of, pod_ids))]
        done = self._ask(script.look(self._folder(), pod_ids, names))
        marks: dict[str, set[str]] = {}
        for line in done.text.splitlines():
            if line.startswith(("pods/", "deployments/")):
                _, owner, mark = line.split("/")
                marks.setdefault(owner, set()).add(mark)
        self._ahead = clock_ahead(done.text, time.time(), self._ahead)
        return parse_squeue(done.text, self._ahead), marks

    def _wants_account(self, name: str, job: SqueueJob | None, marks: Mapping[str, set[str]]) -> bool:
        over = job is None or job.state.phase == SlurmPhase.OVER
        return over and "submitted" in marks.get(name, ()) and self._accounting

    def _accounts(self, deployments: Sequence[str]) -> dict[str, SacctJob]:
        """Requests the accounting. The function checks only once whether the cluster has accounting."""
        if not deployments:
            return {}
        done = self._shell.run(script.account(map(self._job, deployments)))
        if done.status != 0:
            self._accounting = "disabled" not in done.err and "not found" not in done.err
            return {}
        return {account.name: account for account in parse_sacct(done.text)}

    def _pod_report(
        self,
        pod_id: str,
        job: SqueueJob | None,
        marks: Mapping[str, set[str]],
        accounts: Mapping[str, SacctJob],
    ) -> PodReport:
        name = deployment_of(pod_id)
        refusal = self._memory.refused.get(name)
        if refusal is not None:
            return PodReport(status=PodStatus.GONE, message=refusal, hopeless=True)
        seen = PodEvidence(
            marks=frozenset(marks.get(pod_id, ())),
            submitted="submitted" in marks.get(name, ()),
            prepared="script" in marks.get(name, ()),
            job=job,
            account=accounts.get(self._job(name)),
            accounting=self._accounting,
            for_seconds=self._since(name, "absent" if job is None else job.word),
        )
        return with_log(report_of(seen), self._log(pod_id)) if is_unexplained(seen) else report_of(seen)

    def _log(self, pod_id: str) -> str:
        """Returns the end of the log of a pod that ended before it could send a message."""
        with suppress(OSError):
            return read_end(Path(self._folder()) / "pods" / pod_id / "log")
        return ""

    def _since(self, deployment_id: str, word: str) -> float:
        """Returns for how many seconds the Slurm job of a deployment has been in this state."""
        with self._lock:
            now = time.monotonic()
            previous = self._memory.since.get(deployment_id)
            if previous is None or previous[0] != word:
                previous = self._memory.since[deployment_id] = (word, now)
            return now - previous[1]

    def _clear_away(
        self,
        reports: Mapping[str, PodReport],
        squeue_jobs: Mapping[str, SqueueJob | None],
        marks: Mapping[str, set[str]],
    ) -> None:
        """Cancels queued Slurm jobs whose pods can never start. The function also asks pods to end if their
        Slurm job has ended, because a pod on a disconnected node may not have noticed the end."""
        gone = {pod_id for pod_id, sight in reports.items() if sight.status == PodStatus.GONE}
        idle = {
            name: self._job(name)
            for name in dict.fromkeys(map(deployment_of, sorted(gone)))
            if (job := squeue_jobs[name]) is not None and job.word in _WAITING
        }
        stray = [pod_id for pod_id in reports if self._is_stray(pod_id, squeue_jobs, marks)]
        removable = [*(pod_id for pod_id in sorted(gone) if deployment_of(pod_id) in idle), *stray]
        if removable:
            self._ask(script.tear_down(self._folder(), removable, idle))

    def _is_stray(
        self, pod_id: str, squeue_jobs: Mapping[str, SqueueJob | None], marks: Mapping[str, set[str]]
    ) -> bool:
        """Returns whether the pod may still run although its Slurm job ended because a node failed: it was
        started, has not ended, and was not asked to end."""
        job, mine = squeue_jobs[deployment_of(pod_id)], marks.get(pod_id, set())
        failed = job is not None and job.word == "NODE_FAIL"
        return failed and "claimed" in mine and not mine & {"ended", "stop"}

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events in the pod's journal that the control node has not acknowledged."""
        read: Callable[[Path], Iterable[PodEvent]] = find("journals", "folder")
        return tuple(read(Path(self._folder()) / "pods" / pod_id / "journal"))

    # --- ending

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends pods. Queued Slurm jobs are cancelled. Running pods first get a request to end, then scancel,
        then SIGKILL.

        Raises UnavailableError while Slurm is still ending a pod, or if Slurm does not answer. If Slurm does
        not answer, the pods have at least received the request to end through their folders.
        """
        folder = self._folder()
        jobs = {name: self._job(name) for name in dict.fromkeys(map(deployment_of, pod_ids))}
        self._ask(script.tear_down(folder, pod_ids, jobs))
        left = list(pod_ids)
        for seconds, options in ((_ASKED_SECONDS, ""), (_END_SECONDS, script.KILL), (_KILL_SECONDS, None)):
            left = self._wait(left, seconds)
            if not left:
                break
            still = {name: jobs[name] for name in dict.fromkeys(map(deployment_of, left))}
            self._ask(script.cancel(folder, still, options)) if options is not None else None
        self._changed()
        if left:
            raise UnavailableError(f"Slurm is still ending {', '.join(left)}")
        self._ask(script.finish(folder, pod_ids))

    def _wait(self, pod_ids: Sequence[str], seconds: float) -> list[str]:
        """Returns the pods that still have running processes after this number of seconds."""
        until = time.monotonic() + seconds
        left = list(pod_ids)
        while left:
            left = self._left(left)
            if not left or time.monotonic() >= until:
                break
            time.sleep(_POLL_SECONDS)
        return left

    def _left(self, pod_ids: Sequence[str]) -> list[str]:
        jobs, marks = self._list(pod_ids)
        over = {
            name
            for name in map(deployment_of, pod_ids)
            if (job := most_alive(jobs, self._job(name))) is None or job.state.phase == SlurmPhase.OVER
        }
        return [
            pod_id
            for pod_id in pod_ids
            if deployment_of(pod_id) not in over and "ended" not in marks.get(pod_id, ())
        ]

    # --- other methods

    def _ask(self, text: str) -> CompletedCommand:
        done = self._shell.run(text)
        if done.status != 0:
            raise _trouble("Slurm", done)
        return done

    def close(self) -> None:
        """Closes the site. The pods continue."""
        self._shell.close()


def make(settings: Settings, site: Site, doors: PodListeners) -> SitePort:
    """Makes the Slurm site. The listener of the site opens immediately, because pods that an earlier control
    node started connect to it.

    Raises InputError if a setting or the address is invalid, StorageError, and UnavailableError.
    """
    settings_of(site)
    mark = mark_of(settings.home / "slurm", site.name)
    made = SlurmSite(settings, site, doors, shell_of(site), mark)
    try:
        made.link()
    except BaseException:
        made.close()
        raise
    return made


def _trouble(what: str, done: CompletedCommand) -> UnavailableError:
    text = "; ".join(line for line in done.err.strip().splitlines() if line.strip())
    return UnavailableError(f"{what} does not answer: {text or f'exit code {done.status}'}")


def read_end(log: Path) -> str:
    """Returns only the last 4 KiB of the log, because the log is on a shared disk and may be long. Raises
    OSError."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _END_BYTES))
        return file.read(_END_BYTES).decode(errors="replace")
