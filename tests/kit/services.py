"""A service as a user has it: a parent process with replicas, and clients that send requests to it."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridmill.domain.serving import ReplicaState, ServiceOrder, ServiceReport, ServiceState
from gridmill.serving.service_files import read_report, write_order

PATIENCE_SECONDS = 90.0


def wait_for(what: str, test: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What `test` returns, as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (result := test()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)
    return result


class Service:
    """A running parent process. As a context, it is ended with its replicas."""

    def __init__(self, folder: Path, order: ServiceOrder) -> None:
        self.folder, self.order = folder, order
        folder.mkdir(parents=True, exist_ok=True)
        write_order(folder, order)
        self.start()

    def start(self) -> None:
        """Start a parent process."""
        with (self.folder / "log").open("ab") as log:
            self.parent = subprocess.Popen(
                [sys.executable, "-m", "gridmill.serving", str(self.folder)], stdout=log, stderr=log
            )

    def __enter__(self) -> "Service":
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """End the service, and return the exit code of its parent process."""
        pids = self.pids()
        self.parent.send_signal(signal.SIGTERM)
        try:
            return self.parent.wait(30)
        finally:
            for pid in (self.parent.pid, *pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.parent.wait()

    def log(self) -> str:
        """What the processes wrote."""
        return (self.folder / "log").read_text("utf-8")

    def report(self) -> ServiceReport:
        """The newest report."""
        report = read_report(self.folder)
        assert report is not None
        return report

    def pids(self) -> list[int]:
        """The processes of the replicas."""
        report = read_report(self.folder)
        return [one.pid for one in report.replicas if one.pid] if report else []

    def ready_pids(self) -> set[int]:
        """The processes of the replicas that are ready."""
        return {one.pid for one in self.report().replicas if one.state == ReplicaState.READY and one.pid}

    def update(self, order: ServiceOrder) -> None:
        """Write an order, and wake the parent process."""
        self.order = order
        write_order(self.folder, order)
        self.parent.send_signal(signal.SIGHUP)

    def wait_ready(self) -> ServiceReport:
        """The report as soon as the newest order is in effect."""

        def ready() -> ServiceReport | None:
            report = read_report(self.folder)
            assert self.parent.poll() is None, self.log()
            good = report and report.state == ServiceState.READY and report.pid == self.parent.pid
            return report if good and report.generation == self.order.generation else None

        return wait_for("the service being ready", ready)

    def text(self, path: str) -> str:
        """The text of an answer on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.report().port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def call(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """The status and the JSON of an answer on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.report().port, timeout=60)
        try:
            content = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, content, headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()


class Load:
    """Clients that send one request after the other on connections that stay open. As a context, the load
    ends at its end. With `retries`, a request on a connection that was closed is sent once more."""

    def __init__(self, port: int, body: object, clients: int = 4, *, retries: int = 0) -> None:
        self._port, self._body, self._retries = port, json.dumps(body).encode(), retries
        self.statuses: list[int] = []
        self.versions: list[str] = []
        self.failures: list[str] = []
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        wait_for("an answer", lambda: self.statuses)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)

    def wait_for_more(self, number: int) -> None:
        """Wait until this number of further answers has arrived."""
        before = len(self.statuses)
        wait_for(f"{number} more answers", lambda: len(self.statuses) >= before + number)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._end.is_set():
            for attempt in range(self._retries + 1):
                try:
                    connection.request("POST", "/predict", self._body)
                    response = connection.getresponse()
                    response.read()
                    self.statuses.append(response.status)
                    self.versions.append(response.headers["x-model-version"])
                    break
                except (OSError, http.client.HTTPException) as error:
                    connection.close()
                    if attempt == self._retries:
                        self.failures.append(repr(error))
        connection.close()
