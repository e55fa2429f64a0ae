"""The site of kind `batch`: each attempt is one job of a managed batch service. It implements SitePort and
TransferSite."""

import fcntl
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

from gridmill.codec import decode
from gridmill.domain.artifact import Artifact
from gridmill.domain.farm_protocol import FARM_PROTOCOL, FarmStatus
from gridmill.domain.pod_protocol import AttemptOrder, PodEvent, PodOrder
from gridmill.domain.route import Route, TransferRate
from gridmill.domain.site import Node, NodeUtilization, Site
from gridmill.errors import GridmillError, InputError, UnavailableError, explained
from gridmill.plugins import find
from gridmill.ports.batch import BatchJob, BatchPort
from gridmill.ports.site import PodListeners, PodReport, PodStatus
from gridmill.settings import Settings
from gridmill.sites.attempt_inputs import InputTrees, KnownFolders
from gridmill.sites.batch.access import open_bucket, open_service
from gridmill.sites.batch.attempt import AttemptDriver
from gridmill.sites.batch.attempt_record import AttemptPhase, BatchAttemptRecord
from gridmill.sites.batch.context import SiteContext
from gridmill.sites.batch.exchange import Exchange
from gridmill.sites.batch.journal import PodJournal
from gridmill.sites.batch.manifest import chunks_folder, job_name
from gridmill.sites.batch.pods import ENDED, BatchPod, mark_ended, read_order, write_order
from gridmill.sites.batch.settings import BatchSettings, read
from gridmill.sites.batch.upkeep import Upkeep
from gridmill.sites.marks import mark_of, mark_root
from gridmill.version import __version__

_LOG = logging.getLogger(__name__)
_TURN_SECONDS = 0.1
_AT_ONCE = 8
_OPEN_SECONDS = 2.0
"""The time for which a call waits until the pods of the site were read."""
_ASKED = 100
"""The largest number of jobs in one request to the service."""
_CHECK_SECONDS = 600.0
_END_SECONDS = 60.0
_LEAVE_AGAIN_SECONDS = _END_SECONDS + 30.0
_CALL_SECONDS = 0.1
"""The least average time between two requests for the states of jobs that are being ended."""
_TIDY_SECONDS = 7 * 86_400.0
_PROBE_BYTES = 1 << 20
_GONE = PodReport(status=PodStatus.GONE, message="it has ended or was never started")
_RUNNING = PodReport(status=PodStatus.RUNNING)
_UNKNOWN = PodReport(status=PodStatus.UNKNOWN, message="the pods of the site were not read yet")


