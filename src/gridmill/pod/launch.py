"""Turns a forked child process into a job: the steps between the fork and the code of the job, and the
settings for threads.

Environment variables set how many threads the libraries start.
"""

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import NoReturn

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.states import AttemptState, Cause
from gridmill.jobs.secret_values import SECRETS_FD

MESSAGE_BYTES = 512 * 1024
"""The largest size in bytes of a launch message, and of a reply to a launch message."""
_PIPES = 3
BLOCK_BYTES = 512
"""wait() counts the data that is read from and written to disks in units of this many bytes."""
EVENTS_FD = 3
"""The file descriptor of the pipe for the reports of a job (GRIDMILL_EVENTS_FD)."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# so that the kernel ends jobs before pods and control nodes if the machine runs out of memory
_FIRST_TO_GO = b"500"
_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process that will be started. `joins` are the cgroup.procs files of the cgroups that the process
    enters, `affinity` are the CPUs that the process may use (empty for all CPUs), and `folder` is the folder
    of the attempt. The zygote imports the modules in `imports` before it forks. The process reads `secrets`
    from an inherited file descriptor."""

    attempt_id: str
    folder: str
    environment: Mapping[str, str]
    joins: tuple[str, ...] = ()
    affinity: tuple[int, ...] = ()
    imports: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """The job's ends of the pipes between the job and the pod."""

    out: int
    err: int
    events: int = field(default=-1)

    def close(self) -> None:
        """Closes the job's ends of the pipes in this process, after the job has received them."""
        for descriptor in (self.out, self.err, self.events):
            os.close(descriptor)


def make_pipes() -> tuple[Pipes, dict[str, int]]:
    """Opens the pipes of a job. Returns the job's ends of the pipes, and the pod's ends by the names of the
    pipes. Raises OSError."""
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
    """Sends the launch over a SOCK_SEQPACKET socket to a process that forks the job or becomes the job.
    Raises OSError."""
    socket.send_fds(link, [encode(launch)], [pipes.out, pipes.err, pipes.events])


def receive(link: socket.socket) -> tuple[Launch, Pipes] | None:
    """Receives a launch, or returns None if the other end of the socket is closed."""
    data, descriptors, _, _ = socket.recv_fds(link, MESSAGE_BYTES, _PIPES)
    if not data:
        return None
    out, err, events = descriptors
    return decode(data, Launch), Pipes(out=out, err=err, events=events)


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned processes of its jobs, so that this process can find and
    reap these orphans."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork(become: Callable[[int], None]) -> int:
    """Forks a child process that calls `become` with the process id of the parent and then ends. Returns the
    process id of the child.

    Signals are blocked around the fork. The child shares the parent's wake-up descriptor until it has reset
    its signal handlers (`settle`), and a signal to the child must not wake the parent.
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


def enter(
    launch: Launch, pipes: Pipes, parent: int, write_outcome: Callable[[Path, AttemptOutcome], None]
) -> None:
    """Turns this process into a process of the attempt. The process gets its own session, its file
    descriptors and its cgroups, and loses the inherited signal handlers. If a cgroup was deleted, the process
    ends, and `write_outcome` writes the outcome `lost` into the folder of the attempt."""
    os.setsid()
    _wire(pipes)  # first, so that later errors appear in the job's log
    try:
        settle(launch.joins, parent)
    except OSError as error:
        if error.errno in _NO_GROUP and launch.joins:
            write_outcome(Path(launch.folder), _lost_group(launch, error))
            raise SystemExit(1) from error
        raise
    _set_process_attributes(launch)


_NO_GROUP = (errno.ENOENT, errno.ENODEV)
"""The error numbers for a control group that was deleted: before its file was opened, and after its file was
opened."""


def _lost_group(launch: Launch, error: OSError) -> AttemptOutcome:
    """Returns the outcome of an attempt whose control group was deleted, so that the attempt is retried.
    Without an outcome, the attempt would look like a program that failed with exit code 1."""
    group = os.path.dirname(error.filename or launch.joins[0])
    message = f"it did not start, because another program deleted its control group {group}"
    return AttemptOutcome(state=AttemptState.LOST, cause=Cause.LOST, message=message)


def settle(joins: tuple[str, ...], parent: int) -> None:
    """Enters the cgroups and resets inherited settings. The process then ends with its parent, and is the
    first to be killed if the machine runs out of memory."""
    for procs in joins:
        _write(procs, b"0")
    _reset_signals()
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", _FIRST_TO_GO)


def apply_launch(launch: Launch, pipes: Pipes) -> None:
    """Does the remaining steps of `enter` for a process that called `settle` before its job was known."""
    _wire(pipes)
    _set_process_attributes(launch)


def _set_process_attributes(launch: Launch) -> None:
    if launch.affinity:
        os.sched_setaffinity(0, launch.affinity)
    os.environ.clear()
    os.environ.update(launch.environment)
    if launch.secrets:
        os.environ[SECRETS_FD] = str(_readable(json.dumps(launch.secrets, ensure_ascii=False).encode()))


def _readable(data: bytes) -> int:
    """Returns an inheritable file descriptor from which this process, or the program that it executes, reads
    the data. No other process of the machine gets the descriptor, and no file has the data. Raises OSError if
    the system has no files in memory and the data is larger than a pipe."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("gridmill", 0)
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor
    descriptor, end = os.pipe()
    os.set_blocking(end, False)
    with os.fdopen(end, "wb", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError(errno.EFBIG, "the values of the secrets are too large")
    os.set_inheritable(descriptor, True)
    return descriptor


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
    """Asks the kernel to kill this process when its parent dies, so that no attempt runs without
    supervision."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _wire(pipes: Pipes) -> None:
    """Sets the file descriptors 0 to 3 for the job and closes all others."""
    null = os.open(os.devnull, os.O_RDONLY)
    sources = [_above(descriptor) for descriptor in (null, pipes.out, pipes.err, pipes.events)]
    for target, source in enumerate(sources):
        os.dup2(source, target, inheritable=True)
    os.closerange(EVENTS_FD + 1, os.sysconf("SC_OPEN_MAX"))


def _above(descriptor: int) -> int:
    """Moves a file descriptor to a number above 3 and returns this number."""
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
"""Sets how often a thread of libgomp (PyTorch, scikit-learn, XGBoost) checks for more work before it sleeps.
With this value, a thread checks for about 0.1 ms. The default value of 300,000 takes a millisecond.

If other processes use the CPUs too, spinning takes CPU time from the thread that works: a small LSTM took 24
s instead of 2 s. On free CPUs, both values of GOMP_SPINCOUNT lead to the same run time (see the manual of
libgomp).
"""


def thread_environment(cpus: float, base: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the environment variables for threads: one thread per whole CPU, and at least one thread.
    The variables also make waiting threads sleep early, unless the environment of the machine already sets
    how threads wait."""
    spins = {name: base[name] for name in _SAID if name in base} or _SPINS
    return dict.fromkeys(VARIABLES, str(max(1, int(cpus)))) | spins
