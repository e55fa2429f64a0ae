"""The zygote: a process that has imported the libraries of one type of job, and does nothing but fork jobs.

A pod starts its zygote as `python -m gridmill.pod.zygote TYPE FD`. Libraries that only some jobs of the type
need are imported before the first of these jobs is forked. The zygote runs no job, opens no connection and
uses no GPU. Therefore a forked child behaves like a new process that has already imported the libraries.
OpenBLAS gets only one thread in the zygote, so that there is no other thread when it forks. The children of
the zygote increase the number of threads.
"""

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import FrameType

from gridmill.codec import encode
from gridmill.domain.frozen import dataclass
from gridmill.errors import NotFoundError
from gridmill.jobs.main import keep_pandas_out, run, write_outcome
from gridmill.plugins import PREIMPORTS, find
from gridmill.pod.kill import kill_group_before_reaping
from gridmill.pod.launch import BLOCK_BYTES, Launch, Pipes, die_with_parent, enter, fork, receive


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteReport:
    """A message of a zygote to the pod. `kind` is `ready`, `forked` (attempt_id, pid), `ended` (pid, wait
    status, the resource use that wait() reported), or `failed` (attempt_id, message) if the zygote could not
    fork."""

    kind: str
    attempt_id: str = ""
    pid: int = 0
    status: int = 0
    cpu_seconds: float = 0.0
    system_seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    message: str = ""


class Zygote:
    """The zygote. The zygote answers on `link` (a SOCK_SEQPACKET socket, one message per packet) until the
    pod closes the link."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._children: set[int] = set()
        self._wakeup, self._ring = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for end in (self._wakeup, self._ring):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._reap)
        self._selector.register(link, selectors.EVENT_READ, self._answer)
        signal.set_wakeup_fd(self._ring.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def serve(self) -> None:
        """Answers requests until the pod has ended. All children end before."""
        self._send_report(ZygoteReport(kind="ready"))
        try:
            while True:
                for key, _ in self._selector.select():
                    key.data()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            for pid in self._children:
                kill_group_before_reaping(pid)

    def _send_report(self, report: ZygoteReport) -> None:
        self._link.sendall(encode(report))

    def _answer(self) -> None:
        received = receive(self._link)
        if received is None:
            raise EOFError
        launch, pipes = received
        bring(launch.imports)
        try:
            pid = fork(lambda parent: _be(launch, pipes, parent))
        except OSError as error:
            message = f"its process could not be started: {error.strerror}"
            self._send_report(ZygoteReport(kind="failed", attempt_id=launch.attempt_id, message=message))
        else:
            self._children.add(pid)
            self._send_report(ZygoteReport(kind="forked", attempt_id=launch.attempt_id, pid=pid))
        finally:
            pipes.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)
        while self._children:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            kill_group_before_reaping(found.si_pid)
            _, status, usage = os.wait4(found.si_pid, 0)
            self._children.discard(found.si_pid)
            spent = usage.ru_utime + usage.ru_stime
            ended = ZygoteReport(
                kind="ended",
                pid=found.si_pid,
                status=status,
                cpu_seconds=spent,
                system_seconds=usage.ru_stime,
                read_bytes=usage.ru_inblock * BLOCK_BYTES,
                written_bytes=usage.ru_oublock * BLOCK_BYTES,
            )
            self._send_report(ended)


def _ignore(number: int, frame: FrameType | None) -> None:
    """A signal handler that does nothing. The handler is needed because the kernel does not write to the
    wake-up descriptor if a signal has no handler."""


def _be(launch: Launch, pipes: Pipes, parent: int) -> None:
    """Runs the forked child, which is the process of the attempt."""
    enter(launch, pipes, parent, write_outcome)
    sys.argv = ["gridmill-job", launch.attempt_id]
    os.chdir(Path(launch.folder) / "work")
    _open_streams()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # otherwise all children would draw the same random numbers
    raise SystemExit(run(Path(launch.folder)))


def _open_streams() -> None:
    """Makes new output streams, because the streams of the zygote were made for a file. The streams of the
    job are pipes and are written line by line."""
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115  until the end
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def preload(kind: str) -> None:
    """Imports the libraries of jobs of this type. pandas is not imported, because no job uses it and
    importing it takes a third of a second."""
    names = PREIMPORTS.get(kind, ())
    if names:
        with contextlib.suppress(ImportError):
            keep_pandas_out()
    bring(names)
    with contextlib.suppress(ImportError, NotFoundError):
        find("jobs", kind)


def bring(names: Iterable[str]) -> None:
    """Imports each of these modules that is not imported yet. A module that cannot be imported is skipped,
    because the job reports the error later."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        with contextlib.suppress(Exception):  # a module built for another version can raise any error
            import_module(name)
    if missing:
        keep()


def keep() -> None:
    """Freezes all imported objects, because a garbage collection in a child would write to their memory
    pages and so copy these pages."""
    gc.collect()
    gc.freeze()


def main(kind: str, descriptor: int) -> None:
    """Imports the libraries of this type of job, and then answers requests."""
    die_with_parent(os.getppid())
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)
    preload(kind)
    keep()
    Zygote(link).serve()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