class JobReports:
    """The last known states of jobs, which one thread reads from the service. This class is safe to use from
    several threads."""

    def __init__(self, service: BatchPort, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._service, self._monotonic = service, monotonic
        self._jobs: dict[str, BatchJob] = {}
        self._missing: dict[str, tuple[float, float]] = {}
        """The times of the first and of the last answer without the job."""
        self.problem = ""

    def get(self, job_id: str) -> BatchJob | None:
        """Return the last state of the job, or None."""
        return self._jobs.get(job_id)

    def missing_seconds(self, job_id: str) -> float:
        """Return for how many seconds the service has not known the job. The time after its last answer does
        not count."""
        first, last = self._missing.get(job_id, (0.0, 0.0))
        return last - first

    def refresh(self, ids: Sequence[str]) -> None:
        """Request the states of these jobs from the service, and delete the states of all other jobs."""
        try:
            for start in range(0, len(ids), _ASKED):
                some = ids[start : start + _ASKED]
                found = self._service.describe(some)
                self._jobs.update(found)
                self._note_missing(some, found)
        except GridmillError as error:
            self.problem = explained(error)
            return
        self.problem = ""
        for gone in self._jobs.keys() - set(ids):
            del self._jobs[gone]
        for gone in self._missing.keys() - set(ids):
            del self._missing[gone]

    def _note_missing(self, ids: Sequence[str], found: Mapping[str, BatchJob]) -> None:
        now = self._monotonic()
        for job_id in ids:
            if job_id in found:
                self._missing.pop(job_id, None)
            else:
                first, _ = self._missing.get(job_id, (now, now))
                self._missing[job_id] = first, now


class BatchSite:
    """A site at a managed batch service. This class is safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        site: Site,
        parsed: BatchSettings,
        service: BatchPort,
        exchange: Exchange,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`exchange` is the part of the bucket that belongs to this home. Raises StorageError."""
        self._settings, self._site, self._parsed, self._service = settings, site, parsed, service
        self._monotonic = monotonic
        self._folder = settings.home / "batch" / site.name
        self._link = f"unix:{settings.home / 'links.sock'}"
        self._reports = JobReports(service, monotonic)
        mark = site_mark(settings, site)
        self._bucket = exchange.bucket
        self._context = SiteContext(
            site=site,
            parsed=parsed,
            root=settings.root,
            mark=mark,
            root_mark=str(mark_root(settings.root, mark).relative_to(settings.root)),
            exchange=exchange,
            service=service,
            trees=InputTrees(settings.root, settings.home / "bundles", KnownFolders(self._folder / "hashes")),
            jobs=self._reports.get,
            missing_seconds=self._reports.missing_seconds,
            records=self._record,
            monotonic=monotonic,
        )
        self._lock = threading.RLock()
        self._pods: dict[str, BatchPod] = {}
        self._without_pod: list[AttemptDriver] = []
        self._closed, self._wake, self._is_open = threading.Event(), threading.Event(), threading.Event()
        self._owner: IO[str] | None = None
        """The file whose lock only one object has, because each object numbers the events of its pods."""
        self._checked: tuple[float, str] | None = None
        self._upkeep = Upkeep(self._context, self._job_names)
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="gridmill-batch")
        self._threads = [
            threading.Thread(target=run, name=f"gridmill-batch-{name}", daemon=True)
            for name, run in (("pods", self._run), ("jobs", self._poll))
        ]

    def start(self) -> None:
        """Start the threads of the site, which continue all pods and attempts of earlier processes of this
        home. Before that, they wait until an earlier object for the site is closed."""
        for thread in self._threads:
            thread.start()

    # --- pods and attempts of earlier processes

    def _open(self) -> bool:
        """Continue the pods and attempts. Returns False if the site is closed before that."""
        while not self._closed.is_set():
            try:
                if self._owner is None:
                    self._owner = _locked(self._folder)
                if self._owner is not None:
                    self._continue()
                    self._is_open.set()
                    return True
            except (GridmillError, OSError) as error:
                _LOG.warning("batch_site_not_opened site=%s reason=%s", self._site.name, error)
            self._closed.wait(_TURN_SECONDS)
        return False

    def _check_open(self) -> None:
        if not self._is_open.wait(_OPEN_SECONDS):
            raise UnavailableError(
                f"site {self._site.name} is not open yet", hint="Gridmill repeats the request."
            )

    def _continue(self) -> None:
        self._pods.clear()
        self._without_pod.clear()
        for path in (self._folder / "attempts", self._folder / "pods"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self._folder / "pods").iterdir():
            order = read_order(folder)
            if order is not None:
                self._pods[order.pod_id] = self._pod(order, folder)
            elif time.time() - folder.stat().st_mtime > _TIDY_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        for path in (self._folder / "attempts").glob("*.json"):
            self._continue_attempt(path)

    def _continue_attempt(self, path: Path) -> None:
        try:
            record = decode(path.read_bytes(), BatchAttemptRecord)
        except (OSError, InputError) as error:
            _LOG.warning("attempt_not_read path=%s reason=%s", path, error)
            return
        pod = self._pods.get(record.pod_id)
        if pod is None:
            return self._continue_without_pod(path, record)
        pod.drivers[record.order.attempt_id] = AttemptDriver(self._context, record, pod.journal, path)

    def _continue_without_pod(self, path: Path, record: BatchAttemptRecord) -> None:
        folder = self._folder / "pods" / record.pod_id
        if (folder / ENDED).exists():
            path.unlink(missing_ok=True)  # the attempt was ended before its pod
            return
        # the order of the pod is damaged, so that the control node gets no events and counts the attempt as
        # lost, but its job may run
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        journal = PodJournal(folder / "journal.jsonl")
        self._without_pod.append(AttemptDriver(self._context, record, journal, path))

    def _end_without_pod(self) -> None:
        """End the jobs of attempts whose pods are damaged."""
        for driver in tuple(self._without_pod):
            try:
                if driver.end_now():
                    self._without_pod.remove(driver)
                    driver.forget()
            except UnavailableError as error:
                _LOG.warning("batch_job_not_ended attempt=%s reason=%s", driver.id, error)

    def _pod(self, order: PodOrder, folder: Path) -> BatchPod:
        address = self._link.partition(":")[2]
        return BatchPod(order, folder, partial(find("links", "unix"), address), self._new_attempt)

    def _new_attempt(self, pod: BatchPod, order: AttemptOrder) -> None:
        """Record a new attempt of a pod. Its driver then continues in the background."""
        record = BatchAttemptRecord(
            order=order,
            pod_id=pod.order.pod_id,
            type=pod.order.type,
            settings=dict(pod.order.settings),
            name=job_name(self._context.mark, order.attempt_id, order.token),
            chunks=chunks_folder(self._context.now(), self._parsed.keep_seconds),
        )
        path = self._folder / "attempts" / f"{order.attempt_id}.json"
        driver = AttemptDriver(self._context, record, pod.journal, path)
        driver.save(record)
        with self._lock:
            pod.drivers[order.attempt_id] = driver
        self._wake.set()

    # --- threads

    def _run(self) -> None:
        while not self._closed.is_set() and (self._is_open.is_set() or self._open()):
            try:
                self._turn()
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("batch_pods_failed")
            self._wake.wait(_TURN_SECONDS)
            self._wake.clear()

    def _forget_ended(self) -> None:
        """Drop the attempts that have ended, because a pod may run thousands of them. Its journal knows that
        they have ended."""
        ended: list[AttemptDriver] = []
        with self._lock:
            for pod in self._pods.values():
                if not pod.is_leaving:
                    for key, one in tuple(pod.drivers.items()):
                        if one.has_ended and not one.is_busy:
                            ended.append(pod.drivers.pop(key))
        for one in ended:
            one.forget()

    def _turn(self) -> None:
        self._forget_ended()
        with self._lock:
            pods = [pod for pod in self._pods.values() if not pod.is_leaving]
        for pod in pods:
            try:
                pod.turn()
            except GridmillError as error:
                _LOG.warning("batch_pod_waits pod=%s reason=%s", pod.order.pod_id, error)
        now = self._monotonic()
        with self._lock:
            rejected = [pod for pod in self._pods.values() if pod.has_said_goodbye and now >= pod.leave_due]
            for pod in rejected:
                pod.leave_due = now + _LEAVE_AGAIN_SECONDS
        if rejected:
            self._workers.submit(self._leave, rejected)
        with self._lock:
            due = [
                one
                for pod in pods
                for one in pod.drivers.values()
                if not (pod.is_leaving or one.is_busy or one.has_ended) and now >= one.due
            ]
            for driver in due:
                driver.is_busy = True
        for driver in due:
            self._workers.submit(self._step, driver)

    def _step(self, driver: AttemptDriver) -> None:
        try:
            driver.step()
        except Exception:  # noqa: BLE001  the outermost loop of an attempt: the next step may fare better
            _LOG.exception("batch_attempt_failed attempt=%s", driver.id)
            driver.due = self._monotonic() + self._parsed.poll_seconds
        finally:
            driver.is_busy = False
            self._wake.set()

    def _leave(self, pods: Sequence[BatchPod]) -> None:
        """End pods that the control node does not know any more, so that nobody else ends their jobs."""
        try:
            self.tear_down([pod.order.pod_id for pod in pods])
        except GridmillError as error:
            _LOG.warning("batch_pods_not_ended first=%s reason=%s", pods[0].order.pod_id, error)

    def _poll(self) -> None:
        while not self._closed.wait(self._parsed.poll_seconds):
            if not self._is_open.is_set():
                continue
            try:
                self._end_without_pod()
                drivers = self._drivers()
                submitted = [one.record for one in drivers if one.record.phase is AttemptPhase.SUBMITTED]
                if submitted:
                    self._reports.refresh([one.job_id for one in submitted])
                self._upkeep.turn([one.record for one in self._drivers() if not one.has_ended])
            except Exception:  # noqa: BLE001  the outermost loop: the next turn may fare better
                _LOG.exception("batch_jobs_failed")

    def _record(self, attempt_id: str) -> BatchAttemptRecord | None:
        """Return the record of an attempt, or None if the site does not have it."""
        with self._lock:
            found = (pod.drivers.get(attempt_id) for pod in self._pods.values())
            return next((one.record for one in found if one is not None), None)

    def _job_names(self) -> frozenset[str]:
        """Return the names of the jobs of all attempts."""
        return frozenset(one.record.name for one in (*self._drivers(), *self._without_pod))

    def _drivers(self) -> list[AttemptDriver]:
        with self._lock:
            return [driver for pod in self._pods.values() for driver in pod.drivers.values()]

    # --- SitePort

    def nodes(self) -> tuple[Node, ...]:
        """Returns one node for each job of the largest size that may run at the same time. Raises
        UnavailableError if the service or the bucket cannot be used."""
        now = self._monotonic()
        if self._checked is None or now - self._checked[0] >= _CHECK_SECONDS:
            try:
                words = self._service.check()
                self._bucket.has("attempts/none")
            except UnavailableError:
                raise
            except GridmillError as error:
                raise UnavailableError(error.message, hint=error.hint) from error
            self._checked = now, words
        return tuple(
            Node(name=f"slot-{number}", capacity=self._parsed.largest)
            for number in range(1, self._parsed.max_machines + 1)
        )

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """Returns nothing, because the nodes stand for machines that the service may start."""
        return {}

    def link(self) -> str:
        """Returns the address of the control node. The pods in this process connect to this address."""
        return self._link

    def pod_home(self, pod_id: str) -> str:
        """Returns the folder of the pod in the home."""
        return str(self._folder / "pods" / pod_id)

    def prepare(self) -> None:
        """Does nothing, because machines cost money."""

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Makes pods, which costs nothing until they get an attempt. Raises UnavailableError,
        StorageError."""
        self._check_open()
        for order in orders:
            folder = self._folder / "pods" / order.pod_id
            with self._lock:
                if order.pod_id in self._pods or (folder / ENDED).exists():
                    continue
                write_order(folder, order)
                self._pods[order.pod_id] = self._pod(order, folder)
        self._wake.set()

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns whether the pods exist. A pod ends only when it is torn down."""
        if not self._is_open.is_set():
            return dict.fromkeys(pod_ids, _UNKNOWN)
        with self._lock:
            return {pod_id: _RUNNING if pod_id in self._pods else _GONE for pod_id in pod_ids}

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events of a GONE pod that the control node has not acknowledged."""
        path = self._folder / "pods" / pod_id / "journal.jsonl"
        return PodJournal(path).waiting() if path.exists() else ()

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Ends pods and the jobs of their attempts, and waits until the service has ended the jobs. Raises
        UnavailableError if this takes long; the call must then be repeated."""
        self._check_open()
        with self._lock:
            pods = [self._pods[pod_id] for pod_id in pod_ids if pod_id in self._pods]
            for pod in pods:
                pod.is_leaving = True
            for pod_id in pod_ids:
                if pod_id not in self._pods:
                    mark_ended(self._folder / "pods" / pod_id)
        until = self._monotonic() + _END_SECONDS
        self._end([driver for pod in pods for driver in tuple(pod.drivers.values())], until)
        for pod in pods:
            pod.mark_ended()
            with self._lock:
                self._pods.pop(pod.order.pod_id, None)
            for driver in pod.drivers.values():
                driver.forget()

    def _end(self, drivers: Sequence[AttemptDriver], until: float) -> None:
        """End the jobs of attempts, after the steps of the attempts that may run now. The service gets the
        requests to end all jobs before the method waits for the first one. Raises UnavailableError."""
        for driver in drivers:
            driver.interrupt()
        left = list(drivers)
        while True:
            problem: UnavailableError | None = None
            waiting: list[AttemptDriver] = []
            for driver in left:
                try:
                    has_ended = not driver.is_busy and driver.end_now()
                except UnavailableError as error:
                    problem, has_ended = error, False
                if not has_ended:
                    waiting.append(driver)
            if not waiting:
                return
            if problem is not None:
                raise problem
            left = waiting
            pause = max(min(1.0, self._parsed.poll_seconds), _CALL_SECONDS * len(left))
            if self._monotonic() >= until or self._closed.wait(pause):
                raise UnavailableError(
                    f"the batch service has not ended the job of {left[0].id} yet",
                    hint="Gridmill repeats the request.",
                )

    def close(self) -> None:
        """Closes the site. The jobs continue."""
        self._closed.set()
        self._wake.set()
        for driver in self._drivers():
            driver.interrupt()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(5.0)
        self._workers.shutdown(wait=True, cancel_futures=True)
        for pod in tuple(self._pods.values()):
            pod.close()
        self._service.close()
        if self._owner is not None:
            self._owner.close()

    # --- ExternalCleanup

    def clean_up_previous(self) -> None:
        """See ExternalCleanup. Earlier objects left nothing but attempts. They continue from now on, because
        this object is the only one that the control node uses."""
        self.start()

    def delete_all(self) -> None:
        """See ExternalCleanup. Deletes all data of this home in the bucket."""
        try:
            for page in self._bucket.names(""):
                for name in page:
                    self._bucket.remove(name)
        except GridmillError as error:
            _LOG.warning("bucket_not_emptied site=%s reason=%s", self._site.name, error)

    # --- TransferSite

    def transfer_progress(self, attempt_id: str) -> Mapping[str, Any]:
        """See TransferSite."""
        for driver in self._drivers():
            seen = driver.transfer() if driver.id == attempt_id else None
            if seen is not None and seen[1].total_bytes:
                direction, state = seen
                done = state.present_bytes + state.transferred_bytes
                note = f"transfer {direction} the bucket of {self._site.name}"
                return {"done": done, "total": state.total_bytes, "unit": "bytes", "note": note}
        return {}

    def farm_status(self) -> FarmStatus:
        """See TransferSite."""
        return FarmStatus(version=__version__, protocol=FARM_PROTOCOL, root="", nodes=self.nodes())

    def transfer_problems(self) -> Mapping[str, str]:
        """See TransferSite. Jobs that wait long in the queue of the service are reported too."""
        problems = {one.id: one.problem for one in self._drivers() if one.problem}
        problems |= self._upkeep.problems
        if self._reports.problem:
            problems["jobs"] = f"site {self._site.name}: {self._reports.problem}"
        return problems

    def missing_sizes(self, versions: Sequence[Artifact]) -> Mapping[str, int]:
        """See TransferSite. The bucket is not asked, because a container downloads all inputs anyway."""
        if self._parsed.shared_root:
            return {version.id: 0 for version in versions}
        return {version.id: version.output.size_bytes for version in versions}

    def probe(self) -> Route:
        """See TransferSite. Measures the rate of the bucket with one small object."""
        name, data = f"probe/{self._context.mark}", b"\0" * _PROBE_BYTES
        began = self._monotonic()
        self._bucket.put(name, data)
        middle = self._monotonic()
        self._bucket.get(name, _PROBE_BYTES)
        ended = self._monotonic()
        self._bucket.remove(name)
        size = float(_PROBE_BYTES)
        upload = TransferRate(transferred_bytes=size, seconds=max(1e-4, middle - began))
        download = TransferRate(transferred_bytes=size, seconds=max(1e-4, ended - middle))
        return Route(upload=upload, download=download)


def _locked(folder: Path) -> IO[str] | None:
    """Return the locked file of a site, or None if another object has the lock. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (folder / "owner.lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def site_mark(settings: Settings, site: Site) -> str:
    """Return the name that distinguishes the jobs and the data of this site and home from all others."""
    return mark_of(settings.home / "batch", site.name)


def make(
    settings: Settings, site: Site, doors: PodListeners, resolve: Callable[[str], str] | None = None
) -> BatchSite:
    """Opens a batch site, which does nothing with pods before `clean_up_previous` is called. `resolve`
    returns the value of a secret. Raises InputError, StorageError."""
    del doors  # the containers use the bucket only, so no listener is needed
    parsed = read(site)
    known = resolve or _no_secrets
    service = open_service(site, find("batches", parsed.service), known)
    # each home has its own folder, so that it can delete old data without asking other homes
    url = f"{parsed.bucket}/{site_mark(settings, site)}"
    return BatchSite(settings, site, parsed, service, open_bucket(site, parsed, url, service, known))


def _no_secrets(name: str) -> str:
    raise InputError(f"the secret {name!r} is not available here")
