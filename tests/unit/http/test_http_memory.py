"""The memory that many connections or a large request had is given back afterwards."""

import resource
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gridmill.api.app import make_app
from gridmill.http.server import serve
from gridmill.process_memory import LARGE_BYTES
from gridmill.testing.fake_grid import FakeGrid

SERVER = """
import sys
from gridmill.api.app import make_app
from gridmill.http.connections import raise_open_files
from gridmill.http.server import serve
from gridmill.testing.fake_grid import FakeGrid
raise_open_files()
print(serve(make_app(FakeGrid())).address, flush=True)
sys.stdin.read()
"""
FRAGMENTED = """
import sys
from gridmill.process_memory import return_free_memory, share_memory_areas
share_memory_areas()
blocks = [bytes(2000) for _ in range(40_000)]
kept = blocks[-1]
del blocks
print("freed", flush=True)
sys.stdin.readline()
return_free_memory()
print("returned", flush=True)
sys.stdin.readline()
"""
CONNECTIONS = 800
BEGUN = (
    b"POST /v1/pipelines HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    b"content-length: 1000000\r\n\r\n"
)


def pss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


@pytest.mark.long
def test_slow_bodies_leave_no_memory_behind():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    process = subprocess.Popen(
        (sys.executable, "-c", SERVER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        host, port = process.stdout.readline().strip().removeprefix("http://").split(":")
        address, pause = (host, int(port)), threading.Event()
        with closing(socket.create_connection(address)) as first:
            first.sendall(b"GET /v1/control HTTP/1.1\r\nhost: a\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 200")
        begun, opened = pss_mib(process.pid), list[socket.socket]()
        for _ in range(CONNECTIONS):
            opened.append(socket.create_connection(address))
            opened[-1].sendall(BEGUN + b"x" * 60_000)
        most = begun
        for _ in range(20):
            pause.wait(0.1)
            most = max(most, pss_mib(process.pid))
        for one in opened:
            with suppress(OSError):
                one.close()
        for _ in range(300):
            pause.wait(0.1)
            if pss_mib(process.pid) - begun < 0.6 * (most - begun):
                break
        assert most - begun > 40
        assert pss_mib(process.pid) - begun < 0.6 * (most - begun)
    finally:
        process.kill()
        process.communicate()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_free_memory_below_what_is_used_is_returned():
    process = subprocess.Popen(
        (sys.executable, "-c", FRAGMENTED), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "freed\n"
        before = pss_mib(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "returned\n"
        assert before - pss_mib(process.pid) > 50
    finally:
        process.kill()
        process.communicate()


def test_a_large_request_is_followed_by_a_return_of_free_memory(monkeypatch: pytest.MonkeyPatch):
    returned = threading.Event()
    monkeypatch.setattr("gridmill.http.connections.return_free_memory", lambda **_: returned.set())
    monkeypatch.setattr("gridmill.http.connections._LARGE_REQUEST_SECONDS", 0.1)
    server = serve(make_app(FakeGrid()))
    try:
        host, port = server.address.removeprefix("http://").split(":")
        for size, expected in ((1000, False), (LARGE_BYTES, True)):
            with closing(socket.create_connection((host, int(port)))) as client:
                head = BEGUN.replace(b"1000000", str(size).encode())
                client.sendall(head + b"x" * size)
                assert client.recv(100).startswith(b"HTTP/1.1 422")
            assert returned.wait(5 if expected else 1.5) is expected
    finally:
        server.stop()
