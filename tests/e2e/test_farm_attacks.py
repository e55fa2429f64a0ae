"""Jobs of one tenant attack a farm, each beside a job of another tenant, which goes on and ends well.

The farm runs below a control group that bounds all of it: no attack reaches the machine of the tests.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from gridmill.codec import decode_passed, encode_passed
from gridmill.domain.amounts import Amounts
from gridmill.domain.farm_protocol import DeployRequest, PodNames
from gridmill.domain.job_log import text_of
from gridmill.domain.pod_protocol import Events, Hello, Welcome
from gridmill.farm.unix_users import end_processes, living
from gridmill.pod.cgroups import destroy
from tests.contract.test_farm_api import attempt, pod_order
from tests.e2e.test_farm import PATIENCE_SECONDS, Controller, opened, root_of, until
from tests.kit.farms import Listener, Visitor, open_folder
from tests.kit.ports import free_port
from tests.kit.small_disks import small_disk

pytestmark = pytest.mark.e2e
PROCESSES = 700
"""Of the farm and all that runs there."""
MEMORY_BYTES = 2 * 2**30
ENTER = 'for file in $0; do echo 0 > $file; done; exec "$@"'
GROUPS = Path("/sys/fs/cgroup")
SIZE = Amounts(cpus=0.5, memory_bytes=2**28)


@contextmanager
def bounded(name: str) -> Iterator[tuple[str, ...]]:
    """A program that runs another one with limits which no attack can pass."""
    version_2 = (GROUPS / "cgroup.controllers").exists()
    limits = (
        {f"{name}/pids.max": PROCESSES, f"{name}/memory.max": MEMORY_BYTES}
        if version_2
        else {f"pids/{name}/pids.max": PROCESSES, f"memory/{name}/memory.limit_in_bytes": MEMORY_BYTES}
    )
    folders = dict.fromkeys((GROUPS / file).parent for file in limits)
    try:
        for folder in folders:
            folder.mkdir()
        for file, limit in limits.items():
            (GROUPS / file).write_text(str(limit))
        inner = [_hand_down(folder) if version_2 else folder for folder in folders]
    except OSError as error:
        pytest.skip(f"attacks need limits by control groups that root may write: {error}")
    try:
        yield ("sh", "-c", ENTER, " ".join(f"{folder}/cgroup.procs" for folder in inner))
    finally:
        for folder in folders:
            destroy(folder)


def _hand_down(folder: Path) -> Path:
    """Version 2 has processes in groups only that hand nothing down."""
    (folder / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    inner = folder / "controller"
    inner.mkdir()
    return inner


@dataclass
class Ended:
    """How an attempt ended, and what it wrote."""

    outcome: dict[str, Any]
    written: str

    @property
    def state(self) -> str:
        return str(self.outcome["state"])


class Tenant:
    """A tenant with one session of messages for all of its pods."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor, self.root = visitor, root_of(visitor)
        self._listener, self._sequence = Listener(visitor), 0
        self._channels: dict[str, int] = {}
        self._written: dict[str, str] = {}
        self._outcomes: dict[str, dict[str, Any]] = {}

    def say(self, pod: str, *messages: object) -> None:
        self._sequence += 1
        lines = b"\n".join(encode_passed(self._channels[pod], one) for one in messages)
        path = f"/v1/relay/{self._listener.name}"
        assert self.visitor.ask("POST", path, lines, Sequence=str(self._sequence)).status == 204

    def bring_up(self, name: str) -> None:
        wanted = DeployRequest(orders=(pod_order(f"{name}.0", capacity=SIZE),), lease_seconds=600)
        assert self.visitor.ask("PUT", f"/v1/deployments/{name}", wanted).status == 204
        while name not in self._channels:
            self._hear()
        self.say(name, Welcome(acknowledged=0))

    def wait(self, attempt_id: str) -> Ended:
        while attempt_id not in self._outcomes:
            self._hear()
        return Ended(self._outcomes[attempt_id], self._written.get(attempt_id, ""))

    def _hear(self) -> None:
        line = self._listener.next(PATIENCE_SECONDS)
        assert line is not None, "the session is over"
        channel, message = decode_passed(line)
        if isinstance(message, Hello):
            self._channels[message.deployment_id] = channel
        for event in message.events if isinstance(message, Events) else ():
            said = text_of(event.body)
            self._written[event.attempt_id] = self._written.get(event.attempt_id, "") + said
            if event.type == "ended":
                self._outcomes[event.attempt_id] = event.body["outcome"]


