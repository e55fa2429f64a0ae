"""Turns a forked child into a job: the steps between fork and the job's code, and its thread settings.

Environment variables tell libraries how many threads to start.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import NoReturn

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass

MESSAGE_BYTES = 512 * 1024
"""Largest launch message, and largest message about it."""
_PIPES = 3
BLOCK_BYTES = 512
"""The unit in which wait() counts reads and writes of disks."""
EVENTS_FD = 3
"""The descriptor of the pipe for a job's reports (GRIDMILL_EVENTS_FD)."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_TO_GO = b"500"  # if the machine runs out of memory, the kernel ends jobs before pods and control nodes
_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start. `joins` are the cgroup.procs files of the cgroups to enter; `affinity` are its CPUs
    (empty: all). `folder` is the attempt's. A zygote imports `imports` before it forks."""

    attempt_id: str
    folder: str
    environment: Mapping[str, str]
    joins: tuple[str, ...] = ()
    affinity: tuple[int, ...] = ()
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """The job's ends of its pipes."""

    out: int
    err: int
    events: int = field(default=-1)

    def close(self) -> None:
        """Closes the job's ends, after the job has them."""
        for descriptor in (self.out, self.err, self.events):
            os.close(descriptor)


def make_pipes() -> tuple[Pipes, dict[str, int]]:
    """Opens the pipes: the job's ends, and the pod's ends by name. Raises OSError."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    pipes = Pipes(out=made[1], err=made[3], events=made[5])
    return pipes, {"out": made[0], "err": made[2], "events": made[4]}


def send(link: socket.socket, launch: Launch, pipes: Pipes) -> None:
    """Sends the launch over a SOCK_SEQPACKET to a process that forks or becomes the job. Raises OSError."""
    socket.send_fds(link, [encode(launch)], [pipes.out, pipes.err, pipes.events])


def receive(link: socket.socket) -> tuple[Launch, Pipes] | None:
    """Receives a launch; None if the other end is closed."""
    data, descriptors, _, _ = socket.recv_fds(link, MESSAGE_BYTES, _PIPES)
    if not data:
        return None
    out, err, events = descriptors
    return decode(data, Launch), Pipes(out=out, err=err, events=events)


def adopt_orphans() -> None:
    """Makes this process the parent of processes that the jobs' processes leave, so that it can find and reap
    them."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork(become: Callable[[int], None]) -> int:
    """Fork a child that calls `become` with the parent's pid and ends with it; returns the child's pid.

    Signals are blocked around the fork: the child shares the parent's wake-up descriptor until it has
    reset its handlers (`settle`), and a signal of its own must not wake the parent.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _be_the_child(become, parent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    return pid


def _be_the_child(become: Callable[[int], None], parent: int) -> NoReturn:
    code = 1
    try:
        become(parent)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  nothing may ever return into the parent's loop
        sys.excepthook(*sys.exc_info())
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def enter(launch: Launch, pipes: Pipes, parent: int) -> None:
    """Turns this process into a process of the attempt: own session, its descriptors, its cgroups, no
    inherited handlers."""
    os.setsid()
    _wire(pipes)  # first, so that later errors appear in the job's log
    settle(launch.joins, parent)
    _set_process_attributes(launch)


def settle(joins: tuple[str, ...], parent: int) -> None:
    """Enters the cgroups, resets inherited settings, dies with the parent, and is the first to be killed
    without memory."""
    for procs in joins:
        _write(procs, b"0")
    _reset_signals()
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", _FIRST_TO_GO)


def apply_launch(launch: Launch, pipes: Pipes) -> None:
    """The rest of `enter`, for a process that settled before its launch was known."""
    _wire(pipes)
    _set_process_attributes(launch)


def _set_process_attributes(launch: Launch) -> None:
    if launch.affinity:
        os.sched_setaffinity(0, launch.affinity)
    os.environ.clear()
    os.environ.update(launch.environment)


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the parent dies, so that no attempt runs without
    supervision."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _wire(pipes: Pipes) -> None:
    """Sets descriptors 0 to 3 for the job and closes all others."""
    null = os.open(os.devnull, os.O_RDONLY)
    sources = [_above(descriptor) for descriptor in (null, pipes.out, pipes.err, pipes.events)]
    for target, source in enumerate(sources):
        os.dup2(source, target, inheritable=True)
    os.closerange(EVENTS_FD + 1, os.sysconf("SC_OPEN_MAX"))


def _above(descriptor: int) -> int:
    """Moves the descriptor to a number above 0 to 3."""
    while descriptor <= EVENTS_FD:
        descriptor = os.dup(descriptor)
    return descriptor


VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)
_SAID = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SPINS = {"GOMP_SPINCOUNT": "30000"}
"""How often a thread of libgomp (PyTorch, scikit-learn, XGBoost) checks for more work before it sleeps: this
value takes about 0.1 ms; the default of 300,000 takes a millisecond.

If other processes use the CPUs too, spinning takes time from the thread that works: a small LSTM took 24 s
instead of 2 s. On free CPUs both values take the same time (libgomp's manual, "GOMP_SPINCOUNT").
"""


def thread_environment(cpus: float, base: Mapping[str, str]) -> Mapping[str, str]:
    """The thread settings: one thread per whole CPU, at least one. Waiting threads sleep early, unless the
    environment of the machine sets how they wait."""
    spins = {name: base[name] for name in _SAID if name in base} or _SPINS
    return dict.fromkeys(VARIABLES, str(max(1, int(cpus)))) | spins
