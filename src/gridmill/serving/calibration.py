"""The calibration of a model version: the measurement of one replica with a rising number of connections.

The process of a calibration takes the place of the parent process of a service. It starts one replica, sends
the example row of the version to it, and writes the measured times, CPU seconds and memory as the outcome of
its attempt.
"""

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gridmill.codec import encode, to_builtins
from gridmill.domain.artifact import ArtifactKind, Output
from gridmill.domain.pod_protocol import AttemptOutcome
from gridmill.domain.service_size import CALIBRATION, Calibration, LoadPoint
from gridmill.domain.serving import ReplicaState, ServiceOrder
from gridmill.domain.states import AttemptState, Cause
from gridmill.errors import GridmillError, UnavailableError
from gridmill.http.server import listen_at, listen_at_path
from gridmill.machine_type import machine_type
from gridmill.serving.load_client import connect, send_requests
from gridmill.serving.replica_process import ReplicaProcess, memory_bytes
from gridmill.serving.service_files import OrderFile, lock_folder

CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
STEP_SECONDS, MOST_STEP_SECONDS, TOTAL_SECONDS = 0.4, 2.0, 8.0
"""The shortest and the longest time of one step, and the time after which no further step begins."""
LEAST_REQUESTS = 20
"""The answers that a step waits for, and at least two for each connection."""
GAIN = 1.05
"""Two steps in succession that raise the largest rate by less than this factor end the measurement."""
_PATIENCE_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


def calibrate(folder: Path) -> Calibration:
    """Measure the version of the order in `folder` on this machine. The field `created` of the result is
    empty. Raises UnavailableError if the replica does not start or does not answer, InputError."""
    lock = lock_folder(folder)
    order = OrderFile(folder).changed()
    assert order is not None
    with lock, _listening(order) as (listener, address), _replica(order, folder, listener) as replica:
        _wait_until_ready(replica, order)
        body = _example(address)
        send_requests(address, body, 1, seconds=0.1, requests=3, most_seconds=MOST_STEP_SECONDS)
        points = tuple(_points(replica, address, body))
        _send_largest(address, body, order)
        return Calibration(
            version=order.versions[0].label,
            machine=machine_type(),
            points=points,
            replica_bytes=_peak_bytes(replica.pid),
            code_bytes=sum(map(_peak_bytes, _descendants(replica.pid))),
            parent_bytes=memory_bytes(os.getpid()),
            start_seconds=(replica.ready_at or 0.0) - replica.started_at,
        )


@contextmanager
def _listening(order: ServiceOrder) -> Iterator[tuple[socket.socket, int | Path]]:
    """Listen at the Unix socket of the order, or else at a free port of this machine. At a farm, other users
    could connect to a port."""
    path = Path(order.socket) if order.socket else None
    with listen_at_path(path) if path is not None else listen_at("127.0.0.1", 0) as listener:
        listener.listen(max(CONNECTIONS) * 2)
        try:
            yield listener, path if path is not None else listener.getsockname()[1]
        finally:
            if path is not None:
                path.unlink(missing_ok=True)


@contextmanager
def _replica(order: ServiceOrder, folder: Path, listener: socket.socket) -> Iterator[ReplicaProcess]:
    replica = ReplicaProcess(0, order, folder, listener)
    try:
        yield replica
    finally:
        replica.kill("the calibration has ended")
        while replica.exit_code() is None:
            time.sleep(0.01)
        replica.close()


def _wait_until_ready(replica: ReplicaProcess, order: ServiceOrder) -> None:
    deadline = time.monotonic() + order.start_seconds
    while replica.state != ReplicaState.READY:
        replica.read()
        if replica.exit_code() is not None:
            replica.read()
            raise UnavailableError(
                f"{order.versions[0].label} cannot be served: {replica.failure or 'its process ended'}"
            )
        if time.monotonic() > deadline:
            raise UnavailableError(f"the replica was not ready after {order.start_seconds:g} s")
        time.sleep(0.02)


def _example(address: int | Path) -> bytes:
    """Return the body of the example request of the service, which has a row of the training data."""
    api = json.loads(_get(address, "/openapi.json"))
    content = api["paths"]["/predict"]["post"]["requestBody"]["content"]
    return json.dumps(content["application/json"]["example"]).encode()


