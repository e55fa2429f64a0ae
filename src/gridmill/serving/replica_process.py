"""A process of a replica, as its parent process starts and observes it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridmill.codec import encode
from gridmill.domain.frozen import dataclass
from gridmill.domain.serving import LoadedVersion, ReplicaReport, ReplicaState, ServiceOrder, Verification
from gridmill.serving.metrics import BOUNDS
from gridmill.serving.replica_plan import RunningReplica

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST_BYTES = 1 << 16
_REPLICA, _ROUTER = "gridmill.serving.replica", "gridmill.serving.router"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The requests of one replica since its start, as `Metrics.load` counts them."""

    answered: int = 0
    refused: int = 0
    durations: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)


class ReplicaProcess:
    """A started replica."""

    def __init__(
        self,
        number: int,
        order: ServiceOrder,
        folder: Path,
        listener: socket.socket,
        *,
        copies: int | None = None,
        module: str = "",
    ) -> None:
        """Start the process. The replica writes copies of requests to the descriptor `copies`. `module` is
        the module that runs, if it is no replica and no router."""
        self.number, self.order = number, order
        self.state = ReplicaState.STARTING
        self.started_at = time.time()
        self.ready_at: float | None = None
        self.since = self.heard = time.monotonic()
        self.failure = ""
        self.load = ReplicaLoad()
        self._busy_seconds = 0.0
        self._gpu_memory_bytes = self._gpu_needed_bytes = self._gpu_size_bytes = 0
        self._versions: tuple[LoadedVersion, ...] = ()
        self._text = b""
        self.beats, writing = os.pipe()
        os.set_blocking(self.beats, False)
        try:
            self._process = _start(number, order, folder, listener, writing, copies, module)
        finally:
            os.close(writing)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def read(self) -> None:
        """Read the signs of life that have arrived."""
        with suppress(BlockingIOError):
            while data := os.read(self.beats, _MOST_BYTES):
                self._text += data
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def exit_code(self) -> int | None:
        """Return the exit code of the process, or None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Ask the replica to answer its running requests and to end."""
        if self.state != ReplicaState.DRAINING:
            self._enter(ReplicaState.DRAINING)
        self._process.send_signal(signal.SIGTERM)

    def kill(self, reason: str) -> None:
        """End the process at once."""
        self.failure = reason
        self._process.kill()

    def end(self) -> None:
        """End the process at once, wait for its end, and release its pipe."""
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Release the pipe of an ended process."""
        os.close(self.beats)

    def observed(self, now: float) -> RunningReplica:
        """Return the observed state. `now` is a time of the monotonic clock."""
        return RunningReplica(
            number=self.number,
            order=self.order,
            state=self.state,
            since=self.since,
            silent_seconds=now - self.heard,
            busy_seconds=self._busy_seconds,
            memory_bytes=memory_bytes(self.pid),
        )

    def report(self, restarts: int, failure: str, failure_at: float | None) -> ReplicaReport:
        """Return the report of this replica."""
        return ReplicaReport(
            number=self.number,
            state=self.state,
            generation=self.order.generation,
            pid=self.pid,
            started_at=self.started_at,
            ready_at=self.ready_at,
            versions=self._versions,
            restarts=restarts,
            memory_bytes=memory_bytes(self.pid),
            gpu_memory_bytes=self._gpu_memory_bytes,
            gpu_needed_bytes=self._gpu_needed_bytes,
            gpu_size_bytes=self._gpu_size_bytes,
            last_failure=failure,
            last_failure_at=failure_at,
        )

    def _hear(self, beat: Mapping[str, Any]) -> None:
        self.heard = time.monotonic()
        if "failure" in beat:
            self.failure = beat["failure"]
            return
        self._busy_seconds = beat["busy_seconds"]
        self._gpu_memory_bytes = beat.get("gpu_memory_bytes", 0)
        self._gpu_needed_bytes = beat.get("gpu_needed_bytes", 0)
        self._gpu_size_bytes = beat.get("gpu_size_bytes", 0)
        if "load" in beat:  # a router reports none
            load = beat["load"]
            self.load = ReplicaLoad(**{**load, "durations": tuple(load["durations"])})
        self._versions = tuple(
            LoadedVersion(
                label=one["label"],
                verification=Verification(one["verification"]),
                differences=tuple(one["differences"]),
            )
            for one in beat["versions"]
        )
        if self.state == ReplicaState.STARTING:
            self.ready_at = time.time()
            self._enter(ReplicaState.READY)

    def _enter(self, state: ReplicaState) -> None:
        self.state, self.since = state, time.monotonic()


def _start(
    number: int,
    order: ServiceOrder,
    folder: Path,
    listener: socket.socket,
    beats: int,
    copies: int | None,
    module: str,
) -> "subprocess.Popen[bytes]":
    descriptors = (listener.fileno(), beats)
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", module or (_REPLICA if order.upstream is None else _ROUTER)),
            *map(str, (*descriptors, number, os.getpid(), folder)),
            *(("--copies", str(copies)) if copies is not None else ()),
        ],
        stdin=subprocess.PIPE,
        pass_fds=(*descriptors, *((copies,) if copies is not None else ())),
        env={**os.environ, "OMP_NUM_THREADS": str(order.threads)},
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stream:
        stream.write(encode(order))
    return process


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process, or 0 if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def is_replica_of(pid: int, folder: Path) -> bool:
    """Return whether a process is a replica or a router of the service in `folder`."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        is_ours = _REPLICA.encode() in words or _ROUTER.encode() in words
        return is_ours and os.fsencode(folder) in words
    return False
