"""Starts pods as processes of this machine, each in its own session. The local site, the nodes of Ray and
farms use this module.

A pod is alive while it holds the lock in its folder. The site takes the lock for the pod and passes it on to
the pod, so that a started pod is never mistaken for a pod that was not started. The function `clear` removes
folders of ended pods on machines without a control node.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from gridmill.codec import decode, encode
from gridmill.disk_space import FULL, space_of
from gridmill.domain.amounts import POD_GPU_SHARES, POD_GPUS, Amounts
from gridmill.domain.pod_protocol import PodEvent, PodOrder
from gridmill.domain.site import Node, NodeUtilization
from gridmill.errors import UnavailableError
from gridmill.plugins import find
from gridmill.ports.site import PodReport, PodStatus
from gridmill.settings import Settings, as_variables
from gridmill.sites.machine import gpus, look_at_machine, memory_of_machine
from gridmill.sites.machine_memory import MemoryWatch
from gridmill.sites.preload import StandbyProcess, start_ahead

KEPT_SECONDS = 86400.0
"""The number of seconds for which the folder of an ended pod is kept. Users may look in the folder for the
reason why the pod ended, and Gridmill reads the last events of the pod from the folder."""


def clear(folder: Path) -> None:
    """Removes the folder of a pod if the pod has ended. The folder is renamed before it is deleted, so that
    no other process sees the folder with a part of its content."""
    if not (folder / "ended").exists():
        return
    gone = folder.with_name(f".gone-{folder.name}")
    with suppress(OSError):  # fails if another process removes the folder at the same time
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def clear_old(pods: Path, now: float) -> None:
    """Removes the given folders of pods that ended more than a day before `now` (Unix time)."""
    for mark in tuple(pods.glob("*/ended")):
        with suppress(OSError):
            if now - mark.stat().st_mtime > KEPT_SECONDS:
                clear(mark.parent)


LOCK_FD = "GRIDMILL_POD_LOCK_FD"
LIFELINE_FD = "GRIDMILL_POD_LIFELINE_FD"
GPUS = "gpus"
"""The key in the settings of a PodOrder whose value lists the numbers of the GPUs that only this pod uses,
separated by commas."""
_DISK = frozenset({"GRIDMILL_DISK_RESERVE", "GRIDMILL_JOB_DISK", "GRIDMILL_JOB_FILES"})
_MEMORY_SHARE = 0.8
_END_SECONDS = 4.0
_POLL_SECONDS = 0.01
_NOTED = 1000
NOT_CONFINED = "the pod could not be confined"
"""The start of a log line which shows that the confiner's program could not be started."""


class Confiner(Protocol):
    """Starts pods in confinement, so that the pods cannot harm other users. A farm uses it."""

    def command(self, order: PodOrder, folder: Path, words: Sequence[str]) -> list[str]:
        """Returns the command line of a program that runs as root and starts `words` in confinement."""

    def environment(self) -> Mapping[str, str | None]:
        """Returns the environment variables of a pod that differ from the variables of this process. The
        value None means that the variable is not set."""

    def pid(self, pod: str) -> int | None:
        """Returns the id of the process that supervises a pod, or None if there is no such process."""


