"""The main loop of the pod: it receives messages of the control node, watches the jobs and sends events.

The pod sends the events in its journal to the control node over any kind of link.
"""

import gc
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from gridmill.domain.job import JobKind
from gridmill.domain.pod_protocol import (
    PROTOCOL,
    Ack,
    AttemptOrder,
    Events,
    Goodbye,
    Hello,
    PodOrder,
    SecretRequest,
    SecretValues,
    ServiceUpdate,
    Start,
    Stop,
    ToPod,
    Welcome,
)
from gridmill.domain.states import AttemptState
from gridmill.errors import InputError
from gridmill.plugins import find
from gridmill.pod import launch
from gridmill.pod.attempt import ProcessExit
from gridmill.pod.cleanup import CleanupProcess, sweep_attempts
from gridmill.pod.disk_guard import DiskLimits, PodDiskGuard
from gridmill.pod.empty_folders import EmptyFolders
from gridmill.pod.folders import PodFolder
from gridmill.pod.journal import Journal
from gridmill.pod.kill import OrphanKiller, kill_group_before_reaping
from gridmill.pod.launch import BLOCK_BYTES
from gridmill.pod.limits import PodLimits, make_limits
from gridmill.pod.network import own_address
from gridmill.pod.prefork import PreforkPool
from gridmill.pod.secret_requests import SecretRequests
from gridmill.pod.small_spares import SmallSpares, can_fork_small
from gridmill.pod.start import ProcessStarter, become_command
from gridmill.pod.supervisor import Supervisor
from gridmill.pod.zygote_client import ZygoteClient
from gridmill.ports.link import PodLink
from gridmill.settings import Settings
from gridmill.version import __version__

FIRST_BACK_OFF_SECONDS = 0.05
LONGEST_BACK_OFF_SECONDS = 1.0
_POLL_SECONDS = 0.25
_LISTEN_SECONDS = 2.0  # no longer wait, because `receive` also sends the heartbeats of the link


