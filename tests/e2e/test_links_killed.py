"""Real processes at each end of a link are killed, and a stranger knocks."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gridmill.domain.pod_protocol import Welcome
from gridmill.testing.link_suite import hello, log_event
from gridmill.transport import pod_side, spool, tls
from gridmill.transport.certificate import make_certificate
from gridmill.transport.server import PodLinkServer
from tests.e2e.conftest import PATIENCE_SECONDS
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e

SERVER = """
import os, sys, threading
from pathlib import Path
from gridmill.transport.server import PodLinkServer
from gridmill.domain.pod_protocol import Hello, Welcome

kind, folder, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
ready = threading.Event()
links = PodLinkServer(ready.set)
if kind == "unix":
    links.listen_unix(folder / "links.sock")
elif kind == "tls":
    links.listen_tls("127.0.0.1", port, folder / "control.crt", folder / "control.key")
else:
    links.watch_spool(folder / "spool")
while ready.wait():
    ready.clear()
    for got in links.receive():
        if isinstance(got.message, Hello):
            links.send(got.channel, [Welcome(acknowledged=os.getpid())])
"""

POD = """
import sys, time
from gridmill.transport import pod_side as stream
from gridmill.testing.link_suite import hello, log_event
link = stream.make_unix(sys.argv[1])
while not link.connect():
    time.sleep(0.01)
link.send([hello("p-1.0"), log_event(1, "x")])
print("said", flush=True)
time.sleep(300)
"""


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        threading.Event().wait(0.005)
    return found


@contextlib.contextmanager
def running(code, *arguments, **options):
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["unix", "tls", "spool"])
def test_a_pod_finds_the_control_node_that_follows_a_killed_one(kind, tmp_path):
    certfile, _ = make_certificate(tmp_path, 1_700_000_000.0)
    port = free_port()
    link = {
        "unix": lambda: pod_side.make_unix(str(tmp_path / "links.sock")),
        "tls": lambda: tls.make(f"127.0.0.1:{port}#{tls.fingerprint_of(certfile)}"),
        "spool": lambda: spool.make(str(tmp_path / "spool")),
    }[kind]()
    for _ in range(3):
        with running(SERVER, kind, tmp_path, port) as control:
            until(link.connect, "somebody answers")
            assert link.send([hello("p-1.0")])
            assert until(link.receive, "the pod is welcomed") == [Welcome(acknowledged=control.pid)]
            os.kill(control.pid, signal.SIGKILL)
            control.wait()
            if kind != "spool":  # there, only the next control node (or a long silence) tells
                until(lambda: link.receive() is None, "the pod sees the end")
        if kind == "spool":
            with running(SERVER, kind, tmp_path, port):
                until(lambda: link.receive() is None, "the pod sees the end")
    link.close()


def test_a_killed_pod_is_seen_after_its_last_words(tmp_path):
    ready, came = threading.Event(), []
    links = PodLinkServer(ready.set)
    links.listen_unix(tmp_path / "links.sock")
    with running(POD, tmp_path / "links.sock", stdout=subprocess.PIPE) as pod:
        pod.stdout.readline()
        os.kill(pod.pid, signal.SIGKILL)
        while len(came) < 3:
            assert ready.wait(PATIENCE_SECONDS)
            ready.clear()
            came += links.receive()
    assert [got.message for got in came] == [hello("p-1.0"), log_event(1, "x"), None]
    links.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_turned_away_even_where_the_file_would_let_him_in(tmp_path):
    links = PodLinkServer(lambda: None)
    path = tmp_path / "links.sock"
    links.listen_unix(path)
    path.chmod(0o666)
    tmp_path.chmod(0o755)
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('links.sock'); print(s.recv(1))"
    stranger = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", code],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert stranger.stdout == "b''\n", stranger.stderr
    assert links.receive() == []
    links.close()
