"""A farm under what happens to machines and the lines between them: cut, killed, full."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gridmill.testing.hosts import Host, why_no_hosts
from tests.e2e.conftest import files_below
from tests.kit import sshd as ssh
from tests.kit.behind_ssh import known_host, make_keys, ssh_of_home, sshd
from tests.kit.farmland import FARM, STORAGE, Farmland
from tests.kit.machines import attempts, messages, state, two_hosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
SLOW, FAST = "rate=1KiB", "rate="
"""Of 20 MiB 8 go at once, and the next after hours: what is to happen meanwhile does."""
CARRY = """
pipeline: NAME
resources:
  here: {type: command, site: local, cpus: 1, memory: 256MiB}
  far: {type: command, site: far, cpus: 1, memory: 256MiB}
jobs:
  one:
    resource: here
    cache: false
    command: "head -c 20971520 /dev/urandom > $GRIDMILL_OUTPUT/in; sha256sum < $GRIDMILL_OUTPUT/in > MARKS.in"
  two:
    resource: far
    needs: [one]
    command: "sha256sum < $GRIDMILL_INPUT_ONE/in >> MARKS.read; head -c 20971520 /dev/urandom > \
$GRIDMILL_OUTPUT/out; until [ -e MARKS.go ]; do sleep 0.1; done; sha256sum < $GRIDMILL_OUTPUT/out > MARKS.out"
"""


class Carried:
    """A run whose second job, at the farm, reads 20 MiB of home and makes as many for it."""

    TEXT = CARRY

    def __init__(self, land: Farmland, name: str, *, detach: bool = False) -> None:
        self.land, self.name, self.marks = land, name, land.shared / name
        text = self.TEXT.replace("NAME", name).replace("MARKS", str(self.marks))
        if detach:
            land.detach(text, name)
        else:
            self.process = land.run(text, name)
        land.wait(lambda: f"{name}-1" in land.gridmill("list", "runs"), f"{name} is there")

    def view(self) -> dict[str, Any]:
        """How it stands."""
        told: dict[str, Any] = json.loads(self.land.gridmill("status", f"{self.name}-1", "--json"))
        return told

    def wait_half(self, way: str) -> None:
        """Until a part of its data has gone `to` the farm or come `from` it."""

        def there() -> bool:
            told = self.view()["jobs"][1]["progress"]
            return f"transfer {way} far" in told.get("note", "") and 0 < told["done"] < told["total"]

        self.land.wait(there, f"{self.name} is carried {way} the farm")

    def wait_begun(self) -> None:
        """Until its second job has read what was carried."""
        self.land.wait(lambda: bool(self._said("read")), f"{self.name} has begun")

    def go(self) -> None:
        """Let the second job end."""
        self.marks.with_suffix(".go").touch()

    def wait_right(self) -> None:
        """Until it has ended: both jobs ran once, and what one reads is what the other has made."""
        self.land.wait(lambda: state(self.view()) != "active", f"{self.name} ends")
        view = self.view()
        assert (state(view), attempts(view)) == ("succeeded", [1, 1]), messages(view)
        assert self._said("read") == self._said("in")
        [output] = view["jobs"][1]["artifacts"]
        home = self.land.alpha.run("sha256sum", f"{STORAGE}/{output['output']['uri']}/out")
        assert home.split()[:1] == self._said("out")[:1]

    def _said(self, what: str) -> list[str]:
        path = self.marks.with_suffix(f".{what}")
        return path.read_text().split() if path.exists() else []


@pytest.fixture(scope="module")
def whole() -> Iterator[Farmland]:
    with two_hosts() as (net, shared):
        yield Farmland(net, shared, disk="160m")


@pytest.fixture
def land(whole: Farmland) -> Iterator[Farmland]:
    """After each test nothing runs at the farm, and the line is there."""
    yield whole
    whole.beta.connect(True)
    whole.clear()


def told(land: Farmland, trouble: str) -> None:
    land.wait(lambda: trouble in land.gridmill("status"), f"status says: {trouble}")


def silent(land: Farmland) -> None:
    told(land, "site far does not answer")


def answers(land: Farmland) -> None:
    land.wait(lambda: "does not answer" not in land.gridmill("status"), "the farm answers again")


def cut(land: Farmland) -> None:
    land.beta.connect(False)
    silent(land)
    land.beta.connect(True)
    answers(land)


def farm_again(land: Farmland) -> None:
    land.kill(land.beta, "farm")
    silent(land)
    land.farm_up()
    answers(land)


def machine_again(land: Farmland) -> None:
    """All that ran on the farm's machine has ended."""
    land.beta.run("bash", "-c", "kill -9 -1", check=False)
    silent(land)
    land.farm_up()
    answers(land)