class ProcessSite:
    """Implements SitePort with processes of this machine. Pods are found only by their folders, so the site
    of another control node finds the same pods. This class is safe to call from several threads.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        lifeline: bool = False,
        user: int | None = None,
        confiner: Confiner | None = None,
    ) -> None:
        """With `lifeline`, the pods end when this process ends. With `user`, the pods run as that Unix user,
        which requires root. The caller must then set the owner of the folders. The `confiner` starts the
        pods."""
        self._settings = settings
        self._user, self._confiner = user, confiner
        self._lifeline = os.pipe() if lifeline else None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ahead: StandbyProcess | None = None
        self._taking = threading.Lock()
        self._memory = MemoryWatch(settings.home)

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        return (Node(name=socket.gethostname(), capacity=measure_capacity(self._settings)),)

    def nodes(self) -> tuple[Node, ...]:
        """Returns the capacity of this machine that its processes may use. The capacity is measured once."""
        return self._nodes

    def utilization(self) -> Mapping[str, NodeUtilization]:
        """Returns the present load of this machine."""
        return {node.name: look_at_machine() for node in self._nodes}

    def link(self) -> str:
        """Returns the path of the Unix socket in the home, to which pods connect."""
        return f"unix:{self._settings.home / 'links.sock'}"

    def pod_home(self, pod_id: str) -> str:
        """Returns the home itself, so that pods share the caches in it."""
        return str(self._settings.home)

    def _folder(self, pod_id: str) -> Path:
        return self._settings.home / "pods" / pod_id

    def prepare(self) -> None:
        """Starts a process that imports all modules of a pod. The started process becomes the first pod."""
        # not for another user, because a confined pod cannot be made of a process of this user
        if self._ahead is None and self._user is None:
            self._ahead = start_ahead(self._environment())

    def bring_up(self, orders: Sequence[PodOrder]) -> None:
        """Starts each of these pods, unless the pod was started before. Raises UnavailableError."""
        try:
            for order in orders:
                self._bring_up(order)
        except OSError as error:
            why = space_of("home", self._settings.home).shortage if error.errno in FULL else ""
            raise UnavailableError(f"a pod could not be started: {why or error}") from error

    def _bring_up(self, order: PodOrder) -> None:
        folder = self._folder(order.pod_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _take_lock(folder)
        if lock is None:
            return
        try:
            if not _was_started(folder) and not _has_ended(folder):
                _write_order(folder, order)
                self._children[order.pod_id] = self._spawn(folder, lock, order)
                self._memory.again()
        finally:
            os.close(lock)

    def _spawn(self, folder: Path, lock: int, order: PodOrder) -> subprocess.Popen[bytes]:
        gpus = order.settings.get(GPUS)
        with self._taking:
            ahead, self._ahead = self._ahead, None
        with (folder / "log").open("ab") as log:
            if ahead is not None and ahead.become(folder, lock=lock, log=log.fileno()):
                return ahead.process
            return subprocess.Popen(
                self._words(order, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={
                    **self._environment(),
                    LOCK_FD: str(lock),
                    **self._line(),
                    **({POD_GPUS: gpus} if gpus is not None else {}),
                },
                pass_fds=(lock, self._lifeline[0]) if self._lifeline else (lock,),
                start_new_session=True,
                **({} if self._confiner is not None else self._as_user()),
            )

    def _words(self, order: PodOrder, folder: Path) -> list[str]:
        words = [sys.executable, "-P", "-m", "gridmill.pod", str(folder)]
        return words if self._confiner is None else self._confiner.command(order, folder, words)

    def _as_user(self) -> dict[str, Any]:
        """Returns the arguments for a process that runs as the user and has only the groups of this user."""
        user = self._user
        return {} if user is None else {"user": user, "group": user, "extra_groups": [], "umask": 0o077}

    def _line(self) -> dict[str, str]:
        return {LIFELINE_FD: str(self._lifeline[0])} if self._lifeline else {}

    def _environment(self) -> dict[str, str]:
        """Returns the environment of this process, with all settings as variables, wherever the settings
        come from."""
        settings = self._settings
        changes = self._confiner.environment() if self._confiner is not None else {}
        environment = {
            **{name: value for name, value in os.environ.items() if name != "GRIDMILL_FAULT"},
            "GRIDMILL_HOME": str(settings.home),
            "GRIDMILL_ROOT": str(settings.root),
            "GRIDMILL_GRACE": str(settings.grace_seconds),
            "GRIDMILL_CGROUPS": str(int(settings.cgroups)),
            POD_GPU_SHARES: str(settings.gpu_shares),
            "GRIDMILL_ZYGOTE": str(int(settings.zygote)),
            **{name: value for name, value in as_variables(settings).items() if name in _DISK},
        }
        return {name: value for name, value in {**environment, **changes}.items() if value is not None}

    def claimed_bytes(self) -> int:
        """Returns the memory in bytes that is promised to the running pods of this machine. The function
        holds the lock, so that no other thread starts a pod during the calculation."""
        folders = [path.parent for path in (self._settings.home / "pods").glob("*/order.json")]
        living = (folder for folder in folders if _is_locked(folder))
        return sum(
            decode((folder / "order.json").read_bytes(), PodOrder).capacity.memory_bytes for folder in living
        )

    def observe(self, pod_ids: Sequence[str]) -> Mapping[str, PodReport]:
        """Returns the reports on all these pods. Before the reports are made, all pods that died are cleaned
        up together."""
        self._reap()
        self._memory.look(time.monotonic())
        dead = [pod_id for pod_id in pod_ids if _died(self._folder(pod_id))]
        if dead:
            self._sweep(dead)
        return {pod_id: self._look(pod_id) for pod_id in pod_ids}

    def memory_problem(self) -> str:
        """Returns the last warning that this machine may run out of memory, or an empty text if there is
        none."""
        return self._memory.problem(time.monotonic())

    def undelivered_events(self, pod_id: str) -> Sequence[PodEvent]:
        """Returns the events in the pod's journal that the control node has not acknowledged."""
        read: Callable[[Path], Iterable[PodEvent]] = find("journals", "folder")
        return tuple(read(self._folder(pod_id) / "journal"))

    def _look(self, pod_id: str) -> PodReport:
        folder = self._folder(pod_id)
        if _has_ended(folder):
            return PodReport(status=PodStatus.GONE, message=_why_ended(folder))
        if not folder.is_dir():
            return PodReport(status=PodStatus.GONE, message="it was never started")
        if _is_locked(folder):
            return PodReport(status=PodStatus.RUNNING)
        if not _was_started(folder):
            return PodReport(status=PodStatus.GONE, message=_why_never_started(folder))
        if _has_ended(folder):  # looks again, because the pod may have ended between the two looks
            return PodReport(status=PodStatus.GONE, message=_why_ended(folder))
        return PodReport(
            status=PodStatus.UNKNOWN, message="the pod died, and some of its processes still run"
        )

    def _reap(self) -> None:
        for pod_id, child in tuple(self._children.items()):
            if child.poll() is not None:
                self._children.pop(pod_id, None)

    def _sweep(self, pod_ids: Iterable[str]) -> None:
        """Cleans up after dead pods with one process for each, because only the pod package handles cgroups
        and /proc."""
        sweepers = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "gridmill.pod.cleanup", str(self._folder(pod_id))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                **self._as_user(),
            )
            for pod_id in pod_ids
        ]
        for sweeper in sweepers:
            sweeper.wait()

    def tear_down(self, pod_ids: Sequence[str]) -> None:
        """Sends SIGTERM to the pods, then SIGKILL to the pods that do not end within seconds, and cleans up
        after the killed pods."""
        living = [pod_id for pod_id in pod_ids if _is_locked(self._folder(pod_id))]
        self._signal(living, signal.SIGTERM)
        living = self._wait(living, _END_SECONDS)
        self._signal(living, signal.SIGKILL)
        self._wait(living, _END_SECONDS)
        self._reap()
        dead = [pod_id for pod_id in pod_ids if _died(self._folder(pod_id))]
        if dead:
            self._sweep(dead)
        for pod_id in pod_ids:
            self._bar(pod_id)

    def _bar(self, pod_id: str) -> None:
        """Marks a pod that was torn down before it started, so that the pod never starts."""
        folder = self._folder(pod_id)
        # the file may also exist because a farm's job created it
        if _was_started(folder) or folder.is_file():
            return
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _take_lock(folder)
        if lock is not None:
            (folder / "ended").touch()
            os.close(lock)

    def _signal(self, pod_ids: Iterable[str], number: signal.Signals) -> None:
        for pod_id in pod_ids:
            pid = self._keeper(pod_id)
            if pid is not None and _is_locked(self._folder(pod_id)):
                _send(pid, number)

    def _keeper(self, pod_id: str) -> int | None:
        """Returns the id of the pod's process, or of the process that supervises the pod."""
        if self._confiner is not None:
            return self._confiner.pid(pod_id)
        child = self._children.get(pod_id)
        pid = child.pid if child is not None else _pid(self._folder(pod_id))
        return pid if pid is not None and self._is_theirs(pid) else None

    def _is_theirs(self, pid: int) -> bool:
        """Returns whether the process belongs to the user of the pods. The check is needed because pods of
        another user could write any process id into their folders."""
        if self._user is None:
            return True
        try:
            return os.stat(f"/proc/{pid}").st_uid == self._user
        except OSError:
            return False

    def _wait(self, pod_ids: Sequence[str], seconds: float) -> list[str]:
        """Returns the pods that are still alive after this number of seconds."""
        until = time.monotonic() + seconds
        living = list(pod_ids)
        while living and time.monotonic() < until:
            living = [pod_id for pod_id in living if _is_locked(self._folder(pod_id))]
            if living:
                time.sleep(_POLL_SECONDS)
        return living

    def close(self) -> None:
        """Closes the site. The pods continue."""
        if self._ahead is not None:
            self._ahead.end()
        for child in self._children.values():
            child.returncode = child.poll() or 0  # so that Python does not warn about a running child
        self._children.clear()