def _send_largest(address: int | Path, body: bytes, order: ServiceOrder) -> None:
    """Send requests with as many rows as a batch may have, so that the measured memory includes them."""
    (row,) = json.loads(body)["rows"]
    large = json.dumps({"rows": [row] * order.max_batch}).encode()
    if len(large) <= order.max_body_bytes:
        send_requests(address, large, 2, seconds=0.0, requests=4, most_seconds=MOST_STEP_SECONDS)


def _get(address: int | Path, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1")
    try:
        connection.sock = connect(address)
        connection.sock.settimeout(_PATIENCE_SECONDS)
        connection.request("GET", path)
        return connection.getresponse().read()
    except OSError as error:
        raise UnavailableError(f"the replica did not answer GET {path}: {error}") from error
    finally:
        connection.close()


def _points(replica: ReplicaProcess, address: int | Path, body: bytes) -> Iterator[LoadPoint]:
    end, best, without_gain = time.monotonic() + TOTAL_SECONDS, 0.0, 0
    for connections in CONNECTIONS:
        point = _point(replica, address, body, connections)
        yield point
        without_gain = 0 if point.rate_per_second > best * GAIN else without_gain + 1
        best = max(best, point.rate_per_second)
        if without_gain == 2 or time.monotonic() > end:
            return


def _point(replica: ReplicaProcess, address: int | Path, body: bytes, connections: int) -> LoadPoint:
    cpu, batches = _cpu_seconds(replica.pid), _batches(address)
    answers = send_requests(
        address,
        body,
        connections,
        seconds=STEP_SECONDS,
        requests=max(LEAST_REQUESTS, 2 * connections),
        most_seconds=MOST_STEP_SECONDS,
    )
    used, after = _cpu_seconds(replica.pid) - cpu, _batches(address)
    replica.read()
    ordered, count = sorted(answers.latencies), len(answers.latencies)
    if not count:
        raise UnavailableError(f"the replica answered no request within {MOST_STEP_SECONDS:g} s")
    rows, executed, seconds = (late - early for early, late in zip(batches, after, strict=True))
    return LoadPoint(
        connections=connections,
        rate_per_second=count / answers.seconds,
        mean_seconds=sum(ordered) / count,
        p99_seconds=ordered[min(count - 1, int(0.99 * count))],
        cpu_seconds=used / count,
        batch_rows=rows / max(1, executed),
        batch_seconds=seconds / max(1, executed),
    )


def _batches(address: int | Path) -> tuple[float, float, float]:
    """Return the rows, the number of batches and the seconds in which the model computed them."""
    (stats,) = json.loads(_get(address, "/v2/models/stats"))["model_stats"]
    return (
        stats["inference_count"],
        stats["execution_count"],
        stats["inference_stats"]["compute_infer"]["ns"] / 1e9,
    )


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of all processes that it has started."""
    return sum(map(_own_cpu_seconds, (pid, *_descendants(pid))))


def _own_cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, and of its children that have ended."""
    with suppress(OSError, IndexError, ValueError):
        return sum(map(int, _stat_fields(pid)[11:15])) / _TICKS
    return 0.0


def _descendants(pid: int) -> tuple[int, ...]:
    """Return the processes that a process has started, directly or not, such as the code of a model."""
    children: dict[int, list[int]] = {}
    for one in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
        with suppress(OSError, IndexError, ValueError):
            children.setdefault(int(_stat_fields(one)[1]), []).append(one)
    family = [pid]
    for one in family:
        family += children.get(one, ())
    return tuple(family[1:])


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name of the program, which may contain spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _peak_bytes(pid: int) -> int:
    """Return the largest resident memory of a process so far."""
    with suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return memory_bytes(pid)


def write_calibration(folder: Path) -> None:
    """Calibrate, and write the outcome of the attempt whose working folder is `folder`."""
    try:
        output = Output(
            kind=ArtifactKind.FILES, uri="", details={CALIBRATION: to_builtins(calibrate(folder))}
        )
        outcome = AttemptOutcome(state=AttemptState.SUCCEEDED, outputs=(output,))
    except GridmillError as error:
        outcome = AttemptOutcome(
            state=AttemptState.FAILED, cause=Cause.INPUT, message=error.message, hint=error.hint
        )
    draft = folder.parent / "outcome.json.partial"
    draft.write_bytes(encode(outcome))
    draft.replace(folder.parent / "outcome.json")
