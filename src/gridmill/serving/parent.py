"""The parent process of a service: it holds the listening socket, and starts, observes and replaces replicas.

Requests do not pass through the parent process. Its loop is small, so that it does not fail: a tick reads the
order and the signs of life, decides in `replica_plan`, acts, and writes the report.
"""

import logging
import os
import selectors
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gridmill.domain.serving import ReplicaReport, ReplicaState, ServiceOrder, ServiceReport, ServiceState
from gridmill.errors import InputError, UnavailableError, explained
from gridmill.http.server import listen_at, listen_at_path
from gridmill.serving.drift_monitor import DriftMonitor
from gridmill.serving.replica_plan import (
    Drain,
    Kill,
    Start,
    decide_order,
    decide_replicas,
    is_current,
    pause_seconds,
    same_replica,
)
from gridmill.serving.replica_process import ReplicaProcess, is_replica_of
from gridmill.serving.request_log import RequestLogUpkeep
from gridmill.serving.scaler import Scaler
from gridmill.serving.service_files import (
    OrderFile,
    lock_folder,
    read_report,
    write_api_keys,
    write_report,
)
from gridmill.serving.shadow_copies import forget_replica
from gridmill.serving.shadow_keeper import ShadowKeeper
from gridmill.serving.view_keepers import ViewKeepers

_LOG = logging.getLogger(__name__)
TICK_SECONDS = 0.1
_REPORT_SECONDS = 1.0
_CONNECTION = "connection"
"""Marks the listening socket in the selector, while no replica accepts connections."""
_BACKLOG = 4_096
_STEADY_SECONDS = 30.0
"""After this time without a failure, the next failure counts as the first again."""
_TAKE_OVER_SECONDS = 15.0
"""The time in which the replicas of an earlier parent process release the port."""


