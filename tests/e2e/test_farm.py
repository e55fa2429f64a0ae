"""A farm as its owner runs it: by commands, killed and started again while a job runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridmill.codec import encode_passed
from gridmill.model.farm import Deploy, PodNames
from gridmill.model.message import Events, Hello, Welcome
from tests.contract.test_farm_api import attempt, hear, outcome, pod_order
from tests.farms import Listener, Visitor, open_folder
from tests.ports import free_port

pytestmark = pytest.mark.e2e
PATIENCE_SECONDS = 120.0


class Controller:
    """`gridmill up --light` as a process. What it says on standard output is one JSON document."""

    def __init__(self, home: Path, port: int) -> None:
        self._home, self._port = home, port
        self._process: subprocess.Popen[str] | None = None

    def gridmill(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gridmill", "--home", str(self._home), *words]

    def up(self) -> dict[str, str]:
        words = self.gridmill("up", "--light", "--listen", f"127.0.0.1:{self._port}", "--json")
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def kill(self, number: int = signal.SIGKILL) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE_SECONDS)
        self._process = None
        return code

    def farm(self, *words: str) -> object:
        words = self.gridmill("farm", *words, "--json")
        return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def controller() -> Iterator[Controller]:
    with open_folder() as place:
        one = Controller(place / "h", free_port())
        yield one
        one.kill()


def test_an_attempt_goes_on_while_the_controller_is_killed(controller: Controller, tmp_path: Path) -> None:
    told = controller.up()
    words = told["join"].split()
    assert words[:3] == ["gridmill", "add", "cluster"]
    fingerprint, _, secret = words[words.index("--join") + 1].partition(":")
    assert fingerprint == told["fingerprint"]
    home = Visitor(int(told["address"].rpartition(":")[2]), tmp_path / "home")
    assert home.join(secret).status == 200
    assert [one["name"] for one in controller.farm("sources")] == ["home"]

    listener = Listener(home)
    wanted = Deploy(orders=(pod_order("lives-1.0"),), lease_seconds=600)
    assert home.ask("PUT", "/v1/deployments/lives-1", wanted).status == 204
    channel, _ = hear(listener, Hello)
    root = Path(home.ask("GET", "/v1/farm").told["root"])
    gate = root / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    start = attempt("a1", f"read line < {gate}", str(root))
    said = [Welcome(acknowledged=0), start]
    lines = b"\n".join(encode_passed(channel, one) for one in said)
    assert home.ask("POST", f"/v1/relay/{listener.name}", lines, Sequence="1").status == 204
    hear(listener, Events)

    assert controller.kill() == -signal.SIGKILL
    assert listener.wait_until_over(PATIENCE_SECONDS)
    assert "join" not in controller.up()  # who has joined stays joined, and no secret is printed again
    listener = Listener(home)
    channel, hello = hear(listener, Hello)
    assert isinstance(hello, Hello)
    assert hello.attempts == {"a1": "running"}
    path = f"/v1/relay/{listener.name}"
    assert home.ask("POST", path, encode_passed(channel, Welcome(acknowledged=0))).status == 204
    gate.write_text("go on\n")
    assert outcome(listener) == "succeeded"
    assert home.ask("POST", "/v1/pods/end", PodNames(pods=("lives-1.0",))).status == 204

    controller.farm("revoke", "home")
    assert home.ask("GET", "/v1/farm").status == 401
    assert controller.kill(signal.SIGINT) == 0