def _take_lock(folder: Path) -> int | None:
    """Takes the pod's lock; None if it lives."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_locked(folder: Path) -> bool:
    """Returns True while a pod is alive in the folder. The check takes a shared lock for a short time."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _was_started(folder: Path) -> bool:
    return (folder / "pid").exists()


def _has_ended(folder: Path) -> bool:
    return (folder / "ended").exists()


def _died(folder: Path) -> bool:
    return _was_started(folder) and not _has_ended(folder) and not _is_locked(folder)


def _why_never_started(folder: Path) -> str:
    """Returns the reason why the pod never started. If the program that confines the pod failed, the reason
    contains its error."""
    lines = _noted(folder / "log").splitlines()
    why = next((line for line in lines if line.startswith(NOT_CONFINED)), "")
    return f"it was never started{why and ': '}{why}"


def _why_ended(folder: Path) -> str:
    """Returns the recorded reason why a pod ended, if the pod did not end by itself."""
    return f"it {_noted(folder / 'ended') or 'has ended'}"


def _pid(folder: Path) -> int | None:
    try:
        return int(_noted(folder / "pid").split()[0])
    except (ValueError, IndexError):
        return None


def _noted(file: Path) -> str:
    """Returns the start of the file's content. Reading never waits, although a farm's jobs may replace the
    file with a FIFO."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), errors="replace") as opened:
            return opened.read(_NOTED).strip()
    except (OSError, ValueError):
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _write_order(folder: Path, order: PodOrder) -> None:
    """Writes the pod's order to a file that only this user can read, because the order contains the pod's
    secret."""
    descriptor = os.open(folder / "order.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode(order))


def measure_capacity(settings: Settings) -> Amounts:
    """Returns the capacity of this machine: the CPUs that this process may use, 80 % of the memory that it
    may use (the system needs the other 20 %), and all GPUs. If several jobs may share a GPU, each GPU counts
    as many times as it has shares."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = settings.memory_bytes or int(memory_of_machine() * _MEMORY_SHARE)
    shared = len(gpus()) * settings.gpu_shares
    return Amounts(cpus=settings.cpus or float(cpus), memory_bytes=memory, gpus=shared)