class Parent:
    """The parent process of one service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._lock = lock_folder(self._folder)
        self._file = OrderFile(self._folder)
        self._earlier = read_report(self._folder)
        order = self._file.changed()
        assert order is not None
        write_api_keys(self._folder, order)
        self._newest = self._target = order
        self._working: ServiceOrder | None = None
        self._replicas: dict[int, ReplicaProcess] = {}
        self._restarts: dict[int, int] = {}
        self._failed: dict[int, tuple[str, float]] = {}
        self._drift = DriftMonitor(self._folder, self._earlier.drift if self._earlier is not None else ())
        self._failures, self._failed_at = 0, 0.0
        self._start_at = 0.0
        self._problem = ""
        self._refused: ServiceOrder | None = None
        self._last_failure = ""
        self._last_failure_at: float | None = None
        self._started_at = time.time()
        self._reported: ServiceReport | None = None
        self._is_stopping = False
        self._scaler = Scaler(order, self._folder, time.monotonic())
        self._views = ViewKeepers(self._folder)
        self._shadow = ShadowKeeper(self._folder)
        self._selector = selectors.DefaultSelector()
        self._awaited: selectors.SelectorKey | None = None
        self._listener = self._take_port(order)
        self._log = RequestLogUpkeep(self._folder)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        with _woken_by_signals(self._selector):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            while not (self._is_stopping and not self._replicas):
                self.tick()
                for key, _ in self._selector.select(TICK_SECONDS):
                    if isinstance(key.data, ReplicaProcess):
                        key.data.read()
                    elif key.data == _CONNECTION:
                        self._scaler.wake(time.monotonic())
                    else:
                        with suppress(BlockingIOError):
                            os.read(key.fd, 4096)
        self._shadow.close()
        self._views.stop()
        self._listener.close()
        if self._newest.socket:
            Path(self._newest.socket).unlink(missing_ok=True)
        self._log.end()
        self._write(ServiceState.STOPPED)

    def tick(self) -> None:
        """Read the order, remove ended replicas, and bring the others closer to the order."""
        self._read_order()
        self._reap()
        used = (one.order for one in self._replicas.values())
        self._views.tick((self._newest, self._target, *filter(None, (self._working,)), *used))
        now = time.monotonic()
        if self._failures and now - self._failed_at > _STEADY_SECONDS:
            self._failures = 0
        self._scaler.decide(self._replicas.values(), now)
        running = [one.observed(now) for one in self._replicas.values()]
        wanted = decide_order(self._target, self._working, self._views.is_complete)
        order = replace(wanted, replicas=self._scaler.wanted)
        if self._is_stopping:
            for one in self._replicas.values():
                if one.state != ReplicaState.DRAINING:
                    one.drain()
        for action in decide_replicas(order, running, now=now, start_at=self._next_start(order)):
            match action:
                case Start(number=number):
                    self._start(number, order)
                case Drain(number=number, reason=reason):
                    self._replicas[number].drain()
                    if reason:
                        self._note_failure(number, reason)
                case Kill(number=number, reason=reason):
                    _LOG.error("replica %d is killed: %s", number, reason)
                    self._replicas[number].kill(reason)
        self._drift.look(now, self._target)
        self._log.look(now, self._newest.request_log, self._replicas)
        waits_for = self._views.why_shadow_waits(order)
        self._shadow.tick(order, now, is_wanted=self._has_ready(), waits_for=waits_for)
        self._settle()
        self._await_connection()
        self._write(self._state())

    def _await_connection(self) -> None:
        """While the service has no replica, wake up when a connection arrives. The kernel holds the
        connection until the first replica accepts it."""
        serving = any(one.state != ReplicaState.DRAINING for one in self._replicas.values())
        awaits = self._scaler.wanted == 0 and not serving and not self._is_stopping
        if awaits and self._awaited is None:
            self._awaited = self._selector.register(self._listener, selectors.EVENT_READ, _CONNECTION)
        elif not awaits:
            self._ignore_connections()

    def _ignore_connections(self) -> None:
        if self._awaited is not None:
            self._selector.unregister(self._awaited.fileobj)
            self._awaited = None

    def _next_start(self, order: ServiceOrder) -> float:
        """Return the time before which no replica of the order starts. A replica needs complete views."""
        is_waiting = self._is_stopping or not self._views.is_complete(order)
        return float("inf") if is_waiting else self._start_at

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _read_order(self) -> None:
        try:
            order = self._file.changed()
        except InputError as error:
            self._problem = explained(error)
            return
        if order is None or order.generation <= self._newest.generation:
            return
        self._problem = ""
        try:
            # a port that was free to choose is named by later orders, so that it stays the same
            write_api_keys(self._folder, order)
            if _is_elsewhere(order, self._newest, self._port()):
                self._move_to(order)
        except (InputError, UnavailableError) as error:
            # the replicas go on with the order before, which must not hide the problem
            self._problem, self._refused = explained(error), order
            return
        self._refused = None
        self._newest = self._target = order
        self._scaler.follow(order, time.monotonic())
        self._failures, self._start_at = 0, 0.0

    def _move_to(self, order: ServiceOrder) -> None:
        """Listen at the address of a new order. The replicas of the earlier order keep the earlier socket
        until they have been drained."""
        listener = _listen(order, order.port)
        self._ignore_connections()
        self._listener.close()
        self._listener = listener

    def _take_port(self, order: ServiceOrder) -> socket.socket:
        """Listen at the address of the order. If the port is free to choose, the port of the earlier parent
        process is preferred. Its replicas, which end when their parent process ends, may still hold it."""
        earlier = self._earlier
        port = order.port or (earlier.port if earlier is not None and earlier.host == order.host else 0)
        deadline = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            try:
                return _listen(order, port)
            except UnavailableError:
                left = self._end_left_replicas(kill=time.monotonic() > deadline - _TAKE_OVER_SECONDS / 2)
                if left and time.monotonic() < deadline:
                    time.sleep(TICK_SECONDS)
                elif order.port == 0 and port != 0:
                    port = 0
                else:
                    raise

    def _end_left_replicas(self, *, kill: bool) -> bool:
        """Signal the replicas of an earlier parent process to end. Returns whether there are any."""
        pids = [one.pid for one in self._earlier.replicas if one.pid] if self._earlier else []
        left = [pid for pid in pids if is_replica_of(pid, self._folder)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        return bool(left)

    def _start(self, number: int, order: ServiceOrder) -> None:
        replica = ReplicaProcess(
            number, order, self._folder, self._listener, copies=self._shadow.descriptor(order)
        )
        self._replicas[number] = replica
        self._selector.register(replica.beats, selectors.EVENT_READ, replica)

    def _reap(self) -> None:
        for number, one in list(self._replicas.items()):
            code = one.exit_code()
            if code is None:
                continue
            one.read()
            self._selector.unregister(one.beats)
            one.close()
            del self._replicas[number]
            self._scaler.retire(one)
            forget_replica(self._folder, number)
            self._log.complete(self._newest.request_log, self._replicas)
            if one.state != ReplicaState.DRAINING:
                self._failed_replica(one, code)

    def _failed_replica(self, one: ReplicaProcess, code: int) -> None:
        reason = one.failure or f"the replica ended with {_in_words(code)}"
        self._note_failure(one.number, reason)
        never_worked = one.state == ReplicaState.STARTING and same_replica(one.order, self._newest)
        if never_worked and self._failures >= self._newest.max_failures and self._working is not None:
            self._problem = reason
            self._target = self._working
            self._scaler.follow(self._working, time.monotonic())
            self._failures, self._start_at = 0, 0.0

    def _note_failure(self, number: int, reason: str) -> None:
        now = time.time()
        self._restarts[number] = self._restarts.get(number, 0) + 1
        self._failed[number] = (reason, now)
        self._last_failure, self._last_failure_at = reason, now
        self._failed_at = time.monotonic()
        self._failures += 1
        self._start_at = self._failed_at + pause_seconds(self._failures)
        _LOG.error("replica %d failed: %s", number, reason)

    def _settle(self) -> None:
        """Remember the newest order as the working order when all its replicas are ready."""
        if self._target is self._newest and self._is_in_effect():
            self._working = self._newest
            self._problem = self._problem if self._refused is not None else ""

    def _is_in_effect(self) -> bool:
        now = time.monotonic()
        running = [one.observed(now) for one in self._replicas.values()]
        ready = [one for one in running if one.state == ReplicaState.READY]
        return len(ready) == self._scaler.wanted and all(is_current(self._newest, one) for one in ready)

    def _has_ready(self) -> bool:
        return any(one.state == ReplicaState.READY for one in self._replicas.values())

    def _state(self) -> ServiceState:
        ready = self._has_ready()
        if self._is_stopping:
            return ServiceState.DRAINING
        if self._refused is not None or self._views.problem(self._target):
            return ServiceState.FAILED
        if self._target is not self._newest or (self._failures >= self._newest.max_failures and not ready):
            return ServiceState.FAILED
        if self._working is self._newest and self._is_in_effect():
            return ServiceState.READY
        return ServiceState.UPDATING if ready else ServiceState.STARTING

    def _write(self, state: ServiceState) -> None:
        """Write the report if it changed, and otherwise once a second."""
        host, port, socket_path = self._target.host, self._port(), self._newest.socket
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if self._newest.certificate_file else "http"
        report = ServiceReport(
            name=self._newest.name,
            state=state,
            generation=self._working.generation if self._working is not None else 0,
            seen_generation=(self._refused or self._newest).generation,
            address=f"unix:{socket_path}" if socket_path else f"{scheme}://{shown}:{port}",
            host=host,
            port=port,
            pid=os.getpid(),
            started_at=self._started_at,
            written_at=time.time(),
            replicas=self._replica_reports(),
            restarts=sum(self._restarts.values()),
            views=self._views.reports(),
            problem=self._problem or self._views.problem(self._target),
            last_failure=self._last_failure,
            last_failure_at=self._last_failure_at,
            drift=self._drift.drift,
            drift_counts=self._drift.counts,
            log_lost=self._log.lost,
            log=self._log.report,
            shadow=self._shadow.report,
            wanted=self._scaler.wanted,
            scaled_at=self._scaler.scaled_at,
            scale_reason=self._scaler.reason,
        )
        self._scaler.save(sum(one.state == ReplicaState.READY for one in self._replicas.values()))
        if self._reported is None or _is_news(self._reported, report):
            write_report(self._folder, report)
            self._reported = report

    def _port(self) -> int:
        if self._listener.fileno() >= 0:
            is_unix = self._listener.family == socket.AF_UNIX
            self._bound = 0 if is_unix else int(self._listener.getsockname()[1])
        return self._bound

    def _replica_reports(self) -> tuple[ReplicaReport, ...]:
        reports: list[ReplicaReport] = []
        for number in sorted({*self._replicas, *self._waiting()}):
            failure, at = self._failed.get(number, ("", None))
            restarts = self._restarts.get(number, 0)
            if number in self._replicas:
                reports.append(self._replicas[number].report(restarts, failure, at))
            else:
                reports.append(
                    ReplicaReport(
                        number=number,
                        state=ReplicaState.WAITING,
                        generation=self._target.generation,
                        restarts=restarts,
                        last_failure=failure,
                        last_failure_at=at,
                    )
                )
        return tuple(reports)

    def _waiting(self) -> list[int]:
        if self._is_stopping:
            return []
        missing = self._scaler.wanted - len(self._replicas)
        return [number for number in self._failed if number not in self._replicas][: max(0, missing)]


def _is_news(one: ServiceReport, other: ServiceReport) -> bool:
    def shape(report: ServiceReport) -> object:
        states = [(each.pid, each.state, each.versions) for each in report.replicas]
        scale = (report.wanted, report.scaled_at)
        versions = (report.generation, report.seen_generation)
        return report.state, versions, report.address, report.problem, states, scale, report.views

    return shape(one) != shape(other) or other.written_at - one.written_at >= _REPORT_SECONDS


def _is_elsewhere(order: ServiceOrder, before: ServiceOrder, port: int) -> bool:
    """Return whether the order names another address than the order before, which listens at `port`."""
    if order.socket or before.socket:
        return order.socket != before.socket
    return order.host != before.host or order.port not in (0, port)


def _listen(order: ServiceOrder, port: int) -> socket.socket:
    listener = listen_at_path(Path(order.socket)) if order.socket else listen_at(order.host, port)
    listener.listen(_BACKLOG)
    return listener


def _in_words(code: int) -> str:
    with suppress(ValueError):
        if code < 0:
            return signal.Signals(-code).name
    return f"exit code {code}"


class _woken_by_signals:  # noqa: N801  a context manager, which is used like a function
    """Wakes the selector when a signal arrives: SIGHUP after a change of the order, SIGCHLD after the end of
    a replica."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector

    def __enter__(self) -> None:
        self._reading, self._writing = os.pipe()
        for descriptor in (self._reading, self._writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._reading, selectors.EVENT_READ)

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.unregister(self._reading)
        os.close(self._reading)
        os.close(self._writing)