class ControlLink:
    """The link from the pod to its control node. `welcomed` is true after the control node has sent Welcome,
    until the link ends. `disconnected_since` is the time at which `welcomed` last became false."""

    def __init__(
        self,
        *,
        link: PodLink,
        order: PodOrder,
        journal: Journal,
        selector: selectors.BaseSelector,
        attempts: Callable[[], Mapping[str, AttemptState]],
        now: float,
    ) -> None:
        self.welcomed = False
        self.disconnected_since = now
        self._link, self._order, self._journal = link, order, journal
        self._selector, self._attempts = selector, attempts
        self._open = False
        self._watched: int | None = None
        self._sent = 0
        self._back_off = FIRST_BACK_OFF_SECONDS
        self._next_try = now
        self._next_listen = now
        self._readable = False

    def due(self) -> float:
        """Returns the monotonic time in seconds at which `turn` has something to do next."""
        return self._next_listen if self._open else self._next_try

    def turn(self, now: float) -> Sequence[ToPod]:
        """Opens the link if necessary, and reads from the link. Returns the messages of the control node,
        without Welcome."""
        if not self._open:
            if now < self._next_try or not self._connect(now):
                return ()
        elif not self._readable and now < self._next_listen:
            return ()
        self._readable = False
        self._next_listen = now + (_POLL_SECONDS if self._watched is None else _LISTEN_SECONDS)
        received = self._link.receive()
        others = [message for message in received or () if not self._is_welcome(message)]
        if received is None or self._has_closed():
            self._lost(now)
        return others

    def _has_closed(self) -> bool:
        """Returns whether the link has closed. The link may close after its last messages, and its
        descriptor number may then be reused for another file."""
        return self._watched is not None and self._link.fileno() is None

    def _connect(self, now: float) -> bool:
        if not self._link.connect() or not self._link.send([self._hello()]):
            self._link.close() if self._open else None
            self._next_try = now + self._back_off
            self._back_off = min(self._back_off * 2, LONGEST_BACK_OFF_SECONDS)
            return False
        self._open = True
        self._watch()
        return True

    def _hello(self) -> Hello:
        return Hello(
            pod_id=self._order.pod_id,
            deployment_id=self._order.deployment_id,
            secret=self._order.secret,
            protocol=PROTOCOL,
            version=__version__,
            attempts=self._attempts(),
            address=own_address(self._order.link),
        )

    def _watch(self) -> None:
        self._watched = self._link.fileno()
        if self._watched is not None:
            self._selector.register(self._watched, selectors.EVENT_READ, self._ready)

    def _ready(self) -> None:
        self._readable = True

    def _is_welcome(self, message: ToPod) -> bool:
        if not isinstance(message, Welcome):
            return False
        self._journal.acknowledge(message.acknowledged)
        self._sent = self._journal.acknowledged
        self.welcomed = True
        self._back_off = FIRST_BACK_OFF_SECONDS
        return True

    def _lost(self, now: float) -> None:
        if self._watched is not None:
            self._selector.unregister(self._watched)
            self._watched = None
        self._link.close()
        if self.welcomed:
            self.disconnected_since = now
        self._open = self.welcomed = False
        self._next_try = now + self._back_off
        self._back_off = min(self._back_off * 2, LONGEST_BACK_OFF_SECONDS)

    def deliver(self, now: float) -> None:
        """Sends as many unsent events of the journal as the link accepts."""
        if not self._open:
            return
        if self._link.pending() and not self._link.flush():
            self._lost(now)
        while self.welcomed and not self._link.pending():
            events = self._journal.after(self._sent)
            if not events:
                break
            self._sent = events[-1].number
            if not self._link.send([Events(events=events)]):
                self._lost(now)
        self._watch_writable()

    def send(self, message: SecretRequest) -> None:
        """Sends a message that is not in the journal. If the link is lost, the message is lost too, and the
        control node repeats the message that it answers."""
        if self.welcomed:
            self._link.send([message])

    def _watch_writable(self) -> None:
        """While data waits to be sent, makes the selector report when the link can be written to."""
        if self._watched is None:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._link.pending() else 0)
        if self._selector.get_key(self._watched).events != events:
            self._selector.modify(self._watched, events, self._ready)

    def close(self) -> None:
        """Closes the link."""
        self._link.close()


_LOG = logging.getLogger(__name__)
_RECONNECT_SECONDS, _LINE_SECONDS = 10.0, 120.0
_LONGEST_WAIT_SECONDS = 1.0
_GATHER_SECONDS = 0.004
"""If a job writes much, the pod waits this many seconds before it reads the pipe again, because one turn of
the loop costs as much for 8 KiB as for 200 KiB."""
_FAREWELL_SECONDS = 1.0


def should_end(
    *,
    idle: float,
    lonely: float,
    keep_seconds: float,
    orphan_seconds: float,
    all_acknowledged: bool,
    lease_seconds: float | None = None,
) -> bool:
    """Returns whether a pod that runs no job ends by itself.

    `idle` is the number of seconds since the last job ended, and `lonely` is the number of seconds since the
    last contact with a control node. The pod ends if both times are at least `keep_seconds`. If the pod has
    results that no control node has committed, it waits for `orphan_seconds` instead. While a control node
    restarts, the pod waits at least _RECONNECT_SECONDS for its connection. If the pod has a lease, it waits
    at least _LINE_SECONDS, because its connection may have been cut.
    """
    both = min(idle, lonely)
    patience = _RECONNECT_SECONDS if lease_seconds is None else min(_LINE_SECONDS, lease_seconds)
    if all_acknowledged and both >= keep_seconds and lonely >= min(patience, orphan_seconds):
        return True
    return both >= orphan_seconds


def is_given_up(*, lonely: float, lease_seconds: float | None) -> bool:
    """Returns whether a pod ends together with its jobs because its lease has expired.

    When the lease has expired, the control node treats the jobs as lost and may run them on another machine.
    `lonely` is the number of seconds since the last contact with a control node. A pod without a lease never
    ends for this reason.
    """
    return lease_seconds is not None and lonely >= lease_seconds