def home_again(land: Farmland, setting: str) -> None:
    land.kill(land.alpha, "up")
    land.configure(setting)
    land.control()


@pytest.mark.long
def test_data_arrives_once_whatever_is_cut_or_killed_on_its_way(land: Farmland) -> None:
    land.configure(SLOW)
    run = Carried(land, "carried", detach=True)  # its command would start a control node
    run.wait_half("to")
    for trouble in (cut, farm_again):
        trouble(land)
        run.wait_half("to")
    home_again(land, FAST)
    run.wait_begun()
    land.configure(SLOW)
    run.go()
    for trouble in (cut, machine_again):
        run.wait_half("from")
        trouble(land)
    run.wait_half("from")
    home_again(land, FAST)
    run.wait_right()


def fill(land: Farmland, where: str, left: int) -> None:
    """So many bytes are left on that disk."""
    host = land.alpha if where == STORAGE else land.beta
    free = int(host.run("bash", "-c", f"df --output=avail -B1 {where} | tail -1"))
    host.run("fallocate", "-l", str(free - left), f"{where}/ballast")


def test_a_full_disk_is_told_and_data_goes_on_its_way_there_and_back_when_there_is_room(
    land: Farmland,
) -> None:
    fill(land, FARM, 10 * 2**20)
    run = Carried(land, "full")
    told(land, "the farm's disk has")
    assert "waitforroom:thefarm'sdiskhas" in "".join(land.gridmill("status", "full-1").split())  # folded
    land.beta.run("rm", f"{FARM}/ballast")
    run.go()
    run.wait_right()
    assert "the farm's disk has" not in land.gridmill("status")

    run = Carried(land, "late")
    run.wait_begun()
    fill(land, STORAGE, 10 * 2**20)
    run.go()
    told(land, "No space left on device")
    assert "Nospaceleftondevice" in "".join(land.gridmill("status", "late-1").split())  # it is folded
    land.alpha.run("rm", f"{STORAGE}/ballast")
    run.wait_right()
    assert "No space left" not in land.gridmill("status")


def refused(land: Farmland, where: str) -> str:
    """Why a farm there cannot be joined: one error."""
    line = f"{'f' * 64}:{'s' * 40}"
    said = land.gridmill("add", "cluster", "other", "--controller", where, "--join", line, check=False)
    assert said.startswith("error: ")
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 2
    return said