class Pod:
    """A pod of a tenant, and what its jobs do."""

    def __init__(self, tenant: Tenant, name: str) -> None:
        self.tenant, self.name, self.attempts, self.root = tenant, name, 0, tenant.root
        tenant.bring_up(name)

    def begin(self, command: str) -> None:
        self.attempts += 1
        self.tenant.say(self.name, attempt(f"{self.name}-{self.attempts}", command, self.root))

    def wait(self) -> Ended:
        return self.tenant.wait(f"{self.name}-{self.attempts}")

    def run(self, command: str) -> Ended:
        self.begin(command)
        return self.wait()

    def end(self) -> None:
        wanted = PodNames(pods=(f"{self.name}.0",))
        assert self.tenant.visitor.ask("POST", "/v1/pods/end", wanted).status == 204


@dataclass
class Place:
    """A farm with two tenants."""

    controller: Controller
    hostile: Tenant
    neighbour: Tenant
    users: dict[str, int]
    count: int = 0

    def pod(self, tenant: Tenant) -> Pod:
        self.count += 1
        return Pod(tenant, f"d-{self.count}")

    @contextmanager
    def beside(self) -> Iterator[Pod]:
        """A pod of the hostile tenant, while a job of the other one runs, which then ends well."""
        other, attacker = self.pod(self.neighbour), self.pod(self.hostile)
        gate = Path(other.root) / f"gate-{self.count}"
        working = f"i=0; until [ -e {gate} ]; do i=$((i+1)); sleep 0.02; done; echo worked"
        other.begin(f"echo began; {working}")
        try:
            yield attacker
            assert self.neighbour.visitor.ask("GET", "/v1/farm").status == 200
            gate.touch()
            ended = other.wait()
            assert (ended.state, ended.written) == ("succeeded", "began\nworked\n"), ended
            # the pod still takes work
            assert other.run("echo more").written == "more\n"
        finally:
            attacker.end()
            other.end()
        assert living(self.users["hostile"]) == []


@contextmanager
def a_place(folder: Path, home: Path, *words: str, **settings: str) -> Iterator[Place]:
    """A farm that is started with these options and settings."""
    keep = folder / "keep"
    keep.mkdir()
    within, name = opened(keep), f"gridmill-test-{os.getpid()}-{folder.name}"
    with bounded(name) as limited:
        controller = Controller(home, free_port(), *words)
        given = {"GRIDMILL_CPUS": "2", "GRIDMILL_MEMORY": "1GiB", "GRIDMILL_ZYGOTE": "0", **settings}
        controller.within = (*limited, "env", *(f"{key}={value}" for key, value in given.items()), *within)
        told, users = controller.up(), dict[str, int]()
        try:
            port = int(told["address"].rpartition(":")[2])
            one, other = Visitor(port, folder / "one"), Visitor(port, folder / "other")
            assert one.join(told["join"].rpartition(":")[2], "hostile").status == 200
            line = controller.farm("invite")["join"]
            answer = other.join(line.rpartition(":")[2], "neighbour")
            assert answer.status == 200, answer.body
            users = {tenant["name"]: tenant["user"] for tenant in controller.farm("tenants")}
            yield Place(controller, Tenant(one), Tenant(other), users)
        finally:
            controller.kill()
            for user in users.values():  # of a test that failed: what keeps a pod removes its groups
                end_processes(user)
                until(lambda: groups_of(user) == [])  # noqa: B023  within the loop


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_folder() as home, a_place(tmp_path_factory.mktemp("attacks"), home / "h") as made:
        yield made


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Place]:
    """A farm on a small disk."""
    limits = ("--tenant-disk", "40MiB", "--tenant-files", "2000")
    with (
        small_disk(256 * 2**20, inodes=20_000) as disk,
        a_place(tmp_path, disk / "h", *limits, GRIDMILL_DISK_RESERVE="16MiB") as made,
    ):
        yield made


