"""A farm as its owner runs it: by commands, killed and started again while a job runs."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import gridmill
from gridmill.codec import encode_passed
from gridmill.domain.farm_protocol import DeployRequest, PodNames
from gridmill.domain.job_log import text_of
from gridmill.domain.pod_protocol import Events, Hello, Welcome
from gridmill.farm.unix_users import living
from gridmill.testing.hosts import network, why_no_hosts
from tests.contract.test_farm_api import attempt, hear, outcome, pod_order
from tests.kit.farms import Listener, Visitor, open_folder
from tests.kit.left_behind import open_descriptors
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e
PATIENCE_SECONDS = 120.0


class Controller:
    """`gridmill up --light` as a process, `within` another program where one is named. It says one JSON
    document on standard output."""

    within: tuple[str, ...] = ()
    host = "127.0.0.1"

    def __init__(self, home: Path, port: int, *options: str) -> None:
        self._home, self._port, self._options = home, port, options
        self._process: subprocess.Popen[str] | None = None

    def gridmill(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gridmill", "--home", str(self._home), *words]

    def up(self) -> dict[str, str]:
        words = self.gridmill(
            "up", "--light", "--listen", f"{self.host}:{self._port}", "--json", *self._options
        )
        self._process = subprocess.Popen([*self.within, *words], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def kill(self, number: int = signal.SIGKILL) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE_SECONDS)
        self._process = None
        return code

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

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
    assert [one["name"] for one in controller.farm("tenants")] == ["home"]

    listener = Listener(home)
    wanted = DeployRequest(orders=(pod_order("lives-1.0"),), lease_seconds=600)
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


OPENED = """
set -e
keep=$1 top=$2
shift 2
mount -t tmpfs tmpfs "$keep"
mkdir "$keep/was"
mount --rbind "$top" "$keep/was"
mount -t tmpfs -o mode=755 tmpfs "$top"
while [ "$1" != -- ]; do
  mkdir -p "$1"
  mount --rbind "$keep/was/${1#"$top"/}" "$1"
  shift
done
shift
exec "$@"
"""
"""A program that sees a folder as one that others may pass, of which only some folders below it are left."""


def opened(keep: Path) -> tuple[str, ...]:
    """What a controller is run within, so that others may start this Python and this Gridmill, wherever they
    lie; skips where it cannot be. `keep` is an empty folder."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("jobs have Unix users of their own where a farm is run by root")
    wanted = {Path(sys.base_prefix), Path(sys.prefix), Path(tempfile.gettempdir()), *_imported_from()}
    parts = {one for one in wanted if one.stat().st_mode & 0o001}
    closed = {one for part in parts for one in part.parents if not one.stat().st_mode & 0o001}
    tops = sorted(one for one in closed if not closed & set(one.parents))
    if tops and shutil.which("unshare") is None:
        pytest.skip(f"others may not pass {', '.join(map(str, tops))}, and there is no `unshare`")
    within: tuple[str, ...] = ("unshare", "--mount", "--propagation", "private") if tops else ()
    for top in tops:
        below = sorted(part for part in parts if top in part.parents)
        alone = [str(part) for part in below if not set(below) & set(part.parents)]
        within += ("bash", "-c", OPENED, "bash", str(keep), str(top), *alone, "--")
    if tops and subprocess.run([*within, "true"], capture_output=True).returncode != 0:
        pytest.skip("this container may not mount: run the tests where root may")
    return within


def _imported_from() -> list[Path]:
    """Folders of Python's path, Gridmill's own among them."""
    return [Path(gridmill.__file__).parent, *(Path(one) for one in sys.path if one and Path(one).is_dir())]


def begin_there(home: Visitor, name: str, command: str) -> Listener:
    """A command is a job of that tenant now; what it says can be heard."""
    listener = Listener(home)
    wanted = DeployRequest(orders=(pod_order(f"{name}.0"),), lease_seconds=600)
    assert home.ask("PUT", f"/v1/deployments/{name}", wanted).status == 204
    channel, _ = hear(listener, Hello)
    said = [Welcome(acknowledged=0), attempt(f"{name}-a", command, root_of(home))]
    lines = b"\n".join(encode_passed(channel, one) for one in said)
    assert home.ask("POST", f"/v1/relay/{listener.name}", lines, Sequence="1").status == 204
    return listener


def run_there(home: Visitor, name: str, command: str) -> tuple[str, str]:
    """How a command ends as a job of that tenant, and what it wrote."""
    listener = begin_there(home, name, command)
    written = ""
    while True:
        _, message = hear(listener, Events)
        assert isinstance(message, Events)
        for event in message.events:
            written += text_of(event.body)
            if event.type == "ended":
                assert home.ask("POST", "/v1/pods/end", PodNames(pods=(f"{name}.0",))).status == 204
                return str(event.body["outcome"]["state"]), written


def root_of(home: Visitor) -> str:
    return str(home.ask("GET", "/v1/farm").told["root"])


