"""What an idle control node has in memory, and that it serves HTTP once it is asked to."""

import json
import re
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Place, eventually

pytestmark = pytest.mark.e2e

MOST_MB = 65


def _private_mb(pid: int) -> float:
    """Memory that no other process has: other processes with the same libraries do not change it."""
    told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(map(int, re.findall(r"^Private_\w+: +(\d+) kB", told, re.MULTILINE))) / 1000


def test_an_idle_node_is_small_and_loads_what_serves_http_with_the_first_request(place: Place) -> None:
    process = place.start("up", "--listen", "127.0.0.1:0")
    announced = place.home / "control.json"
    assert eventually(announced.exists)
    told = json.loads(announced.read_text())
    assert place.gridmill("status").returncode == 0
    before = _private_mb(told["pid"])
    assert before < MOST_MB
    with httpx.Client(base_url=told["url"], timeout=60) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/v1/control").status_code == 401
        answer = client.get("/v1/control", headers={"Authorization": f"Bearer {told['token']}"})
        assert answer.json()["pid"] == told["pid"]
    transport = httpx.HTTPTransport(uds=str(place.home / "control.sock"))
    with httpx.Client(transport=transport, timeout=60) as owner:
        assert owner.get("http://gridmill/v1/control").json()["pid"] == told["pid"]
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