def python(code: str) -> str:
    """A command that runs this code."""
    return f"exec {quote(sys.executable)} -I -S - <<'EOF'\n{code}\nEOF"


FORKS = """
import os, time
count, reason = 0, None
until = time.monotonic() + 2
while reason is None or time.monotonic() < until or not os.path.exists("enough"):
    try:
        if os.fork() == 0:
            while True:
                try:
                    if os.fork() == 0:
                        continue
                except OSError:
                    time.sleep(0.01)
        count += 1
    except OSError as error:
        reason = error
        time.sleep(0.01)
print(count, reason.strerror)
"""


def test_a_fork_bomb_takes_its_own_processes_only(place: Place) -> None:
    with place.beside() as attacker:
        attacker.begin(f"cd {attacker.root}; {python(FORKS)}")
        until(lambda: len(living(place.users["hostile"])) > 60)
        assert len(living(place.users["hostile"])) < PROCESSES // 4 + 20
        third = place.pod(place.neighbour)  # what comes meanwhile is served
        assert third.run("echo fine").written == "fine\n"
        third.end()
        (Path(attacker.root) / "enough").touch()
        ended = attacker.wait()
        assert "Resource temporarily unavailable" in ended.written, ended
        assert ended.outcome["use"]["cpu_seconds"] > 0.5  # of all its processes, not of the first one alone
        assert attacker.run("echo fine").written == "fine\n"


GROWS = """
import os
for _ in range(4):
    os.fork()
held = [bytearray(os.urandom(1) * 2**20) for _ in range(4096)]
"""


@pytest.mark.long
def test_a_memory_bomb_ends_alone(place: Place) -> None:
    with place.beside() as attacker:
        ended = attacker.run(python(GROWS))
        assert (ended.state, ended.outcome["cause"]) == ("failed", "memory"), ended.outcome["message"]
        shared = "import mmap\nm = open('/dev/shm/all', 'wb')\nwhile True: m.write(bytes(2**20)); m.flush()"
        ended = attacker.run(python(shared))
        assert ended.state == "failed", ended
        assert attacker.run("rm -f /dev/shm/all; echo fine").written == "fine\n"


OPENS = """
import os
for _ in range(3):
    os.fork()
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.long
def test_a_descriptor_bomb_ends_at_the_limit_of_its_process(place: Place) -> None:
    with place.beside() as attacker:
        ended = attacker.run(python(OPENS))
        assert set(ended.written.splitlines()) <= {"Too many open files"}, ended
        third = place.pod(place.neighbour)
        assert third.run(python(OPENS.replace("True", "len(held) < 500"))).state == "succeeded"
        third.end()


DIALS = """
import os, socket, time
held, closed = [], 0
for _ in range(900):
    one = socket.socket(socket.AF_UNIX)
    one.connect(os.environ["GRIDMILL_POD"] + "/../../links.sock")
    held.append(one)
time.sleep(1)
for one in held:
    one.setblocking(False)
    try:
        closed += one.recv(1) == b""
    except BlockingIOError:
        pass
print("closed", closed)
"""


@pytest.mark.long
def test_connections_of_a_job_take_few_descriptors_of_the_farm(place: Place) -> None:
    with place.beside() as attacker:
        ended = attacker.run(python(DIALS))
        assert ended.state == "succeeded", ended
        assert int(ended.written.split()[1]) >= 900 - 256
        assert attacker.run("echo fine").written == "fine\n"


def test_who_deletes_the_home_folder_is_served_again(place: Place) -> None:
    with place.beside() as attacker:
        ended = attacker.run('set +e; rm -rf ~/* ~/.[!.]* "$HOME" "$GRIDMILL_HOME" 2>/dev/null; echo done')
        assert ended.written == "done\n"
        again = place.pod(place.hostile)
        assert again.run("touch ~/kept && echo fine").written == "fine\n"
        again.end()


LINKS = """
set +e
rm -rf ~ 2>/dev/null; cd /
ln -s /etc ~ 2>/dev/null
ln -s /etc ~/pods 2>/dev/null
for one in pods cache attempts links.sock; do
  rm -rf "$GRIDMILL_HOME/$one" 2>/dev/null
  mv "$GRIDMILL_HOME/$one" "$GRIDMILL_HOME/was" 2>/dev/null
  ln -sfT /etc "$GRIDMILL_HOME/$one" 2>/dev/null
