"""This module has the control node, which consists of one lock and one loop that runs the ticks when an
event or a due time occurs."""

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress

from gridmill.control.ledger import Transaction
from gridmill.control.state import Control
from gridmill.control.steps.damage import report_new, set_right, summarize
from gridmill.control.steps.lease_records import left_text, provider_of
from gridmill.control.ticks.advance import advance
from gridmill.control.ticks.backfills import keep_backfills
from gridmill.control.ticks.budgets import check_budgets
from gridmill.control.ticks.dispatch import dispatch
from gridmill.control.ticks.early_inputs import transfer_early
from gridmill.control.ticks.look_elsewhere import reconsider_sites
from gridmill.control.ticks.measurements import refuse_measurements
from gridmill.control.ticks.observe import observe
from gridmill.control.ticks.receive import receive
from gridmill.control.ticks.rent import rent, show_heartbeat
from gridmill.control.ticks.schedules import keep_schedules
from gridmill.control.ticks.service_jobs import keep_service_jobs
from gridmill.control.ticks.service_pods import keep_pods
from gridmill.control.ticks.service_routes import keep_routes
from gridmill.control.ticks.services import keep_services
from gridmill.control.ticks.successors import keep_successors
from gridmill.control.ticks.tear_down import discard, reap, reap_now
from gridmill.domain.deployment import Deployment
from gridmill.domain.frozen import replace
from gridmill.domain.rental_terms import EXPORT
from gridmill.domain.run import JobRun, Run
from gridmill.domain.states import DeploymentState, JobState
from gridmill.errors import GridmillError, StorageError, StoreInUseError, explained
from gridmill.scheduler.renting import releasing

LONGEST_WAIT_SECONDS = 60.0
BACK_OFF_SECONDS = 1.0
GATHER_SECONDS = 0.02
CROWD = 16
"""If at least this many attempts are live, the node waits for a moment after each tick and collects messages
of pods. All messages that are collected during this wait need only one commit and one disk write. Calls of
use cases are not delayed by this wait. If fewer attempts are live, the node does not wait to collect
messages."""
LOUD_CHARACTERS = 16_000
"""The node also collects messages if the last commit contained at least this many characters of log text."""
LONGEST_END_SECONDS = 10.0
"""The number of seconds that a control node that stops waits for background actions."""
RETURN_LOOK_SECONDS = 0.5
SOUND_AFTER_SECONDS = 60.0
LATEST_NOT_BEFORE_SECONDS = 60.0
"""The longest backoff in seconds. A start time that is further in the future than this was written before
the clock was set back."""


