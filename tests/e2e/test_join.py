"""A grid out of loose machines: one is the head, another joins, always or while its owner is away."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gridmill.testing.hosts import Host, Network, network, why_no_hosts
from tests.ray import needs_ray

pytestmark = [
    pytest.mark.e2e,
    needs_ray,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
OWNER = "while True: pass"


class Grid:
    """`gridmill up --ray` on one host; the other has joined nothing yet."""

    def __init__(self, net: Network, shared: Path) -> None:
        self.shared = shared
        self.alpha, self.beta = net.host("alpha", 11), net.host("beta", 12)
        self.start(self.alpha, "up", "up", "--listen", "off", "--ray", self.alpha.address)
        self.wait(lambda: "gridmill join" in self.said("up"), "the grid is up")
        self.token = self.alpha.run("cat", "/root/grid/ray/token").strip()
        self.address = f"{self.alpha.address}:6379"

    def words(self, *words: str, **settings: str) -> list[str]:
        own = {
            "GRIDMILL_HOME": "/root/grid",
            "GRIDMILL_ROOT": str(self.shared / "root"),
            "GRIDMILL_GRACE": "1",
            **settings,
        }
        program = (sys.executable, "-P", "-m", "gridmill")
        return ["env", *(f"{name}={value}" for name, value in own.items()), *program, *words]

    def start(self, host: Host, name: str, *words: str, **settings: str) -> "subprocess.Popen[bytes]":
        with (self.shared / f"{name}.log").open("wb") as out:
            return host.popen(*self.words(*words, **settings), log=out)

    def said(self, name: str) -> str:
        return (self.shared / f"{name}.log").read_text()

    def nodes(self) -> str:
        return self.alpha.run(*self.words("list", "sites", "--json"))

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            logs = "\n".join(f"{path.name}: {path.read_text()[-800:]}" for path in self.shared.glob("*.log"))
            assert time.monotonic() < until, f"waited in vain until {what}\n{logs}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    folder = Path(tempfile.mkdtemp(prefix="gmj"))
    (folder / "shared").mkdir()
    prefix = f"10.{80 + os.getpid() % 100}.{os.getpid() // 100 % 200}"
    with network(folder / "net", prefix, shared=[folder / "shared"]) as net:
        yield Grid(net, folder / "shared")
    shutil.rmtree(folder, ignore_errors=True)


def test_a_wrong_token_is_refused(grid: Grid) -> None:
    words = grid.words("join", grid.address, GRIDMILL_TOKEN="0" * 64)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        grid.beta.run(*words, seconds=120.0)
    assert "does not take this token" in refused.value.stderr
    assert "beta" not in grid.nodes()


def test_an_address_where_nobody_listens_is_said(grid: Grid) -> None:
    words = grid.words("join", f"{grid.alpha.address}:1", GRIDMILL_TOKEN="0" * 64)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        grid.beta.run(*words)
    assert "nothing answers" in refused.value.stderr


def test_a_machine_is_given_while_its_owner_is_away_and_free_within_seconds(grid: Grid) -> None:
    """What ran there goes on elsewhere; when the owner has gone the machine is given again."""
    words = ("join", grid.address, "--idle-only", "--idle-after", "2s", "--cpus", "2", "--memory", "4GiB")
    grid.start(grid.beta, "join", *words, GRIDMILL_TOKEN=grid.token)
    grid.wait(lambda: "beta" in grid.nodes(), "beta is a node")
    marks, go = grid.shared / "marks", grid.shared / "go"
    (grid.shared / "p.yaml").write_text(
        "pipeline: idle\nat: grid\njobs:\n  long:\n"
        f"    command: 'hostname >> {marks}; until [ -e {go} ]; do sleep 0.1; done'\n"
    )
    run = grid.start(grid.alpha, "run", "run", str(grid.shared / "p.yaml"))
    grid.wait(marks.exists, "the job runs")
    first = marks.read_text().split()
    assert first == ["beta"]  # the smallest that is large enough
    pid = grid.shared / "owner.pid"
    work = f"echo $$ > {pid}; exec {sys.executable} -c '{OWNER}'"
    with (grid.shared / "owner.out").open("wb") as out:
        owner = grid.beta.popen("bash", "-c", work, log=out)
    begun = time.monotonic()
    grid.wait(lambda: not ours_on(grid.beta), "the owner has the machine", seconds=30.0)
    freed = time.monotonic() - begun
    grid.wait(lambda: len(marks.read_text().split()) == 2, "the job runs elsewhere")
    go.touch()
    assert run.wait(120) == 0, grid.said("run")
    assert marks.read_text().split() == ["beta", "alpha"]
    grid.beta.run("kill", "-9", pid.read_text().strip())
    owner.wait(10)
    grid.wait(lambda: grid.said("join").count("joined the grid") == 2, "it is given again")
    assert freed < 20.0  # 10 where nothing else keeps the machine busy


def ours_on(host: Host) -> str:
    """Processes of Ray and of pods there; `join` itself stays and looks."""
    told = host.run("bash", "-c", "pgrep -af '[r]aylet|[g]ridmill.pod|[r]ay.scripts|[u]ntil ' || true")
    return told.strip()