done
echo done
"""


@pytest.mark.long
def test_links_in_the_place_of_folders_lead_nowhere(place: Place) -> None:
    before = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir("/etc")}
    with place.beside() as attacker:
        home = Path(attacker.root).parent / "home"
        attacker.run(LINKS)
        for name in ("pods", "cache", "attempts"):
            assert (home / name).is_dir()
            assert not (home / name).is_symlink()
        again = place.pod(place.hostile)
        assert again.run("echo fine").written == "fine\n"
        again.end()
    after = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir("/etc")}
    assert {name: (one.st_uid, one.st_mode) for name, one in before.items()} == {
        name: (one.st_uid, one.st_mode) for name, one in after.items()
    }


def test_a_job_that_kills_all_kills_its_own_alone(place: Place) -> None:
    with place.beside() as attacker:
        counted = Path(attacker.root) / "runs"
        ended = attacker.run(f"echo run >> {counted}; sleep 1000 & kill -9 -1; echo lived")
        assert ended.written == "lived\n"
        code = "import os, signal\nif os.fork(): os.wait()\nos.kill(-1, signal.SIGKILL)"
        ended = attacker.run(f"echo run >> {counted}\n{python(code)}")
        assert (ended.state, ended.outcome["cause"]) == ("failed", "signal"), ended
        assert "killed by SIGKILL" in ended.outcome["message"]
        assert counted.read_text() == "run\n" * 2  # once each
        assert attacker.run("echo fine").written == "fine\n"  # in the same pod


LEAVES = """
set +e
for folder in /tmp /var/tmp /dev/shm ~; do
  cp /bin/sh $folder/left && chmod 4777 $folder/left
done
(umask 0; mkdir -p /tmp/deep/er; touch /tmp/deep/er/file)
crontab - </dev/null 2>/dev/null
echo true | at now + 1 hour 2>/dev/null
ipcmk -M 4096 >/dev/null; ipcmk -Q >/dev/null; ipcmk -S 2 >/dev/null
! touch /run/lock/left 2>/dev/null
setsid sleep 1000 &
echo left
"""


def owned_outside(user: int) -> list[str]:
    """What belongs to that user in public folders and in the kernel."""
    words = ["find", "/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/var/spool", "-uid", str(user)]
    files = subprocess.run(words, capture_output=True, text=True, check=False).stdout.splitlines()
    objects = []
    for kind in ("shm", "msg", "sem"):
        lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
        objects += [f"{kind} {line}" for line in lines[1:] if str(user) in line.split()]
    return [*files, *objects]


@pytest.mark.long
def test_nothing_is_left_outside_its_folders(place: Place) -> None:
    user, home = place.users["hostile"], Path(place.hostile.root).parents[4]
    with place.beside() as attacker:
        assert "left" in attacker.run(LEAVES).written
        second = place.pod(place.hostile)
        assert second.run("ls -A /tmp /var/tmp /dev/shm | grep left; ipcs -m | grep -c 0x; echo looked")
        second.end()
    within = str(home)
    assert [path for path in owned_outside(user) if not path.startswith(within)] == []
    assert list((Path(place.hostile.root).parent / "scratch").iterdir()) == []


FILLS = """
import os, time
at = 0
while True:
    at += 1
    with open(os.path.expanduser(f"~/{at}"), "wb") as file:
        file.write(bytes(SIZE))
    time.sleep(PAUSE)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "pause", "what"), [("2**20", "0.1", "disk"), ("1", "0.002", "inodes")], ids=["bytes", "inodes"]
)
def test_who_fills_the_disk_is_ended_alone(narrow: Place, size: str, pause: str, what: str) -> None:
    with narrow.beside() as attacker:
        attacker.begin(python(FILLS.replace("SIZE", size).replace("PAUSE", pause)))
        until(lambda: living(narrow.users["hostile"]) == [])  # its pod was ended
        third = narrow.pod(narrow.neighbour)
        assert (
            third.run("dd if=/dev/zero of=$HOME/x bs=1M count=4 2>/dev/null; echo fine").written == "fine\n"
        )
        third.end()
        reports = narrow.hostile.visitor.ask(
            "POST", "/v1/pods/observe", PodNames(pods=(f"{attacker.name}.0",))
        )
        [report] = reports.told["reports"].values()
        assert "tenant hostile uses" in report["message"]
        assert what in report["message"]
        home = Path(attacker.root).parent / "user"
        until(lambda: len(list(home.iterdir())) == 0)  # and it may begin again
    again = narrow.pod(narrow.hostile)
    assert again.run("echo fine").written == "fine\n"
    again.end()


