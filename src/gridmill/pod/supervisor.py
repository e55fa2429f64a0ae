"""Supervises all attempts of a pod, from their Start message to their ENDED event. An attempt with a given
id is started only once, even after restarts."""

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Mapping
from typing import Any

from gridmill.codec import to_builtins
from gridmill.disk_space import FULL
from gridmill.domain.amounts import Amounts, show_bytes
from gridmill.domain.frozen import replace
from gridmill.domain.job import JobKind
from gridmill.domain.masking import Masking
from gridmill.domain.pod_protocol import AttemptOrder, AttemptOutcome, EventType, ServiceUpdate
from gridmill.domain.resource import MeasuredUse
from gridmill.domain.states import AttemptState, Cause
from gridmill.domain.storage_uri import below
from gridmill.errors import InputError
from gridmill.jobs.containers import read_record, remove_container
from gridmill.jobs.main import failed_outcome, write_outcome
from gridmill.pod.attempt import Attempt, AttemptStage, OutputReader, ProcessExit
from gridmill.pod.cleanup import CleanupProcess
from gridmill.pod.disk_guard import PodDiskGuard
from gridmill.pod.empty_folders import ATTEMPT, INNER, EmptyFolders
from gridmill.pod.folders import (
    PodFolder,
    create_attempt_folder,
    existing_output,
    own_outcome,
    write_order,
)
from gridmill.pod.inputs import take_back
from gridmill.pod.journal import Journal
from gridmill.pod.kill import OrphanKiller
from gridmill.pod.launch import make_pipes
from gridmill.pod.limits import AttemptMeter, PodLimits
from gridmill.pod.memory_use import remove_left
from gridmill.pod.network import is_free
from gridmill.pod.outcome import AttemptEnding, judge, port_in_use, was_terminated
from gridmill.pod.outputs import OutputCollection, left_by
from gridmill.pod.prefork import PreforkedProcess
from gridmill.pod.service_files import ServiceFiles
from gridmill.pod.small_spares import SmallSpare
from gridmill.pod.start import ProcessStarter

_LOOK_AGAIN_SECONDS = 0.005
_FULL_SECONDS = 0.05
_GIVE_UP_SECONDS = 5.0
_CUT = frozenset({Cause.STOPPED, Cause.SIGNAL, Cause.EXIT})