@pytest.mark.long
@pytest.mark.skipif(not ssh.is_installed(), reason=ssh.HOW_TO_GET_IT)
def test_a_farm_behind_ssh_is_reached_without_a_port_of_its_own(land: Farmland) -> None:
    make_keys(land)
    sshd(land)
    land.kill(land.beta, "farm")
    land.farm_up(address="127.0.0.1")
    way = f"ssh://root@{land.beta.address}"
    known_host(land, land.alpha.run("cat", "/root/.ssh/id_ed25519.pub"))  # no host has this key
    assert "Host key verification failed" in refused(land, way)
    known_host(land)
    assert "Permission denied" in refused(land, f"ssh://nobody-there@{land.beta.address}")
    assert "Connection refused" in refused(land, f"{way}:2222")
    assert "Connection refused" in refused(land, f"{way}/127.0.0.1:9")
    assert "shows the certificate" in refused(land, way)
    land.gridmill("configure", "site", "far", "--address", way)
    try:
        answers(land)
        run = land.waiting("behind")
        before = ssh_of_home(land)
        land.alpha.run("bash", "-c", f"kill -9 {' '.join(before)} || true")
        land.wait(lambda: not set(ssh_of_home(land)) <= set(before), "the way is opened again")
        answers(land)
        land.beta.run("bash", "-c", "kill -9 $(pgrep -x sshd) || true")
        silent(land)
        sshd(land)
        answers(land)
        land.ended_well(run, "beta")
        land.kill(land.alpha, "up")
        land.wait(lambda: not ssh_of_home(land), "the way ends with the control node")
        land.wait(lambda: "gmt" not in land.alpha.run("ls", "/tmp"), "nothing is left of the way")
        land.control()
    finally:
        land.kill(land.beta, "farm")
        land.farm_up()
        land.wait(lambda: "farm running" in land.said("farm"), "the farm is up")
        land.gridmill("configure", "site", "far", "--address", land.controller)
        answers(land)


def inside(host: Host, folder: str) -> Path:
    return Path(f"/proc/{host.init}/root{folder}")


def secrets_of(land: Farmland) -> dict[str, bytes]:
    """What is to be known by one alone, by name."""
    kept = inside(land.alpha, "/root/grid/clusters/far")
    found = {"token": json.loads((kept / "farm.json").read_bytes())["token"].encode()}
    keys = {
        "key of the tenant": kept / "tenant.key",
        "key of the farm": inside(land.beta, FARM) / "farm/control.key",
    }
    found |= {name: path.read_bytes().splitlines()[1] for name, path in keys.items()}
    orders = inside(land.beta, FARM).glob("farm/tenants/*/home/pods/*/order.json")
    return found | {f"secret of {path.parent.name}": secret_in(path) for path in orders}


def secret_in(order: Path) -> bytes:
    return str(json.loads(order.read_bytes())["secret"]).encode()


def told_to_all(host: Host) -> Iterator[tuple[str, bytes]]:
    """The words and the environment of every process of a host."""
    mine = os.readlink(f"/proc/{host.init}/ns/pid")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if os.readlink(process / "ns/pid") == mine:
                words = (process / "cmdline").read_bytes()
                yield words.decode(), words + (process / "environ").read_bytes()


def seen_by_others(home: Path) -> Iterator[tuple[str, bytes]]:
    """Files below a home that others may read: no folder above them keeps them out."""
    for folder, names, files in os.walk(home):
        names[:] = [name for name in names if (Path(folder) / name).lstat().st_mode & 0o011]
        for path in (Path(folder) / name for name in files):
            with suppress(OSError):  # it went
                looked = path.lstat()
                if stat.S_ISREG(looked.st_mode) and looked.st_mode & 0o044:
                    yield str(path), path.read_bytes()


def test_nothing_secret_is_where_others_see_it(land: Farmland) -> None:
    run = land.waiting("hidden")
    secrets = secrets_of(land)
    assert any(name.startswith("secret of all-of-a-host-hidden") for name in secrets)
    homes = (inside(land.alpha, "/root/grid"), inside(land.beta, FARM))
    places = [*told_to_all(land.alpha), *told_to_all(land.beta)]
    assert any("gridmill.pod" in words for words, _ in places)
    for home in homes:
        home.chmod(home.stat().st_mode | 0o011)  # as where nothing else keeps others out
        places += seen_by_others(home)
    places += [(path.name, path.read_bytes()) for path in land.shared.glob("*.log")]
    places += [(str(path), path.read_bytes()) for home in homes for path in files_below(home, "log")]
    found = [(place, name) for place, said in places for name, secret in secrets.items() if secret in said]
    assert found == []
    land.ended_well(run, "beta")