class ControlNode:
    """The control node, which runs the ticks with one Control. Tests and the simulator call the method
    `tick` directly."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.lock = threading.RLock()
        self.changed = threading.Condition()
        self.watchers: list[Callable[[], None]] = []
        self.commits = 0
        self._wake = threading.Event()
        self._wake_immediately = threading.Event()
        self._ticked = 0.0
        self._ending = False
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        self._last_error = ""
        self.taken_over: StoreInUseError | None = None
        self._awaited: set[str] = set()
        self._await_until = 0.0
        self._has_loaded = False
        self._doubted: tuple[float, int] | None = None
        control.ledger.listeners.append(self._notify_waiters)
        control.ledger.followers.append(control.names.note)

    def tick(self) -> float:
        """Do all work that is possible now. The method returns the number of seconds until more work may be
        possible."""
        with self.lock:
            control = self.control
            if (left := self._left_to_await()) > 0:
                return left
            if control.ledger.doubtful:
                self._load()
            report_new(control.problems, control.ledger.store)
            starting = control.starting
            # all these ticks share one commit, because their effects may only be executed after it
            with control.ledger.staging():
                control.background.apply_results()
                control.rentals.apply_results()
                receive(starting, control.bring_ups)
                observe(control)
                advance(control)
                creation, now = control.run_creation, control.timeline.now()
                until_due = min(
                    keep_services(control.endings, control.reads, control.names, creation, now),
                    keep_service_jobs(control.endings, control.reads, control.service_jobs, now),
                    keep_schedules(control),
                    keep_backfills(control),
                    reconsider_sites(control.job_moves),
                )
                until_due = min(until_due, keep_successors(control.endings, control.sites, now))
                until_due = min(until_due, keep_pods(control.endings, now))
                keep_routes(control.endings, control.sites, now)
                check_budgets(starting, control.rentals)
                refuse_measurements(control.endings, now)
                wanted = dispatch(control)
                until_due = min(until_due, rent(control))
            until_due = min(until_due, reap(starting, control.bring_ups, control.sites, control.limits))
            discard(control.storage, control.problems, control.background, control.discarded)
            control.ledger.flush()
            transfer_early(starting, control.sites, control.early, control.limits)
            if self._is_sound():
                leases = control.ledger.snapshot.leases.values()
                until_due = min(until_due, show_heartbeat(control.sites, leases))
            more = control.background.has_more() or control.rentals.has_more()
            if more or control.candidates or not wanted.complete or self._has_moved_names():
                return 0.0
            waits = [LONGEST_WAIT_SECONDS, until_due]
            if control.ledger.snapshot.deployments:
                waits.append(control.next_observe - control.clock.monotonic())
            if wanted.again_at is not None:
                waits.append(wanted.again_at - control.timeline.now())
            return max(0.0, min(waits))

    def _has_moved_names(self) -> bool:
        """Return whether a service should look at its alias and at the tables behind its view."""
        services = self.control.ledger.snapshot.services.values()
        return self.control.names.may_have_moved and any(one.is_meant_to_run for one in services)

    def _is_sound(self) -> bool:
        """Return whether the store accepts commits. After a failure, a tick without changes proves nothing:
        only a commit, or a minute without a further failure, shows that the failure is over."""
        if self._doubted is not None:
            failed, commits = self._doubted
            is_over = self.control.clock.monotonic() - failed >= SOUND_AFTER_SECONDS
            if is_over or self.commits > commits:
                self._doubted = None
        return self._doubted is None

    def await_clients(self, seconds: float) -> None:
        """Hold back runs whose clients lost the previous control node until these clients reconnect, but at
        most for `seconds`. The runs are held back because their jobs need the environments of these
        clients."""
        with self.lock:
            self._awaited = {run.id for run in self.control.ledger.snapshot.runs.values() if run.attended}
            self._await_until = self.control.clock.monotonic() + seconds

    def client_is_back(self, run: str) -> None:
        """Continue the run of a client that has reconnected."""
        with self.lock:
            self._awaited.discard(run)
        self.wake_now()

    def _left_to_await(self) -> float:
        if not self._awaited:
            return 0.0
        left = self._await_until - self.control.clock.monotonic()
        if left <= 0:
            names, self._awaited = ", ".join(sorted(self._awaited)), set()
            self.control.problems.warn(
                f"no client has reconnected for {names}: these runs continue with the environment of this"
                f" control node"
            )
        return left

    def _load(self) -> None:
        """Read the records from the store, and check all work again that a crash may have interrupted."""
        control = self.control
        if self._has_loaded:  # the first time shows no failure
            self._doubted = control.clock.monotonic(), self.commits
        self._has_loaded = True
        control.ledger.load()
        control.counters.raise_to(control.ledger.store.counters())
        control.clear_caches()
        control.names.look_again()
        self._greet_again()
        snapshot = control.ledger.snapshot
        now = control.timeline.now()
        transaction = control.ledger.begin(control.timeline.now())
        for run in snapshot.runs.values():
            jobs = snapshot.job_runs_of(run.id)
            control.candidates.add(run.id, [job.id for job in jobs])
            for job in jobs:
                if job.not_before > now + LATEST_NOT_BEFORE_SECONDS:
                    transaction.put(_held_until(job, now))
        for deployment in snapshot.deployments.values():
            if deployment.idle_since is not None and deployment.idle_since > now:
                transaction.put(_idle_since(deployment, now))
        set_right(control.ledger, transaction)
        control.ledger.commit(transaction)
        report_new(control.problems, control.ledger.store)
        summarize(control.problems, control.ledger.store)

    def check_store(self) -> None:
        """Read the whole store in the background to find damaged records; if a record is damaged, all
        records are loaded again."""
        known = len(self.control.ledger.store.damage())
        if len(self.control.ledger.store.check()) > known:
            with self.lock:
                self.control.ledger.doubtful = True
            self.wake_now()

    def _greet_again(self) -> None:
        """Make every pod send a new Hello. Messages may have been lost, and the messages after a Hello make
        each pod and the store consistent again."""
        control = self.control
        control.channels.drop_all()

    def _notify_waiters(self) -> None:
        with self.changed:
            self.commits += 1
            self.changed.notify_all()
        for watcher in tuple(self.watchers):
            watcher()

    def wait_for_commit(self, seen: int, seconds: float) -> None:
        """Wait until `commits` differs from `seen`, or until the time is over."""
        with self.changed:
            self.changed.wait_for(lambda: self.commits != seen, timeout=seconds)

    @contextmanager
    def changing(self) -> Iterator[Transaction]:
        """Return a context manager with the transaction of a use case. The transaction begins with the
        records of the store and is committed at the end. After the commit, a tick runs. The tick also runs
        if the commit fails, because it finds out whether the commit reached the store."""
        try:
            with self.lock:
                if self.control.ledger.doubtful:
                    self._load()
                transaction = self.control.begin()
                yield transaction
                self.control.ledger.stage(transaction)
                self.control.ledger.flush()
        finally:
            self.wake_now()

    def wake(self) -> None:
        """Start a tick soon; this method may be called from any thread."""
        self._wake.set()

    def wake_now(self) -> None:
        """Start a tick immediately, without waiting for further messages."""
        self._wake_immediately.set()
        self._wake.set()

    def start(self) -> None:
        """Run the loop of the control node in its own thread."""
        self._thread = threading.Thread(target=self._loop, name="control", daemon=True)
        self._thread.start()

    def begin_end(self) -> None:
        """Start no more ticks, and end all calls that wait for new events."""
        self._ending = True
        self.wake_now()
        self._notify_waiters()

    def stop(self) -> None:
        """End the loop of the control node. Jobs and pods continue to run after the loop has ended."""
        self.begin_end()
        if self._thread is not None:
            self._thread.join()
        self.control.background.stop(LONGEST_END_SECONDS)
        self.control.rentals.calls.stop(LONGEST_END_SECONDS)
        self.control.rentals.forgetting.stop(LONGEST_END_SECONDS)

    @property
    def ending(self) -> bool:
        """Whether `stop` was called for this control node."""
        return self._ending

    def _loop(self) -> None:
        wait = 0.0
        while not self._ending:
            self._wake.wait(wait)
            if wait > 0:
                self._gather()
            self._wake.clear()
            self._wake_immediately.clear()
            wait = self._guarded(self.tick)
            self._ticked = self.control.clock.monotonic()

    def _gather(self) -> None:
        left = self._ticked + GATHER_SECONDS - self.control.clock.monotonic()
        ledger = self.control.ledger
        is_busy = len(ledger.snapshot.attempts) >= CROWD or ledger.text_size >= LOUD_CHARACTERS
        if left > 0 and is_busy:
            self._wake_immediately.wait(left)

    def _guarded(self, tick: Callable[[], float]) -> float:
        """Run one tick in the outermost loop. An error of the tick is logged, and the next tick begins with
        a fresh read of the store."""
        try:
            wait = tick()
            self._last_error = ""
            return wait
        # the store was unreachable for a while, so that another control node could become its owner
        except StoreInUseError as error:
            self.control.problems.warn(f"{error}: this control node ends")
            self.taken_over, self._ending = error, True
            self._notify_waiters()
        except GridmillError as error:
            self._log_error(explained(error))
        except Exception as error:  # noqa: BLE001  the outermost loop of the control node
            self.failure = error
            self._log_error(f"a tick failed: {error!r}")
        self.control.ledger.doubtful = True
        return BACK_OFF_SECONDS

    def _log_error(self, complaint: str) -> None:
        """Log an error once, and log it again only if it changes or occurs again after it has ended. For
        example, a full disk causes the same error several times a second for hours."""
        if complaint != self._last_error:
            self.control.problems.warn(complaint)
        self._last_error = complaint

    def release_idle(self) -> None:
        """Tear down every deployment that has no live attempt now."""
        with self.lock:
            control = self.control
            if control.ledger.doubtful:
                self._load()
            control.background.apply_results()
            self._release_idle()
            reap_now(control.starting, control.bring_ups, control.sites, control.limits)
            control.ledger.flush()

    def begin_release(self) -> None:
        """Start to tear down idle deployments in the background, so that a caller that has no work does not
        wait until the pods end. If the store cannot record the release of the deployments now, the control
        node releases them when it stops."""
        with self.lock, suppress(StorageError):
            if not self.control.ledger.doubtful:
                self._release_idle()
        self.wake_now()

    @property
    def rents_machines(self) -> bool:
        """Whether a lease is open, so that a machine or another resource may exist at a provider. A control
        node that ends earlier leaves the machine to its own timer."""
        return bool(self.control.ledger.snapshot.leases)

    @property
    def runs_services(self) -> bool:
        """Whether a service is meant to run, so that its alias has to be followed."""
        return any(one.is_meant_to_run for one in self.control.ledger.snapshot.services.values())

    def return_machines(self, seconds: float) -> None:
        """Return the rented machines on which no job runs, and wait for their end, but at most for
        `seconds`."""
        with self.lock, suppress(StorageError):
            if self.rents_machines and not self.control.ledger.doubtful:
                self._release_builds()
                self._release_idle(
                    only={one.provider for one in self.control.ledger.snapshot.leases.values()}
                )
        self.wake_now()
        until = self.control.clock.monotonic() + seconds
        while self._returns_machines() and not self._ending and self.control.clock.monotonic() < until:
            self.wait_for_commit(self.commits, RETURN_LOOK_SECONDS)

    def _returns_machines(self) -> bool:
        with self.lock:
            snapshot = self.control.ledger.snapshot
            return any(
                one.may_have_machine and not snapshot.attempts_on(one.pod_id)
                for one in snapshot.leases.values()
            )

    def warn_of_machines(self) -> None:
        """Print a warning about each rented machine that this control node leaves running."""
        with self.lock:
            sites = self.control.ledger.snapshot.sites
            for lease in self.control.ledger.snapshot.leases.values():
                if lease.may_have_machine:
                    site = sites.get(lease.provider)
                    exports = site is not None and bool(site.settings.get(EXPORT))
                    provider = provider_of(sites, lease.provider)
                    self.control.problems.warn(left_text(lease, provider, exports=exports))

    def _release_builds(self) -> None:
        """End the builds of images, because nobody would continue them."""
        transaction = self.control.begin()
        for lease in self.control.ledger.snapshot.leases.values():
            if lease.image_name:
                transaction.put(releasing(lease, "the control node ends", transaction.now))
        self.control.ledger.commit(transaction)

    def _release_idle(self, only: Container[str] | None = None) -> None:
        snapshot = self.control.ledger.snapshot
        transaction = self.control.begin()
        for deployment in snapshot.deployments.values():
            if only is not None and deployment.site not in only:
                continue
            if not any(snapshot.attempts_on(deployment.id)):
                transaction.put(
                    replace(deployment, state=DeploymentState.RELEASING, message="the control node ends")
                )
        self.control.ledger.commit(transaction)

    def active_runs(self) -> tuple[Run, ...]:
        """Return the runs that are not finished."""
        with self.lock:
            return tuple(self.control.ledger.snapshot.runs.values())

    def counts(self) -> tuple[int, int]:
        """Return the number of jobs that wait or are blocked, and the number of jobs that run."""
        with self.lock:
            states = [job.state for job in self.control.ledger.snapshot.job_runs.values()]
        waiting = sum(state in (JobState.BLOCKED, JobState.WAITING) for state in states)
        return waiting, sum(state == JobState.RUNNING for state in states)


def _held_until(job: JobRun, now: float) -> JobRun:
    return replace(job, not_before=now)


def _idle_since(deployment: Deployment, now: float) -> Deployment:
    return replace(deployment, idle_since=now)