class Supervisor:
    """Supervises the attempts of one pod. The loop of the pod calls `tick`, `reap` and the functions that
    are stored as data in the selector."""

    def __init__(
        self,
        *,
        folder: PodFolder,
        journal: Journal,
        selector: selectors.BaseSelector,
        limits: PodLimits,
        starter: ProcessStarter,
        leftovers: OrphanKiller,
        janitor: CleanupProcess,
        empties: EmptyFolders,
        disk_guard: PodDiskGuard,
    ) -> None:
        self._folder, self._journal, self._selector = folder, journal, selector
        self._limits, self._starter, self._orphans = limits, starter, leftovers
        self._cleanup, self._empties, self._disk_guard = janitor, empties, disk_guard
        self._deserted: set[str] = set()
        self._live: dict[str, Attempt] = {}
        self._by_pid: dict[int, Attempt] = {}
        self._known_attempts: set[str] = set()
        self._unacknowledged: dict[str, tuple[int, AttemptState]] = {}
        self._held_back = False
        self._uncleaned: list[Attempt] = []
        self._done_with: list[str] = []
        self._record = os.open(folder.starts, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.last_end = time.monotonic()
        self.loud = False
        """Whether a job wrote much output since this attribute was last set to False."""

    # --- requests of the control node

    def attempts(self) -> Mapping[str, AttemptState]:
        """Returns the id of every attempt that runs, or that has ended but whose end is not acknowledged,
        with its state."""
        ended = {attempt_id: state for attempt_id, (_, state) in self._unacknowledged.items()}
        return {**dict.fromkeys(self._live, AttemptState.RUNNING), **ended}

    @property
    def busy(self) -> bool:
        """True while any attempt is running."""
        return bool(self._live)

    def knows(self, attempt_id: str) -> bool:
        """Returns whether the attempt was started, refused or stopped before."""
        return attempt_id in self._known_attempts

    def refuse(self, order: AttemptOrder, error: InputError) -> None:
        """Reports the failure of an attempt that cannot start, and refuses a later start of it."""
        if not self.knows(order.attempt_id):
            self._known_attempts.add(order.attempt_id)
            outcome = AttemptOutcome(
                state=AttemptState.FAILED, cause=Cause.INPUT, message=error.message, hint=error.hint
            )
            self._journal_end(order.attempt_id, order.token, outcome)

    def start(
        self,
        order: AttemptOrder,
        environment: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        """Starts an attempt with the environment of its client or of the pod, and with the values of the
        secrets that its job names. If the id of the attempt is already known, nothing happens."""
        attempt_id = order.attempt_id
        if attempt_id in self._known_attempts:
            return
        self._known_attempts.add(attempt_id)
        if order.gang is not None and not is_free(order.gang.me.port):
            self._journal_end(attempt_id, order.token, port_in_use(order.gang.me.port))
            return
        if (there := existing_output(order)) is not None:
            message = f"the output folder {there} exists already, and nothing was written to it"
            self._refuse(order, Cause.STORAGE, f"{message}; `gridmill recover` shows what made it")
            return
        now = time.monotonic()
        try:
            self._note(attempt_id)
            folder = self._folder.attempt(attempt_id)
            create_attempt_folder(folder, order, self._empties)
            if not self._starter.is_simple(order):
                write_order(folder, order)
            attempt = self._open(order, now, environment, secrets or {})
            if order.service is not None:
                attempt.service = ServiceFiles(folder / "work", now)
                attempt.service.write(order.service, order.views)
                attempt.meter.replace_killed()
        except FileExistsError:
            self._refuse(order, Cause.INTERNAL, f"attempt {attempt_id} was started before")
        except OSError as error:
            # a full disk may get space, so that a retry can succeed
            state = AttemptState.LOST if error.errno in FULL else AttemptState.FAILED
            self._refuse(order, Cause.STORAGE, f"the attempt could not be prepared: {error}", state)
        else:
            self._live[attempt_id] = attempt
            self._launch(attempt)

    def _note(self, attempt_id: str, pid: int = 0, start: int = 0) -> None:
        """Records the start of an attempt, for the cleanup after this pod has ended. Raises OSError."""
        os.write(self._record, f"{attempt_id} {pid} {start}\n".encode())

    def _refuse(
        self, order: AttemptOrder, cause: Cause, message: str, state: AttemptState = AttemptState.FAILED
    ) -> None:
        outcome = AttemptOutcome(state=state, cause=cause, message=message)
        self._journal_end(order.attempt_id, order.token, outcome)

    def _open(
        self,
        order: AttemptOrder,
        now: float,
        environment: Mapping[str, str] | None,
        secrets: Mapping[str, str],
    ) -> Attempt:
        """Makes the record of an attempt with its pipes and limits. The process of the attempt is not
        started yet."""
        timeout = order.job.timeout_seconds
        spare = self._spare(order)
        group = spare.group if spare is not None else self._limits.group(order.attempt_id, order.given)
        return Attempt(
            order=order,
            folder=self._folder.attempt(order.attempt_id),
            group=group,
            meter=AttemptMeter(order.given.memory_bytes, group, now, lambda: len(self._live) < 2),
            reader=OutputReader({}, self._emitter(order)),
            began=now,
            disk=self._disk_guard.begin(order, self._folder.attempt(order.attempt_id), now),
            deadline=None if timeout is None else now + timeout,
            preforked=spare,
            environment=environment,
            secrets=secrets,
            masking=Masking(secrets.values()) if secrets else None,
        )

    def _spare(self, order: AttemptOrder) -> PreforkedProcess | SmallSpare | None:
        """Returns a process that was forked in advance, with the limits of the order, if there is one."""
        spare = self._starter.spare(order)
        if spare is not None and not self._limits.hold(spare.group, order.given):
            spare.discard()
            if spare.group is not None:
                self._limits.release(spare.group)
            return None
        return spare

    def _emitter(self, order: AttemptOrder) -> Callable[[EventType, Mapping[str, Any]], None]:
        def emit(kind: EventType, body: Mapping[str, Any]) -> None:
            self._journal.append(order.attempt_id, order.token, time.time(), kind, body)

        return emit

    def _launch(self, attempt: Attempt, *, warm: bool = True) -> None:
        """Starts the process of the attempt, or asks the zygote to fork it."""
        try:
            pipes, ends = make_pipes()
        except OSError as error:
            self._ended_early(attempt, f"the pipes of the job could not be created: {error.strerror}")
            return
        attempt.reader = OutputReader(ends, self._emitter(attempt.order), attempt.masking)
        declared = attempt.order.job.cpus is not None
        affinity = self._limits.affinity(attempt.order.given, attempt.group, declared=declared)
        try:
            pid = self._starter.start(attempt, pipes, affinity, warm=warm)
        except OSError as error:
            self._ended_early(attempt, f"its process could not be started: {error.strerror}")
        except InputError as error:
            with contextlib.suppress(OSError):
                write_outcome(attempt.folder, failed_outcome(error))
            self._ended_early(attempt, str(error))
        else:
            if pid is not None:
                self.forked(attempt.order.attempt_id, pid)

    def _ended_early(self, attempt: Attempt, trouble: str) -> None:
        self._ended(attempt, ProcessExit(status=None, trouble=trouble))

    def forked(self, attempt_id: str, pid: int) -> None:
        """The caller must call this method when the process of the attempt exists."""
        attempt = self._live.get(attempt_id)
        if attempt is None:
            return
        attempt.pid, attempt.stage = pid, AttemptStage.RUNNING
        attempt.begin(time.monotonic())
        self._by_pid[pid] = attempt
        start = self._orphans.started(pid)
        # if the disk is full, a later pod finds the process by its cgroup or environment instead
        with contextlib.suppress(OSError):
            self._note(attempt_id, pid, start)
        self._emitter(attempt.order)(EventType.STARTED, {"pid": pid})
        self._watch(attempt)
        if attempt.kill_at is not None:
            self._orphans.terminate(attempt)

    def not_forked(self, attempt_id: str, trouble: str) -> None:
        """The caller must call this method if the zygote could not fork the process, or died before it
        reported the process."""
        attempt = self._live.get(attempt_id)
        if attempt is not None:
            self._ended_early(attempt, trouble)

    def launch_cold(self, attempt_id: str) -> None:
        """Executes an attempt as a new program, because the zygote does not fork it."""
        attempt = self._live.get(attempt_id)
        if attempt is not None:
            attempt.reader.end(time.monotonic())
            self._launch(attempt, warm=False)

    def update_service(self, update: ServiceUpdate) -> None:
        """Writes the newest order of a service for its process, and the content of its views. If the
        disk is full, the order is written after the next Hello. An unknown attempt is ignored."""
        attempt = self._live.get(update.attempt_id)
        if attempt is not None and attempt.service is not None:
            if update.given is not None and update.given != attempt.order.given:
                self._give(attempt, update.given)
            with contextlib.suppress(OSError):
                attempt.service.write(update.order, update.views)

    def _give(self, attempt: Attempt, given: Amounts) -> None:
        """Gives an attempt other CPUs and another memory limit, before its processes need them."""
        if self._limits.hold(attempt.group, given):
            attempt.order = replace(attempt.order, given=given)
            attempt.meter.give(given.memory_bytes)
            self._limits.spread(self._orphans.tree(attempt), given, attempt.group)

    def stop(self, attempt_id: str, reason: str, grace_seconds: float) -> None:
        """Ends an attempt. If the attempt is unknown, the supervisor reports its end and refuses a later
        start of it."""
        attempt = self._live.get(attempt_id)
        if attempt is not None and attempt.stage != AttemptStage.ENDING:
            attempt.stop_reason = attempt.stop_reason or reason
            self._terminate(attempt, grace_seconds)
        elif attempt is not None:
            self._stop_collecting(attempt, reason)
        elif attempt_id not in self._known_attempts:
            self._known_attempts.add(attempt_id)
            outcome = AttemptOutcome(state=AttemptState.STOPPED, cause=Cause.STOPPED, message=reason)
            self._journal_end(attempt_id, "", outcome)

    def _stop_collecting(self, attempt: Attempt, reason: str) -> None:
        """Stops storing the output of an attempt. The method is called for an attempt whose program
        succeeded, if storing its output takes long."""
        if attempt.collection is not None and attempt.collection.collected() is None:
            attempt.stop_reason = attempt.stop_reason or reason
            attempt.collection.cancel()

    def stop_all(self, reason: str, grace_seconds: float) -> None:
        """Ends all attempts."""
        for attempt_id in tuple(self._live):
            self.stop(attempt_id, reason, grace_seconds)

    def cut_short(self, reason: str, grace_seconds: float) -> None:
        """Ends all attempts. The method is called when a signal asks the pod to end. The jobs may have
        received the signal before the pod, so the ends of the jobs are not reported. The site can determine
        the real reason better."""
        for attempt in self._live.values():
            ended = attempt.exit is not None and not was_terminated(attempt.exit.status)
            attempt.cut = attempt.stop_reason is None and not ended
        self.stop_all(reason, grace_seconds)

    def _terminate(self, attempt: Attempt, grace_seconds: float) -> None:
        until = time.monotonic() + grace_seconds
        if attempt.kill_at is not None:
            attempt.kill_at = min(attempt.kill_at, until)
            return
        attempt.kill_at = until
        if attempt.stage == AttemptStage.QUEUED:
            if self._starter.cancel(attempt.order.attempt_id):
                self._ended(attempt, ProcessExit(status=None))
        elif attempt.stage == AttemptStage.RUNNING:
            self._orphans.terminate(attempt)

    def acknowledge(self, number: int) -> None:
        """Deletes the records of attempts whose end the control node has committed."""
        self._journal.acknowledge(number)
        for attempt_id, (at, _) in tuple(self._unacknowledged.items()):
            if at <= number:
                del self._unacknowledged[attempt_id]
                self._done_with.append(attempt_id)

    # --- events of processes

    def reaped(self, pid: int, end: ProcessExit) -> None:
        """The caller must call this method when a child process has ended. The child is the process of an
        attempt, or an orphan, which needs no action."""
        attempt = self._by_pid.get(pid)
        if attempt is not None and attempt.exit is None:
            self._ended(attempt, end)

    def is_leader(self, pid: int) -> bool:
        """Returns whether the process with this id was the process of an attempt."""
        return pid in self._by_pid

    def _ended(self, attempt: Attempt, end: ProcessExit) -> None:
        now = time.monotonic()
        attempt.exit, attempt.ended, attempt.stage = end, now, AttemptStage.ENDING
        attempt.look_again, attempt.give_up = now, now + _GIVE_UP_SECONDS
        attempt.meter.ended(attempt.pid, end.status)
        self._unwatch(attempt)
        self._try_to_end(attempt, now)

    def _try_to_end(self, attempt: Attempt, now: float) -> None:
        """Kills the remaining processes of the attempt, reads the remaining output, and reports the end of
        the attempt. If one of these steps is not complete, the loop of the pod calls the function again
        soon."""
        attempt.look_again = now + _LOOK_AGAIN_SECONDS
        if self._journal.full:
            attempt.look_again, attempt.give_up = now + _FULL_SECONDS, now + _GIVE_UP_SECONDS
            return
        clean = self._orphans.kill(attempt, now)
        if attempt.order.job.container is not None and not attempt.is_container_removed:
            # it waits for the runtime, which is rare: only jobs with containers have this step
            remove_container(attempt.folder, attempt.order.attempt_id)
            attempt.is_container_removed = True
        attempt.released = clean and attempt.group is not None  # certain, because its cgroup has no process
        if not attempt.reader.drain(now):
            return
        if attempt.may_be_cut(now):
            return
        if ((clean and not attempt.reader.open) or now > attempt.give_up) and self._has_collected(attempt):
            self._conclude(attempt, now)

    def _has_collected(self, attempt: Attempt) -> bool:
        """Returns whether the output of the command is ready to be stored. The first call starts collecting
        the output."""
        if not attempt.leaves_files:
            return True
        if attempt.collection is None:
            attempt.collection = OutputCollection(
                left_by(attempt.order, attempt.folder / "work"), attempt.folder
            )
            if attempt.collection.pid:
                self._by_pid[attempt.collection.pid] = attempt
        return attempt.collection.collected() is not None

    def _conclude(self, attempt: Attempt, now: float) -> None:
        attempt.reader.end(now)
        self._send_report(attempt, float("inf"))  # the last one, which may be newer than the look before
        for line in (*attempt.notes, *self._free_shared(attempt)):
            text = attempt.masked(f"gridmill: {line}")
            self._emitter(attempt.order)(EventType.LOG, {"stream": "err", "text": text})
        attempt.meter.finish()
        outcome = self._disk_guard.explained(attempt.disk, judge(self._ending(attempt, now)), now)
        outcome = outcome if attempt.masking is None else attempt.masking.outcome(outcome)
        self._drop_large_output(attempt, outcome)
        self._remove_attempt(attempt)
        del self._live[attempt.order.attempt_id]
        self.last_end = now
        if not (attempt.cut and outcome.cause in _CUT):
            self._journal_end(attempt.order.attempt_id, attempt.order.token, outcome)
        self._uncleaned.append(attempt)

    def _drop_large_output(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        """Deletes the files of an attempt that filled the disk or could not write all its files. No job
        needs these files, and other jobs wait for the space.

        The output folder of a gang is kept because its ranks share it. The output of a part of a job is kept
        because the outputs of all parts are combined later.
        """
        order = attempt.order
        own = order.output_uri.rpartition("/")[2] == order.attempt_id
        if outcome.cause in (Cause.DISK, Cause.STORAGE) and own and order.gang is None and order.part is None:
            self._cleanup.remove_tree(below(order.root, order.output_uri))

    def _free_shared(self, attempt: Attempt) -> tuple[str, ...]:
        """Removes files in /dev/shm that the attempt made and that no process uses. Returns a line about the
        removed files for the log of the attempt."""
        left = attempt.meter.left_behind()
        others = [other.meter for other in self._live.values() if other is not attempt]
        mine = {key: path for key, path in left.items() if not any(meter.knows(key) for meter in others)}
        freed = remove_left(mine)
        return (f"{show_bytes(freed)} that it left in /dev/shm were deleted\n",) if freed else ()

    def _remove_attempt(self, attempt: Attempt) -> None:
        self._by_pid.pop(attempt.pid, None)
        if attempt.collection is not None:
            self._by_pid.pop(attempt.collection.pid, None)

    def _ending(self, attempt: Attempt, now: float) -> AttemptEnding:
        order, end = attempt.order, attempt.exit or ProcessExit(status=None)
        is_command = order.job.kind == JobKind.COMMAND
        use = MeasuredUse(
            wall_seconds=now - attempt.began,
            cpu_seconds=attempt.meter.cpu_seconds(end.cpu_seconds),
            peak_memory_bytes=attempt.meter.peak_bytes,
            system_seconds=attempt.meter.system_seconds(end.system_seconds),
            disk_seconds=attempt.meter.disk_seconds,
            read_bytes=end.read_bytes,
            written_bytes=end.written_bytes,
        )
        return AttemptEnding(
            status=end.status,
            is_command=is_command,
            use=use,
            reported=own_outcome(attempt.folder) or self._starter.not_executed(attempt),
            shortage=attempt.meter.shortage,
            memory_limit=order.given.memory_bytes,
            timed_out=attempt.timed_out,
            timeout_seconds=order.job.timeout_seconds or 0.0,
            ignored_term=attempt.ignored_term,
            grace_seconds=self._starter.grace_seconds,
            stop_reason=attempt.stop_reason,
            trouble=end.trouble,
            in_gang=order.gang is not None,
            output_uri=order.output_uri,
            collected=attempt.collection.collected() if attempt.collection is not None else None,
            ended_for=attempt.disk.ended_for,
            container=_container(attempt),
        )

    def tidy(self) -> None:
        """Removes the files of ended attempts. The files are removed after the ends of the attempts were
        sent, because no job waits for the removal."""
        while self._uncleaned:
            attempt = self._uncleaned.pop()
            if attempt.group is not None:
                self._limits.release(attempt.group)
            if attempt.released:
                self._deserted.add(attempt.order.attempt_id)
            self._clear_work(attempt)
            # not removed for a gang, because other ranks may be about to write there
            if attempt.order.gang is None:
                folder = below(attempt.order.root, attempt.order.output_uri)
                self._cleanup.drop_empty(folder, keep=attempt.released and attempt.order.part is None)
        while self._done_with:
            attempt_id = self._done_with.pop()
            if attempt_id in self._deserted:
                self._deserted.discard(attempt_id)
                self._cleanup.clear(self._folder.attempt(attempt_id), ATTEMPT)
            else:
                self._cleanup.remove(self._folder.attempt(attempt_id))

    def _clear_work(self, attempt: Attempt) -> None:
        if attempt.released:
            self._cleanup.clear(attempt.folder / "work", INNER)
        else:
            self._cleanup.remove_large(attempt.folder / "work")
        if attempt.order.inputs:
            take_back(attempt.order)

    def _journal_end(self, attempt_id: str, token: str, outcome: AttemptOutcome) -> None:
        body = {"outcome": to_builtins(outcome)}
        event = self._journal.append(attempt_id, token, time.time(), EventType.ENDED, body)
        self._unacknowledged[attempt_id] = (event.number, outcome.state)

    # --- work of the loop

    def _watch(self, attempt: Attempt) -> None:
        if self._held_back:
            return
        for name, descriptor in attempt.reader.open.items():
            self._selector.register(descriptor, selectors.EVENT_READ, self._reading(attempt, name))

    def _unwatch(self, attempt: Attempt) -> None:
        for descriptor in attempt.reader.open.values():
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)

    def _reading(self, attempt: Attempt, name: str) -> Callable[[], None]:
        descriptor = attempt.reader.open[name]

        def read() -> None:
            if name in attempt.reader.open and descriptor in self._selector.get_map():
                attempt.reader.read(name, time.monotonic())
                self.loud |= attempt.reader.loud
                attempt.reader.loud = False
                if name not in attempt.reader.open:
                    self._selector.unregister(descriptor)

        return read

    def due(self) -> float:
        """Returns the monotonic time in seconds at which `tick` has something to do next."""
        return min((attempt.due() for attempt in self._live.values()), default=float("inf"))

    def tick(self, now: float) -> None:
        """Sends log texts, takes measurements, and continues the ends of attempts. The method also ends
        attempts that ran too long or used too much memory."""
        self._hold_back(self._journal.full)
        if now >= self._disk_guard.due and self._live:
            self._watch_disk(now)
        for attempt in tuple(self._live.values()):
            if attempt.due() > now:
                continue
            if attempt.stage == AttemptStage.ENDING:
                self._try_to_end(attempt, now)
            else:
                attempt.reader.tick(now)
                self._send_report(attempt, now)
                self._enforce(attempt, now)

    def _send_report(self, attempt: Attempt, now: float) -> None:
        """Sends the report of a service if it has changed."""
        report = attempt.service.look(now) if attempt.service and attempt.service.due <= now else None
        if report is not None:
            self._emitter(attempt.order)(EventType.REPORT, {"report": report})

    def _watch_disk(self, now: float) -> None:
        """Ends attempts that write too much, and notifies each running attempt once that a disk has too
        little space."""
        running = [one for one in self._live.values() if one.stage == AttemptStage.RUNNING]
        over = self._disk_guard.look((one.disk for one in running), now)
        for attempt in running:
            if any(one is attempt.disk for one in over):
                self._orphans.kill(attempt, now)
            elif attempt.disk.shortage and not attempt.disk.was_told:
                attempt.disk.was_told = True
                line = f"gridmill: {attempt.disk.shortage}; no attempt starts until space is free\n"
                self._emitter(attempt.order)(EventType.LOG, {"stream": "err", "text": line})

    def _hold_back(self, full: bool) -> None:
        """Stops reading the jobs' pipes while the journal is full. While the journal is full, the jobs wait
        in write(), so no output is lost."""
        if full == self._held_back:
            return
        self._held_back = full
        for attempt in self._live.values():
            if attempt.stage == AttemptStage.RUNNING:
                self._unwatch(attempt) if full else self._watch(attempt)

    def _enforce(self, attempt: Attempt, now: float) -> None:
        if attempt.kill_at is not None and attempt.kill_at <= now:
            if attempt.order.job.container is not None:
                remove_container(attempt.folder, attempt.order.attempt_id)
            self._orphans.kill(attempt, now)
            attempt.kill_at, attempt.ignored_term = now + 1.0, True
        if attempt.deadline is not None and attempt.deadline <= now:
            attempt.timed_out, attempt.deadline = True, None
            self._terminate(attempt, self._starter.grace_seconds)
        if (
            attempt.pid
            and attempt.meter.due <= now
            and attempt.meter.sample(self._orphans.tree(attempt), now)
        ):
            self._orphans.kill(attempt, now)

    def close(self) -> None:
        """Closes the files. All attempts must have ended before this call."""
        os.close(self._record)


def _container(attempt: Attempt) -> str:
    """Returns the name and the digest of the image in which the attempt ran, or nothing."""
    record = read_record(attempt.folder) if attempt.order.job.container is not None else None
    return f"{record.image.partition('@')[0]}@{record.digest}" if record is not None else ""
