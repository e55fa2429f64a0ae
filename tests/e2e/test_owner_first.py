"""A machine that was lent is its owner's again within seconds of any sign, and not before there is one."""

import os
import sys
import time
from collections.abc import Iterator

import pytest

from gridmill.testing.hosts import why_no_hosts
from tests.e2e.test_join import FIRST, OWNER, Grid, Watched
from tests.kit import behind_ssh, sshd
from tests.kit.machines import two_hosts
from tests.kit.ray import needs_ray

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    needs_ray,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
    pytest.mark.skipif(not sshd.is_installed(), reason=sshd.HOW_TO_GET_IT),
]
QUIET_SECONDS = float(os.environ.get("GRIDMILL_TEST_QUIET", "45"))
"""How long nobody touches the machine; 600 s were tried by hand."""
RETURNED_SECONDS, FREE_SECONDS = 5.0, 10.0
OWN_TERMINALS = """
umount -l /dev/pts && mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts &&
mount --bind /dev/pts/ptmx /dev/ptmx
"""
"""All hosts have this machine's devices: what others type there is not to count."""
LOAD = """
pipeline: load
resources:
  load: {type: command, site: grid, cpus: 2, memory: 1GiB, keep: 0s}
jobs:
  busy:
    resource: load
    command: >-
      trap 'sleep 60' TERM;
      (while :; do dd if=/dev/urandom of=x bs=1M count=64 conv=fsync; done) 2> /dev/null &
      script -qfc 'while sleep 0.2; do echo x; read -t 0.1 y; done' /dev/null < /dev/zero > /dev/null &
      touch SHARED/busy; while :; do :; done
"""
"""It keeps the CPUs, the disk and a terminal of its own busy, and does not end when it is told to."""
TYPING = """
import os, time
child, keyboard = os.forkpty()
if not child:
    os.execv("/bin/cat", ["cat"])
print(time.time(), flush=True)
while True:
    os.write(keyboard, b"x\\n")
    os.read(keyboard, 100)
    time.sleep(0.2)
"""
LOGIN = ("ssh", "-tt", "-o", "BatchMode=yes", "root@BETA", "date +%s.%N; cat")
COMMAND = ("ssh", "-o", "BatchMode=yes", "root@BETA", "date +%s.%N; sleep 1000")
PYTHON = (sys.executable, "-c")
SIGNS = {
    "typing": ("input at a terminal", "beta", (*PYTHON, TYPING)),
    "login": ("input at a terminal", "alpha", LOGIN),
    "command": ("somebody works over SSH", "alpha", COMMAND),
    "load": (
        "the owner's processes use",
        "beta",
        (*PYTHON, f"import time; print(time.time(), flush=True)\n{OWNER}"),
    ),
}
LEFT = (
    "pgrep -f '[r]aylet|[g]ridmill.pod|[g]ridmill.jobs|[r]ay.scripts|[w]hile sleep|[t]rap .sleep 60|[d]d if='"
    " || true"
)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with two_hosts() as (net, shared):
        made = Grid(net, shared)
        made.beta.run("bash", "-c", OWN_TERMINALS)
        behind_ssh.make_keys(made)
        behind_ssh.sshd(made)
        behind_ssh.known_host(made)
        made.join("--cpus", "2", "--idle-only", "--idle-after", "1s", ahead=FIRST)
        made.beside = made.waiting_on(made.alpha, "beside")
        (shared / "load.yaml").write_text(LOAD.replace("SHARED", str(shared)))
        made.start(
            made.alpha,
            "tunnel",
            "ssh",
            "-N",
            "-L",
            "127.0.0.1:9999:127.0.0.1:22",
            f"root@{made.beta.address}",
        )
        made.detach((shared / "load.yaml").read_text(), "load")
        yield made


def times(grid: Grid, text: str) -> int:
    return grid.said("join").count(text)


def is_busy(grid: Grid) -> bool:
    return (grid.shared / "busy").exists() and bool(grid.beta.run("bash", "-c", LEFT).strip())


def test_the_grids_own_load_is_no_sign_of_the_owner(grid: Grid) -> None:
    grid.wait(lambda: is_busy(grid), "the load is there")
    time.sleep(QUIET_SECONDS)
    assert times(grid, "returned to its owner") == 0, grid.said("join")
    assert is_busy(grid)


@pytest.mark.parametrize("sign", SIGNS)
def test_a_sign_of_the_owner_takes_the_machine_back(grid: Grid, sign: str) -> None:
    """Also with a job that does not end by itself."""
    why, where, words = SIGNS[sign]
    grid.wait(lambda: is_busy(grid), "the load is there")
    before = times(grid, "returned to its owner")
    grid.start(
        getattr(grid, where), sign, *(one.replace("BETA", grid.beta.address) for one in words), ahead=FIRST
    )
    grid.wait(lambda: grid.said(sign).strip() != "", "the owner has begun")
    came = float(grid.said(sign).split()[0])
    watched = Watched(grid.beta)
    until = time.monotonic() + 120
    while times(grid, "returned to its owner") == before:
        assert time.monotonic() < until, grid.said("join")
        time.sleep(0.02)
    returned = time.time() - came
    while grid.beta.run("bash", "-c", LEFT).strip():
        assert time.monotonic() < until, grid.beta.run("bash", "-c", "ps -ef")
    freed = time.time() - came
    watched.is_free()
    print(f"{sign}: returned after {returned:.1f} s, nothing left after {freed:.1f} s")
    assert grid.said("join").rpartition("returned to its owner: ")[2].startswith(why)
    (grid.shared / "busy").unlink(missing_ok=True)
    grid.kill(getattr(grid, where), sign)
    grid.wait(lambda: times(grid, "joined the grid") > before + 1, "it is lent again")
    assert returned <= RETURNED_SECONDS * watched.slowness
    assert freed <= FREE_SECONDS * watched.slowness