class Agent:
    """Runs the main loop of a pod. The method `run` returns when the pod has ended."""

    def __init__(self, order: PodOrder, folder: PodFolder, settings: Settings) -> None:
        now = time.monotonic()
        self._order, self._folder, self._settings = order, folder, settings
        self._selector = selectors.DefaultSelector()
        self._journal = Journal(folder.path / "journal")
        self._limits: PodLimits = make_limits(folder.path, order.capacity, cgroups=settings.cgroups)
        self._empty_folders = EmptyFolders(folder.emptied)
        self._cleanup = CleanupProcess(folder.trash, self._empty_folders)
        self._zygote_client = self._make_zygote_client()
        self._prefork_pool = self._make_spares()
        self._small = self._make_small()
        self._starter = self._make_starter()
        self._supervisor = self._make_supervisor()
        if self._zygote_client is not None:
            self._zygote_client.bring_up(self._supervisor, now)
        self._control_link = self._make_control_link(now)
        self._secret_requests = SecretRequests()
        self._ending: str | None = None
        self._end_by = float("inf")
        self._signalled = False
        self._child_ended = True
        self._wake_up()

    def _make_zygote_client(self) -> ZygoteClient | None:
        """Makes the client of the zygote, the process from which the pod forks jobs. Returns None for pods
        that run commands or services or have GPUs, on macOS (its libraries do not survive a fork), and if the
        zygote is switched off."""
        order = self._order
        unwanted = (
            order.type in (JobKind.COMMAND, JobKind.SERVICE)
            or order.capacity.gpus
            or not self._settings.zygote
        )
        if unwanted or sys.platform != "linux":
            return None
        environment = {**os.environ, "GRIDMILL_POD": str(self._folder.path)}
        return ZygoteClient(
            order.type, cpus=order.capacity.cpus, environment=environment, selector=self._selector
        )

    def _make_spares(self) -> PreforkPool | None:
        """Makes the pool of processes that are forked in advance for commands. Returns None on macOS, where
        a forked process must execute another program immediately."""
        if self._order.type != JobKind.COMMAND or sys.platform != "linux":
            return None
        return PreforkPool(self._limits, lambda launch: become_command(launch, self._folder.home))

    def _make_small(self) -> SmallSpares | None:
        """Makes the processes that are forked in advance for simple commands, or returns None in the same
        cases as `_make_spares`."""
        return SmallSpares(self._limits) if self._prefork_pool is not None and can_fork_small() else None

    def _make_starter(self) -> ProcessStarter:
        return ProcessStarter(
            folder=self._folder,
            base=dict(os.environ),
            nursery=self._zygote_client,
            spares=self._prefork_pool,
            small=self._small,
            grace_seconds=self._settings.grace_seconds,
        )

    def _make_supervisor(self) -> Supervisor:
        return Supervisor(
            folder=self._folder,
            journal=self._journal,
            selector=self._selector,
            limits=self._limits,
            starter=self._starter,
            leftovers=OrphanKiller(self._is_ours, self._is_alone),
            janitor=self._cleanup,
            empties=self._empty_folders,
            disk_guard=self._make_disk_guard(),
        )

    def _make_disk_guard(self) -> PodDiskGuard:
        limits = DiskLimits(size_bytes=self._settings.job_disk_bytes, files=self._settings.job_files)
        return PodDiskGuard(self._folder.home, limits, self._settings.disk_reserve_bytes)

    def _make_control_link(self, now: float) -> ControlLink:
        scheme, _, address = self._order.link.partition(":")
        return ControlLink(
            link=find("links", scheme)(address),
            order=self._order,
            journal=self._journal,
            selector=self._selector,
            attempts=self._supervisor.attempts,
            now=now,
        )

    def _is_ours(self, pid: int) -> bool:
        if self._small is not None and self._small.is_one(pid):
            return True
        return self._supervisor.is_leader(pid) or pid in (self._zygote, self._cleanup.pid, self._spare)

    @property
    def _zygote(self) -> int:
        return self._zygote_client.pid if self._zygote_client is not None else 0

    @property
    def _spare(self) -> int:
        return self._prefork_pool.pid if self._prefork_pool is not None else 0

    def _is_alone(self) -> bool:
        return len([state for state in self._supervisor.attempts().values() if state == "running"]) == 1

    def _wake_up(self) -> None:
        """Makes signals wake the selector. The handlers of signals only record the signal."""
        self._bell, ring = socket.socketpair()
        self._ring = ring
        for end in (self._bell, ring):
            end.setblocking(False)
        signal.set_wakeup_fd(ring.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._drain_wakeup)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGCHLD, self._on_child)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        self._child_ended = True

    def _drain_wakeup(self) -> None:
        try:
            self._bell.recv(4096)
        except BlockingIOError:
            return

    def hold(self, lifeline: int) -> None:
        """Ends the pod when the other end of the pipe `lifeline` is closed."""

        def cut() -> None:
            self._selector.unregister(lifeline)
            os.close(lifeline)
            self._end("its site has ended")

        self._selector.register(lifeline, selectors.EVENT_READ, cut)

    def run(self) -> None:
        """Runs the loop until the pod has ended."""
        while not self._turn():
            pass
        self._close()

    def _turn(self) -> bool:
        """Runs one turn of the loop, and returns True when the pod has ended."""
        for key, _ in self._selector.select(self._patience()):
            key.data()
        now = time.monotonic()
        if self._child_ended:
            self._child_ended = False
            self._reap()
        self._receive(now)
        if self._zygote_client is not None:
            self._zygote_client.tick(now)
        self._supervisor.tick(now)
        self._journal.flush()
        self._control_link.deliver(now)
        self._catch_up()
        if self._supervisor.loud:
            self._supervisor.loud = False
            time.sleep(_GATHER_SECONDS)
        return self._has_ended(now)

    def _catch_up(self) -> None:
        """Does work for which no job waits: it cleans up, and forks a process for the next command."""
        self._supervisor.tidy()
        if self._prefork_pool is not None and self._prefork_pool.wanted and self._ending is None:
            self._prefork_pool.refill()
        if self._small is not None and self._ending is None:
            self._small.refill()

    def _patience(self) -> float:
        if self._child_ended or self._signalled:
            return 0.0
        due = min(self._supervisor.due(), self._control_link.due())
        if self._zygote_client is not None:
            due = min(due, self._zygote_client.due())
        return min(max(0.0, due - time.monotonic()), _LONGEST_WAIT_SECONDS)

    def _reap(self) -> None:
        """Reaps each child process that has ended: the processes of attempts, the zygotes, and adopted
        orphans."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if self._supervisor.is_leader(ended.si_pid):
                kill_group_before_reaping(ended.si_pid)
            _, status, usage = os.wait4(ended.si_pid, 0)
            end = ProcessExit(
                status=status,
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                system_seconds=usage.ru_stime,
                read_bytes=usage.ru_inblock * BLOCK_BYTES,
                written_bytes=usage.ru_oublock * BLOCK_BYTES,
            )
            self._reaped(ended.si_pid, end)

    def _reaped(self, pid: int, end: ProcessExit) -> None:
        if pid == self._cleanup.pid:
            self._cleanup.ended()
        elif self._prefork_pool is not None and pid == self._spare:
            self._prefork_pool.died()
        elif self._small is not None and pid == self._small.pid:
            self._small.died()
        elif self._zygote_client is not None and pid == self._zygote:
            self._zygote_client.zygote_died(end.status or 0, time.monotonic())
        else:
            self._supervisor.reaped(pid, end)

    def _receive(self, now: float) -> None:
        """Receives the messages of the control node and does what they request."""
        messages = self._control_link.turn(now)
        self._starter.expect([message.order for message in messages if isinstance(message, Start)])
        for message in messages:
            match message:
                case Start(order=order) if self._ending is None and self._needs_values(order):
                    self._ask_for_values(message)
                case Start(order=order, environment=environment) if self._ending is None:
                    self._supervisor.start(order, environment)
                case SecretValues():
                    self._start_with_values(message)
                case ServiceUpdate():
                    self._supervisor.update_service(message)
                case Stop():
                    self._secret_requests.drop(message.attempt_id)
                    self._supervisor.stop(message.attempt_id, message.reason, message.grace_seconds)
                case Ack(number=number):
                    self._supervisor.acknowledge(number)
                case Goodbye(reason=reason):
                    self._end(reason)

    def _needs_values(self, order: AttemptOrder) -> bool:
        """Returns whether the attempt can start only with values of secrets. An attempt that was started
        before needs none."""
        return bool(order.job.secrets) and not self._supervisor.knows(order.attempt_id)

    def _ask_for_values(self, message: Start) -> None:
        try:
            request = self._secret_requests.ask(message)
        except InputError as error:
            self._supervisor.refuse(message.order, error)
        else:
            self._control_link.send(request)

    def _start_with_values(self, message: SecretValues) -> None:
        ready = self._secret_requests.receive(message)
        if ready is None or self._ending is not None:
            return
        if ready.trouble is not None:
            self._supervisor.refuse(ready.start.order, ready.trouble)
        else:
            self._supervisor.start(ready.start.order, ready.start.environment, ready.values)

    def _end(self, reason: str) -> None:
        """Stops all attempts. `_has_ended` returns True when all attempts have ended."""
        if self._ending is None:
            _LOG.info("pod_ending reason=%r", reason)
            self._ending = reason
            stop = self._supervisor.cut_short if self._signalled else self._supervisor.stop_all
            stop("its pod was ended", min(self._settings.grace_seconds, 2.0))

    def _has_ended(self, now: float) -> bool:
        if self._signalled and self._ending is None:
            self._end("the pod got a signal to end")
        if self._ending is None and self._is_given_up(now):
            self._end("no control node reached the pod within its lease")
        if self._supervisor.busy:
            return False
        if self._ending is None:
            self._end_when_unused(now)
            return False
        return self._has_flushed(now)

    def _is_given_up(self, now: float) -> bool:
        lonely = 0.0 if self._control_link.welcomed else now - self._control_link.disconnected_since
        return is_given_up(lonely=lonely, lease_seconds=self._order.lease_seconds)

    def _end_when_unused(self, now: float) -> None:
        if not self._control_link.welcomed and should_end(
            idle=now - self._supervisor.last_end,
            lonely=now - self._control_link.disconnected_since,
            keep_seconds=self._order.keep_seconds,
            orphan_seconds=self._order.orphan_seconds,
            all_acknowledged=self._journal.acknowledged == self._journal.last,
            lease_seconds=self._order.lease_seconds,
        ):
            self._end("the pod was not used for some time")

    def _has_flushed(self, now: float) -> bool:
        """Returns whether the control node has committed the last events. If the pod is connected, it waits
        a short time for this commit."""
        self._end_by = min(self._end_by, now + _FAREWELL_SECONDS)
        taken = self._journal.acknowledged == self._journal.last
        return taken or not self._control_link.welcomed or now >= self._end_by

    def _close(self) -> None:
        # not stopped with the attempts: a zygote that is told to end would look like one that failed
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._control_link.close()
        if self._zygote_client is not None:
            self._zygote_client.close()
        if self._prefork_pool is not None:
            self._prefork_pool.close()
        if self._small is not None:
            self._small.close()
        self._supervisor.close()
        self._journal.close()
        self._limits.close()
        sweep_attempts(self._folder)
        if self._journal.acknowledged == self._journal.last:
            shutil.rmtree(self._folder.path / "journal", ignore_errors=True)


def serve(order: PodOrder, folder: PodFolder, settings: Settings, lifeline: int | None = None) -> None:
    """Runs the pod that the order describes until the pod ends. If `lifeline` is given, the pod ends at the
    latest when this pipe is closed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    launch.adopt_orphans()
    gc.collect()
    # the garbage collector would write to pages of imported modules, and so copy them in each fork
    gc.freeze()
    agent = Agent(order, folder, settings)
    if lifeline is not None:
        agent.hold(lifeline)
    agent.run()
