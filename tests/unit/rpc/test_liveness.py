"""A control node that is hung is told from one that is busy, with what to do about it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gridmill.codec import encode
from gridmill.errors import HungNodeError
from gridmill.rpc import liveness
from gridmill.rpc.client import SOCKET, connect_to
from gridmill.rpc.liveness import listener_of, observe_process, owner_of, wait_for_answer
from gridmill.rpc.protocol import Hello
from gridmill.sdk import connection
from gridmill.sdk.grid_http import over_tcp
from gridmill.testing.fake_grid import FakeGrid
from gridmill.testing.local_calls import ServedGrid

NODE = """
import sys
from pathlib import Path
from gridmill.api.app import make_app
from gridmill.http.server import serve
from gridmill.testing.fake_grid import FakeGrid
from gridmill.testing.local_calls import ServedGrid
grid = FakeGrid()
served = ServedGrid(grid, Path(sys.argv[1]))
print(serve(make_app(grid)).address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(liveness, "PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(connection, "PROBE_SECONDS", 0.2)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A control node's process, and its URL."""
    process = subprocess.Popen(
        (sys.executable, "-c", NODE, str(tmp_path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_a_stopped_control_node_is_reported_with_the_next_step(node, tmp_path: Path):
    process, url = node
    link, by_http = connect_to(tmp_path / SOCKET, Hello(), print), over_tcp(url, None, process.pid)
    assert link.grid().control().pid == by_http.control().pid == 1
    os.kill(process.pid, signal.SIGSTOP)
    asked = (
        lambda: connect_to(tmp_path / SOCKET, Hello(), print),
        lambda: link.grid().control(),
        by_http.control,
        over_tcp(url, None, process.pid).control,
    )
    for ask in asked:
        with pytest.raises(HungNodeError, match=f"process {process.pid}.* is hung: it is stopped") as caught:
            ask()
        assert f"To continue it, run `kill -CONT {process.pid}`" in caught.value.hint
        assert f"`kill -KILL {process.pid}`" in caught.value.hint
    link.close()  # at once: no parting word is waited for
    os.kill(process.pid, signal.SIGCONT)
    assert connect_to(tmp_path / SOCKET, Hello(), print).grid().control().pid == 1


def test_with_only_a_url_a_stopped_control_node_is_found_by_its_port(node):
    process, url = node
    assert listener_of(socket.socketpair()[0]) == 0
    asked = over_tcp(url, None), over_tcp(url, None)
    assert asked[0].control().pid == 1
    os.kill(process.pid, signal.SIGSTOP)
    while not observe_process(process.pid).stopped:
        time.sleep(0.01)
    for by_http in asked:  # over a kept connection, and over a new one
        began = time.monotonic()
        with pytest.raises(HungNodeError, match=f"process {process.pid}.* is hung: it is stopped") as caught:
            by_http.control()
        assert f"To continue it, run `kill -CONT {process.pid}`" in caught.value.hint
        assert time.monotonic() - began < 3
    os.kill(process.pid, signal.SIGCONT)
    assert over_tcp(url, None).control().pid == 1


LISTENER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(host: str, name: str) -> Iterator[tuple[int, int]]:
    """A process with `name` among its words that takes connections and never answers: its port and id."""
    process = subprocess.Popen(
        (sys.executable, "-c", LISTENER, host, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.communicate()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_is_found_if_it_is_a_control_node(host: str):
    for name, found in (("gridmill", True), ("another", False)):
        with listening(host, name) as (port, pid), socket.create_connection((host, port)) as client:
            # the folder of the interpreter may have the name as well
            assert listener_of(client) == (pid if found or "gridmill" in sys.executable else 0)


def test_a_call_that_takes_long_is_waited_for_while_the_control_node_answers_others(tmp_path: Path):
    class Slow(FakeGrid):
        def control(self):
            threading.Event().wait(1.0)
            return super().control()

    served = ServedGrid(Slow(), tmp_path)
    try:
        link = connect_to(tmp_path / SOCKET, Hello(), print)
        assert link.grid().control().pid == 1
        link.close()
    finally:
        served.stop()


def test_a_control_node_that_takes_connections_and_does_nothing_is_hung():
    """A process of its own: threads of other tests would use processor time here."""
    with listening("127.0.0.1", "gridmill") as (port, _):
        began = time.monotonic()
        with pytest.raises(HungNodeError, match="is running and does not answer"):
            over_tcp(f"http://127.0.0.1:{port}", None).control()
        assert time.monotonic() - began < 5


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a control node behind a tunnel or on another machine."""
    monkeypatch.setattr(liveness, "listener_of", lambda sock: 0)


def test_a_hung_control_node_that_cannot_be_seen_is_reported_after_one_patient_probe(node, unseen: None):
    process, url = node
    asked = over_tcp(url, None)
    assert asked.control().pid == 1
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(HungNodeError, match="is hung: it is running and does not answer"):
        asked.control()
    assert 0.6 < time.monotonic() - began < 1.5  # 0.1 s for a look, 0.6 s for a probe


def test_a_control_node_that_cannot_be_seen_and_answers_slowly_is_busy(unseen: None):
    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            threading.Event().wait(0.4 if self.path == "/healthz" else 1.6)
            body = encode(FakeGrid().control())
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            assert over_tcp(f"http://127.0.0.1:{server.server_port}", None).control().pid == 1
        finally:
            server.shutdown()


def test_the_end_of_a_process_is_left_to_the_socket(tmp_path: Path):
    process = subprocess.Popen((sys.executable, "-c", ""))
    process.wait()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wait_for_answer(ours, process.pid, "there")
    assert observe_process(process.pid) is None
    assert owner_of(tmp_path) == 0
