"""Nobody who can reach the port of a control node keeps its owner out of it."""

import json
import resource
import socket
from contextlib import ExitStack, closing, suppress

import httpx
import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CONNECTIONS = 1_100
DESCRIPTORS = 1_024
JOB = "pipeline: small\njobs: {only: {command: echo done}}\n"


def test_half_open_connections_do_not_lock_the_owner_out(place: Place):
    """More of them than the node may open files: the Unix socket and pods work on, and the port does again
    when requests that do not come have been waited for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    node = place.start("up", "--listen", "127.0.0.1:0")
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    try:
        with ExitStack() as stack:
            announced = place.home / "control.json"
            assert eventually(announced.exists)
            node_at = json.loads(announced.read_text())
            host, port = node_at["url"].removeprefix("http://").split(":")
            for _ in range(CONNECTIONS):
                connection = stack.enter_context(closing(socket.create_connection((host, int(port)))))
                with suppress(OSError):  # it was refused
                    connection.sendall(b"GET /v1/runs HTTP/1.1\r\n")
            assert place.gridmill("status").returncode == 0
            assert place.gridmill("run", place.write(JOB)).returncode == 0

            def answers() -> bool:
                head = {"authorization": f"Bearer {node_at['token']}"}
                with suppress(httpx.TransportError):
                    return httpx.get(f"{node_at['url']}/v1/runs", headers=head).status_code == 200
                return False

            assert eventually(answers, 30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
