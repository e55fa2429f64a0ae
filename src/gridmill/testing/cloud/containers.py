"""Runs the containers of simulated batch services as processes of this machine.

A container is a process in a folder of its own, with no other environment than that of its image and its job.
If the command of a container ends, its other processes are killed, as a container runtime does. Containers of
other simulations may have the same ids, so that no process is found by an id: see `container_init`.
"""

import os
import queue
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from gridmill.domain.frozen import dataclass
from gridmill.ports.clock import Clock
from gridmill.testing.cloud import container_init

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path in a container whose image sets none, as Docker sets it."""
_CANNOT_START = 127
_KILL_SECONDS = 60.0
"""The time in which all processes of a container end after they were killed."""
_FIRST = (sys.executable, "-I", "-S", container_init.__file__)

OnExit = Callable[[str, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A container image, as it is executed on this machine: `entry_point` is the command of the image, to
    which the command of a job is appended, and `environment` are the variables that the image sets."""

    entry_point: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the output of a container. `time` is Unix time in seconds of the clock of the simulation."""

    time: float
    text: str


@dataclass(slots=True)
class _Container:
    id: str
    process: subprocess.Popen[bytes]
    output: BinaryIO
    exit_fd: int
    on_exit: OnExit
    rest: bytes = b""


class Containers:
    """The containers of one simulation. Its methods return at once and can be called from any thread. The
    function `on_exit` of a container is called on a thread of this object, with the id of the container and
    its exit code: 128 plus the number of the signal if a signal ended it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._folder = Path(tempfile.mkdtemp(prefix="gridmill-containers-"))
        self._lines: dict[str, list[Line]] = {}
        self._containers: dict[str, _Container] = {}
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._is_closing = False
        # One thread starts all processes: the signal at the death of the parent is sent if that thread ends.
        self._thread = threading.Thread(target=self._run, name="containers", daemon=True)
        self._thread.start()

    def start(
        self, id: str, image: Image, command: tuple[str, ...], environment: Mapping[str, str], on_exit: OnExit
    ) -> None:
        """Starts a container. `id` is also its host name in its environment."""
        self._lines[id] = []
        self._order(lambda: self._start(id, image, command, environment, on_exit))

    def stop(self, id: str) -> None:
        """Sends SIGTERM to the command of a container. If the container has ended, nothing happens."""
        self._order(lambda: self._signal(id, signal.SIGTERM))

    def kill(self, id: str) -> None:
        """Kills all processes of a container. If the container has ended, nothing happens."""
        self._order(lambda: self._signal(id, container_init.KILL))

    def lines(self, id: str) -> list[Line]:
        """Returns the output of a container so far."""
        return list(self._lines.get(id, ()))

    def close(self) -> None:
        """Kills all containers and deletes their folders. The call can be repeated."""
        if not self._is_closing:
            self._order(self._close)
            self._thread.join()
            shutil.rmtree(self._folder, ignore_errors=True)

    # all that follows is called on the thread of the containers

    def _order(self, order: Callable[[], None]) -> None:
        if not self._is_closing:
            self._orders.put(order)
            os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        # a new container inherits the mask, so that it gets a signal that is sent before it waits for signals
        signal.pthread_sigmask(signal.SIG_BLOCK, container_init.AWAITED)
        while not self._is_closing:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                    self._obey()
                elif key.data in self._containers:
                    self._observe(self._containers[key.data], key.fd)
        self._selector.close()
        os.close(self._wake_fd)

    def _obey(self) -> None:
        while not self._orders.empty():
            self._orders.get()()

    def _start(
        self, id: str, image: Image, command: tuple[str, ...], environment: Mapping[str, str], on_exit: OnExit
    ) -> None:
        folder = self._folder / id
        (folder / "tmp").mkdir(parents=True)
        home = {"PATH": _PATH, "HOSTNAME": id, "HOME": str(folder), "TMPDIR": str(folder / "tmp")}
        argv = (*image.entry_point, *command)
        try:
            process = subprocess.Popen(
                (*_FIRST, str(os.getpid()), *argv),
                cwd=folder,
                env=home | dict(image.environment) | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._lines[id].append(Line(time=self._clock.now(), text=f"{error}"))
            shutil.rmtree(folder, ignore_errors=True)
            on_exit(id, _CANNOT_START)
            return
        self._watch(id, process, on_exit)

    def _watch(self, id: str, process: subprocess.Popen[bytes], on_exit: OnExit) -> None:
        assert process.stdout is not None
        output = process.stdout
        os.set_blocking(output.fileno(), False)
        container = _Container(id, process, output, os.pidfd_open(process.pid), on_exit)  # type: ignore[arg-type]
        self._containers[id] = container
        self._selector.register(container.output, selectors.EVENT_READ, id)
        self._selector.register(container.exit_fd, selectors.EVENT_READ, id)

    def _observe(self, container: _Container, fd: int) -> None:
        if fd == container.exit_fd:
            self._end(container)
        elif not self._read(container):
            self._selector.unregister(container.output)

    def _read(self, container: _Container) -> bool:
        try:
            data = os.read(container.output.fileno(), 65536)
        except BlockingIOError:
            return False
        *lines, container.rest = (container.rest + data).split(b"\n")
        now = self._clock.now()
        self._lines[container.id] += [Line(time=now, text=one.decode(errors="replace")) for one in lines]
        return bool(data)

    def _end(self, container: _Container) -> None:
        self._remove(container)
        code = container.process.returncode
        container.on_exit(container.id, code if code >= 0 else 128 - code)

    def _remove(self, container: _Container) -> None:
        """Kills the processes of a container, reads the rest of its output, and deletes its folder."""
        container.process.send_signal(container_init.KILL)
        try:
            container.process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            container.process.kill()
            container.process.wait()
        while self._read(container):
            continue
        if container.rest:
            text = container.rest.decode(errors="replace")
            self._lines[container.id].append(Line(time=self._clock.now(), text=text))
        for fileobj in (container.output, container.exit_fd):
            if fileobj in self._selector.get_map():
                self._selector.unregister(fileobj)
        container.output.close()
        os.close(container.exit_fd)
        del self._containers[container.id]
        shutil.rmtree(self._folder / container.id, ignore_errors=True)

    def _signal(self, id: str, number: signal.Signals) -> None:
        container = self._containers.get(id)
        if container is not None:
            container.process.send_signal(number)

    def _close(self) -> None:
        self._is_closing = True
        for container in list(self._containers.values()):
            self._remove(container)
