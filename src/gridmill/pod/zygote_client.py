"""The pod's client of its zygote. The zygote is a prepared process that forks built-in jobs, and it is
replaced when it dies."""

import os
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from gridmill.codec import decode
from gridmill.domain.frozen import dataclass
from gridmill.pod.attempt import ProcessExit
from gridmill.pod.launch import MESSAGE_BYTES, Launch, Pipes, send, thread_environment
from gridmill.pod.outcome import describe
from gridmill.pod.zygote import ZygoteReport

_PROGRAM = (sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-m", "gridmill.pod.zygote")
"""The program suppresses the warning of newer Python versions about forking a process that has threads. The
only threads of the zygote belong to memory allocators, which are safe to fork."""
PATIENCE_SECONDS = 30.0
"""A zygote that is not ready after this number of seconds is abandoned. Jobs are then started as new
programs."""
_TRY_AGAIN_SECONDS = 0.005
_FAILURES = 3
"""If this many zygotes in a row died before they were ready, no other zygote is made."""


class ZygoteListener(Protocol):
    """Receives the events of the jobs' processes from the zygote's client. The supervisor implements this
    protocol."""

    def forked(self, attempt_id: str, pid: int) -> None:
        """The attempt's process exists."""

    def not_forked(self, attempt_id: str, trouble: str) -> None:
        """The process of the attempt could not be made, or it died with the zygote before its process id was
        known."""

    def launch_cold(self, attempt_id: str) -> None:
        """The attempt must be executed as a new program, because there is no zygote."""

    def reaped(self, pid: int, end: ProcessExit) -> None:
        """The process of the attempt has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingFork:
    launch: Launch
    pipes: Pipes


class ZygoteClient:
    """The pod's client of its zygote. The loop of the pod calls `tick`. After the loop has reaped the
    zygote, it calls `zygote_died`."""

    def __init__(
        self, kind: str, *, cpus: float, environment: Mapping[str, str], selector: selectors.BaseSelector
    ) -> None:
        self.pid = 0
        self._kind, self._selector = kind, selector
        threads = {**thread_environment(cpus, environment), "OPENBLAS_NUM_THREADS": "1"}
        self._environment = {**environment, **threads, "CUDA_VISIBLE_DEVICES": ""}
        self._listener: ZygoteListener | None = None
        self._link: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._failures = 0
        self._give_up_at = float("inf")
        self._try_again_at = 0.0
        self._queue: deque[_PendingFork] = deque()
        self._sent: dict[str, None] = {}
        self._children: dict[int, str] = {}

    def bring_up(self, listener: ZygoteListener, now: float) -> None:
        """Starts a zygote, unless one is running or no zygote can run."""
        self._listener = listener
        if self._link is not None or self._failures >= _FAILURES:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            self._child = subprocess.Popen(
                [*_PROGRAM, self._kind, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.pid, self._link, self._ready = self._child.pid, ours, False
        self._give_up_at = now + PATIENCE_SECONDS
        self._selector.register(ours, selectors.EVENT_READ, self._receive_reports)

    def request(self, launch: Launch, pipes: Pipes) -> bool:
        """Accepts a launch and its pipes, which are sent to the zygote as soon as the zygote is ready.
        Returns False if there is no zygote."""
        if self._link is None or self._failures >= _FAILURES:
            return False
        self._queue.append(_PendingFork(launch=launch, pipes=pipes))
        self._pass_on()
        return True

    def cancel(self, attempt_id: str) -> bool:
        """Cancels a launch. Returns False if the launch was already sent to the zygote."""
        for waiting in self._queue:
            if waiting.launch.attempt_id == attempt_id:
                waiting.pipes.close()
                self._queue.remove(waiting)
                return True
        return False

    def _pass_on(self) -> None:
        while self._ready and self._queue and self._link is not None:
            waiting = self._queue[0]
            try:
                send(self._link, waiting.launch, waiting.pipes)
            except BlockingIOError:
                self._try_again_at = time.monotonic() + _TRY_AGAIN_SECONDS
                return
            except OSError:
                self._launch_cold()
                continue
            self._queue.popleft()
            waiting.pipes.close()
            self._sent[waiting.launch.attempt_id] = None

    def _launch_cold(self) -> None:
        waiting = self._queue.popleft()
        waiting.pipes.close()
        if self._listener is not None:
            self._listener.launch_cold(waiting.launch.attempt_id)

    def _receive_reports(self) -> None:
        while self._link is not None and self._listener is not None:
            try:
                data = self._link.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                # only unregistered, because wait() reports the death of the zygote
                self._selector.unregister(self._link)
                self._link.close()
                self._link, self._ready = None, False
                return
            self._understand(decode(data, ZygoteReport), self._listener)

    def _understand(self, report: ZygoteReport, listener: ZygoteListener) -> None:
        match report.kind:
            case "ready":
                self._ready, self._failures, self._give_up_at = True, 0, float("inf")
                self._pass_on()
            case "forked":
                self._sent.pop(report.attempt_id, None)
                self._children[report.pid] = report.attempt_id
                listener.forked(report.attempt_id, report.pid)
            case "failed":
                self._sent.pop(report.attempt_id, None)
                listener.not_forked(report.attempt_id, report.message)
            case "ended":
                self._children.pop(report.pid, None)
                end = ProcessExit(
                    status=report.status,
                    cpu_seconds=report.cpu_seconds,
                    system_seconds=report.system_seconds,
                    read_bytes=report.read_bytes,
                    written_bytes=report.written_bytes,
                )
                listener.reaped(report.pid, end)

    def zygote_died(self, status: int, now: float) -> None:
        """Reports the ends of the zygote's children, which the kernel kills together with the zygote, and
        starts another zygote."""
        self._receive_reports()  # first, because the zygote may have sent messages before it died
        trouble = f"the process from which it was forked died: {describe(status)}"
        if not self._ready and self._give_up_at < float("inf"):
            self._failures += 1
        if self._child is not None:
            self._child.returncode = status
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
        self._link, self._ready, self.pid = None, False, 0
        self._end_children(trouble)
        if self._listener is not None:
            self.bring_up(self._listener, now)
        while self._queue and self._link is None:
            self._launch_cold()

    def _end_children(self, trouble: str) -> None:
        children, sent = tuple(self._children), tuple(self._sent)
        self._children.clear()
        self._sent.clear()
        if self._listener is not None:
            for pid in children:
                self._listener.reaped(pid, ProcessExit(status=None, trouble=trouble))
            for attempt_id in sent:
                self._listener.not_forked(attempt_id, trouble)

    def due(self) -> float:
        """Returns the monotonic time in seconds at which `tick` has something to do next."""
        if not self._ready:
            return self._give_up_at
        return self._try_again_at if self._queue else float("inf")

    def tick(self, now: float) -> None:
        """Sends waiting launches to the zygote, and abandons a zygote that does not become ready."""
        self._pass_on()
        if not self._ready and now >= self._give_up_at:
            self._failures, self._give_up_at = _FAILURES, float("inf")
            while self._queue:
                self._launch_cold()

    def close(self) -> None:
        """Ends the zygote."""
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None
        if self._child is not None and self._child.returncode is None and self.pid:
            os.waitpid(self.pid, 0)
            self._child.returncode = 0