def doctor(controller: Controller, **settings: str) -> dict[str, str]:
    """What `gridmill doctor` says on the farm's machine, by check."""
    environment = {**os.environ, **settings}
    words = [*controller.within, *controller.gridmill("doctor", "--json")]
    found = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    return {check["what"]: check["found"] for check in json.loads(found.stdout)}


def test_doctor_shows_what_keeps_tenants_apart(place: Place) -> None:
    told = doctor(place.controller)
    assert told["farm users"] == "one for each tenant"
    assert "memory, processes and CPUs of each tenant and pod by control groups v" in told["farm isolation"]
    assert "all other files of the machine are read-only" in told["farm isolation"]
    assert "limits the memory" in told["cgroups"]
    told = doctor(place.controller, GRIDMILL_CGROUPS="0")
    assert told["farm isolation"].startswith("one tenant only: this machine permits no limits of memory")
    assert told["cgroups"] == "not used (GRIDMILL_CGROUPS=0)"


@pytest.mark.long
def test_a_machine_without_namespaces_serves_one_tenant(tmp_path: Path) -> None:
    """As in a container that may not mount."""
    keep = tmp_path / "keep"
    keep.mkdir()
    with bounded(f"gridmill-test-{os.getpid()}-one") as limited, open_folder() as home:
        controller = Controller(home / "h", free_port())
        without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
        controller.within = (*opened(keep), *limited, *without)
        told = controller.up()
        try:
            port = int(told["address"].rpartition(":")[2])
            one, other = Visitor(port, tmp_path / "one"), Visitor(port, tmp_path / "other")
            assert one.join(told["join"].rpartition(":")[2], "only").status == 200
            answer = other.join(controller.farm("invite")["join"].rpartition(":")[2], "other")
            assert answer.status == 422
            assert b"permits no namespaces" in answer.body
            pod = Pod(Tenant(one), "d-1")
            ended = pod.run("ulimit -p; id -u; touch /tmp/left-$(id -u); ls /tmp/left-*")
            assert ended.state == "succeeded", ended
            limit, user, _ = ended.written.split()
            assert int(limit) == PROCESSES * 3 // 4
            pod.end()
            left = Path(f"/tmp/left-{user}")
            until(lambda: not left.exists())  # removed by its user's number
            assert "no namespaces" in doctor(controller)["farm isolation"]
        finally:
            controller.kill()


def groups_of(user: int) -> list[Path]:
    """Control groups of a tenant, in any tree."""
    folders = os.walk(GROUPS)  # skips groups that are deleted meanwhile
    return [Path(above) / name for above, names, _ in folders for name in names if name == f"user-{user}"]


@pytest.mark.long
def test_confined_pods_outlive_the_controller_and_end_with_their_keeper(tmp_path: Path) -> None:
    with open_folder() as home, a_place(tmp_path, home / "h") as place:
        user, pod = place.users["hostile"], place.pod(place.hostile)
        pod.begin("sleep 1000")
        until(lambda: len(living(user)) > 2)
        records = Path(pod.root).parent / "confined"
        place.controller.kill()
        place.controller.up()
        assert len(living(user)) > 2
        pod.end()  # whose process the controller knows by its record
        assert living(user) == []
        until(lambda: groups_of(user) == [] and list(records.iterdir()) == [])

        place.hostile = Tenant(place.hostile.visitor)
        pod = place.pod(place.hostile)
        pod.begin("sleep 1000")
        until(lambda: len(living(user)) > 2)
        [record] = records.iterdir()
        os.kill(json.loads(record.read_bytes())["pid"], signal.SIGKILL)
        until(lambda: living(user) == [])
        until(lambda: groups_of(user) == [] and list(records.iterdir()) == [])
        assert list((Path(pod.root).parent / "scratch").iterdir()) == []