@pytest.mark.long
def test_jobs_of_two_tenants_do_not_see_each_other(controller: Controller, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    controller.within = opened(keep)
    told = controller.up()
    port = int(told["address"].rpartition(":")[2])
    one, other = Visitor(port, tmp_path / "one"), Visitor(port, tmp_path / "other")
    assert one.join(told["join"].rpartition(":")[2], "one").status == 200
    line = controller.farm("invite")["join"]
    assert other.join(line.rpartition(":")[2], "other").status == 200
    users = {tenant["name"]: tenant["user"] for tenant in controller.farm("tenants")}
    assert len({*users.values(), None, 0}) == 4

    root = root_of(one)
    assert run_there(one, "makes-1", f"id -u; umask 0; echo secret > {root}/kept; chmod 777 {root}/kept") == (
        "succeeded",
        f"{users['one']}\n",
    )
    looks = f"id -u; id -G; ! cat {root}/kept && ! ls {root}/../home && ! ls {Path(root).parents[2]}"
    state, written = run_there(other, "looks-1", looks)
    assert state == "succeeded", written
    assert written.startswith(f"{users['other']}\n{users['other']}\n")
    assert "secret" not in written
    # a link that a job leaves is not followed by the farm either
    linked = f"mkdir -p {root_of(other)}/out && ln -s {root} {root_of(other)}/out/theirs"
    assert run_there(other, "links-1", linked)[0] == "succeeded"
    for uri in ("out", "out/theirs", "out/theirs/kept"):
        answer = other.ask("POST", "/v1/staging/scan", {"uri": uri})
        assert answer.status in (404, 422, 507), answer.body
        assert b"chunks" not in answer.body

    # a job cannot kill its pod, and what it has hidden ends with its deployment
    hides = f"env -i setsid sh -c 'sleep 1000' & kill -9 1; touch {root_of(other)}/hidden; sleep 1000"
    begin_there(other, "hides-1", hides)
    until(lambda: (Path(root_of(other)) / "hidden").exists())
    assert other.ask("POST", "/v1/pods/end", PodNames(pods=("hides-1.0",))).status == 204
    assert living(users["other"]) == []
    controller.farm("revoke", "other")
    until(lambda: [tenant["name"] for tenant in controller.farm("tenants")] == ["one"])
    third = Visitor(port, tmp_path / "third")
    line = controller.farm("invite")["join"]
    assert third.join(line.rpartition(":")[2], "other").status == 200
    again = {tenant["name"]: tenant["user"] for tenant in controller.farm("tenants")}
    assert again["other"] not in users.values()


def until(condition: Callable[[], bool]) -> None:
    """Fails when it does not come true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


IDLE, SLOW = 3_000, 800
BODY_BYTES = 60_000
SLOW_REQUEST = (
    "POST /v1/relay/none HTTP/1.1\r\nHost: farm\r\nAuthorization: Bearer {token}\r\n"
    "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
)


@pytest.fixture
def two_addresses(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two addresses in a network of this test that only this machine has: of the farm and its tenants, and of
    an attacker. (The limit of one client does not apply to the loopback.)"""
    with network(tmp_path / "net", f"10.{180 + os.getpid() % 70}.{os.getpid() // 70 % 250}") as net:
        attacker = f"{net.prefix}.2"
        subprocess.run(("ip", "addr", "add", f"{attacker}/24", "dev", net.bridge), check=True)
        yield net.gateway, attacker


def private_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = open_descriptors() + IDLE + SLOW + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may open only {hard} files here, not {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.long
@pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts")
@pytest.mark.parametrize("count", [IDLE, SLOW])
def test_idle_connections_and_slow_bodies_of_one_client_hold_nobody_up(
    controller: Controller, two_addresses: tuple[str, str], many_files: None, tmp_path: Path, count: int
) -> None:
    controller.host, attacker = two_addresses
    words = controller.up()["join"].split()
    secret = words[words.index("--join") + 1].partition(":")[2]
    port = controller._port
    home = Visitor(port, tmp_path / "home", host=controller.host)
    assert home.join(secret).status == 200
    listener = Listener(home)
    assert home.ask("GET", "/v1/farm").status == 200
    begun, context = private_mib(controller.pid), home.context()
    slowest, most = 0.0, begun

    def ask() -> None:
        nonlocal slowest, most
        began = time.monotonic()
        assert home.ask("GET", "/v1/farm").status == 200
        slowest, most = max(slowest, time.monotonic() - began), max(most, private_mib(controller.pid))
        assert not listener.over

    for _ in range(20):
        ask()
    calm, slowest = slowest, 0.0  # the machine may be busy with other tests
    with ExitStack() as opened:
        for number in range(count):
            with suppress(OSError):  # it was refused: one address has its limit
                there = (controller.host, port)
                one = opened.enter_context(closing(socket.create_connection(there, 5, (attacker, 0))))
                if count == SLOW:
                    secure = opened.enter_context(closing(context.wrap_socket(one)))
                    secure.sendall(SLOW_REQUEST.format(token=home.token).encode() + b"x" * BODY_BYTES)
            if number % 50 == 0:
                ask()
        for _ in range(20):
            ask()
            threading.Event().wait(0.1)
    print(f"{count}: slowest {slowest:.2f} s ({calm:.2f} s before), memory {begun:.0f} MiB before", end="")
    print(f", {most:.0f} MiB at most", end="")
    assert slowest < max(1.0, 10.0 * calm)
    until = time.monotonic() + 30
    while private_mib(controller.pid) > begun + max(8.0, 0.4 * (most - begun)):
        assert time.monotonic() < until, (begun, most, private_mib(controller.pid))
        threading.Event().wait(0.2)
    print(f", {private_mib(controller.pid):.0f} MiB after")
    assert not listener.over
    assert home.ask("GET", "/v1/farm").status == 200
