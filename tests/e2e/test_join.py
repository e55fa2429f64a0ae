"""A grid out of loose machines: one is the head, another joins, always or while its owner is away."""

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gridmill.testing.hosts import Host, Network, why_no_hosts
from tests.kit.machines import PROGRAM, Machines, two_hosts
from tests.kit.ray import needs_ray

pytestmark = [
    pytest.mark.e2e,
    needs_ray,
    pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "there are hosts"),
]
OWNER = "while True: pass"
HOLD = """
for p in /proc/[0-9]*; do
  case $(readlink $p/cwd) in */attempts/lent-1.lstm.*) kill -STOP ${p#/proc/} && echo held;; esac
done
"""
FIRST = ("nice", "-n", "-19")
"""What is given while its owner is away runs at nice 19: behind all of its own machine. Not to be behind
what else this one does, as other tests: it would never run at all."""


class Grid(Machines):
    """`gridmill up --ray` on one host; the other has joined nothing yet."""

    def __init__(self, net: Network, shared: Path) -> None:
        super().__init__(net, shared, "grid", {})
        self.control("--ray", self.alpha.address)
        self.wait(lambda: "gridmill join" in self.said("up"), "the grid is up")
        self.token = self.alpha.run("cat", "/root/grid/ray/token").strip()
        self.address = f"{self.alpha.address}:6379"

    def join(self, *words: str, ahead: tuple[str, ...] = ()) -> None:
        whole = (*PROGRAM, "join", self.address, "--memory", "4GiB", *words)
        self.start(self.beta, "join", *whole, ahead=ahead, GRIDMILL_TOKEN=self.token)
        self.wait(lambda: "beta" in self.nodes(), "beta is a node")

    def leave(self) -> None:
        self.kill(self.beta, "join", "INT")
        self.wait(lambda: "beta" not in self.nodes(), "beta has left")
        self.clear()

    def refused(self, address: str, *words: str, **settings: str) -> str:
        """What `join` says to what is wrong."""
        with pytest.raises(subprocess.CalledProcessError) as refused:
            self.gridmill("join", address, *words, host=self.beta, **settings)
        assert "beta" not in self.nodes()
        return str(refused.value.stderr)

    def refused_again(self, host: Host) -> str:
        """What `join` says where it is in vain, as the host is a node."""
        with pytest.raises(subprocess.CalledProcessError) as refused:
            self.gridmill("join", self.address, host=host, GRIDMILL_TOKEN="0" * 64)
        return str(refused.value.stderr)


@pytest.fixture(scope="module")
def grid() -> Iterator[Grid]:
    with two_hosts() as (net, shared):
        yield Grid(net, shared)


@pytest.mark.long
def test_what_is_wrong_at_joining_is_said(grid: Grid) -> None:
    wrong = "0" * 64
    assert "does not accept this token" in grid.refused(grid.address, GRIDMILL_TOKEN=wrong)
    nobody = f"{grid.alpha.address}:1"
    told = grid.refused(nobody, "--wait", "1s", GRIDMILL_TOKEN=wrong)
    assert "the grid is unreachable: nothing answers" in told
    assert "could not be joined within 1.0 s: nothing answers" in told


GANG = """
pipeline: gang
at: grid
jobs:
  j: {command: {run: hostname, workers: 400}}
"""


def test_a_gang_larger_than_the_grid_may_wait_for_machines_that_join(grid: Grid) -> None:
    (grid.shared / "gang.yaml").write_text(GANG)
    told = grid.gridmill("plan", str(grid.shared / "gang.yaml"))
    [line] = [line for line in told.splitlines() if line.startswith("j: not checked")]
    assert " of 400 with the nodes that it has now, and may get more" in line


@pytest.mark.long
def test_a_link_cut_for_half_a_minute_has_its_job_run_elsewhere_and_the_machine_join_again(
    grid: Grid,
) -> None:
    """Ray calls it dead after 8 s, its pods end after 10, their work is done again after 20 (`patience`)."""
    grid.join("--cpus", "2")
    for host in (grid.beta, grid.alpha):
        assert "is already a node of a grid" in grid.refused_again(host), "and nothing of it is changed"
    run = grid.waiting("cut")
    assert run.hosts == ["beta"]  # the smallest that is large enough
    grid.beta.connect(False)
    begun = time.monotonic()
    grid.wait(lambda: len(run.hosts) == 2, "the job runs elsewhere")
    time.sleep(max(0.0, begun + 30.0 - time.monotonic()))
    grid.beta.connect(True)
    grid.wait(lambda: grid.said("join").count("joined the grid") >= 2, "it joins again by itself")
    grid.wait(lambda: "beta" in grid.nodes(), "it is a node again")
    grid.ended_well(run, "beta", "alpha")
    grid.leave()


EPOCHS = 15
RESOURCE = """
pipeline: NAME
resources:
  NAME: {type: training, site: grid, cpus: 1, memory: 1GiB, keep: 0s}
jobs:
"""
FEATURES = """
  waves: {sink: {source: waves.csv}}
  features:
    dataset:
      basis: {table: waves, time: time, entity: [city]}
      label: {column: value, steps: 3, name: ahead}
      split: {validation: 0.2, test: 0.2}
"""
TRAINING = """
  lstm:
    resource: NAME
    training:
      {dataset: DATASET, model: lstm, sequence: 24, hidden: 32, dropout: 0.2, epochs: EPOCHS,
       patience: EPOCHS, batch_size: 64, seed: 5, checkpoint: 0s}
""".replace("EPOCHS", str(EPOCHS))
LENT = (RESOURCE + FEATURES + TRAINING).replace("NAME", "lent").replace("DATASET", "features")
ALONE = (RESOURCE + TRAINING).replace("NAME", "alone").replace("DATASET", "lent/features")


def waves() -> str:
    times = (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in range(3000))
    hours = (f"a,{time.isoformat()},{math.sin(hour / 24):.4f}" for hour, time in enumerate(times))
    return "\n".join(("city,time,value", *hours, ""))


@pytest.mark.long
def test_a_borrowed_machine_is_free_within_seconds_and_its_training_goes_on_elsewhere_from_its_checkpoint(
    grid: Grid,
) -> None:
    """No batch is learned twice: the model is that of a training that nobody disturbed. When the owner has
    gone the machine is given again."""
    (grid.shared / "waves.csv").write_text(waves())
    grid.join("--cpus", "2", "--idle-only", "--idle-after", "2s", ahead=FIRST)
    beside = grid.waiting_on(grid.alpha, "beside")  # only the borrowed machine has room
    lent = grid.run(LENT, "lent")
    grid.wait(lambda: checkpoint(grid.shared)[0] > 1, "it learns")
    assert "held" in grid.beta.run("bash", "-c", HOLD), "it had ended before its owner came"
    grid.start(grid.beta, "owner", sys.executable, "-c", OWNER, ahead=FIRST)
    watched = Watched(grid.beta)
    begun = time.monotonic()
    grid.wait(watched.is_free, "the owner has the machine")
    freed = time.monotonic() - begun
    print(
        f"free for its owner after {freed:.1f} s on a machine {watched.slowness:.1f} times as slow as alone"
    )
    last = checkpoint(grid.shared)  # it runs nowhere now
    beside.go()
    grid.wait(lambda: checkpoint(grid.shared) != last, "it goes on elsewhere")
    grid.kill(grid.beta, "owner")
    grid.wait(lambda: grid.said("join").count("joined the grid") >= 2, "it is given again")
    alone = grid.run(ALONE, "alone")
    states, model = learned(grid.ended(lent, "lent"), grid.shared)
    assert (len(states) > 1, states[-1]) == (True, "succeeded")
    said = grid.gridmill("logs", "lent-1", "lstm")
    assert "continuing from a checkpoint in epoch {}, batch {}".format(*last) in said, said
    _, undisturbed = learned(grid.ended(alone, "alone"), grid.shared)
    assert model == undisturbed
    grid.leave()
    assert freed <= 30.0 * watched.slowness


def checkpoint(shared: Path) -> tuple[int, int]:
    """The epoch of the last one, and its batch that comes next; (0, 0) without any."""
    with suppress(FileNotFoundError):
        for path in (shared / "root" / "checkpoints").glob("lent/lstm/**/checkpoint.json"):
            progress = json.loads(path.read_bytes())["facts"]["progress"]
            return progress["epoch"], progress["batch"]
    return 0, 0


def learned(view: dict[str, Any], shared: Path) -> tuple[list[str], dict[str, object]]:
    """How its attempts ended, and what is to be the same of the model."""
    [lstm] = [one for one in view["jobs"] if one["job"]["job"]["name"] == "lstm"]
    [output] = [one["output"] for one in lstm["artifacts"]]
    weights = (shared / "root" / output["uri"] / "weights.safetensors").read_bytes()
    found = {"metrics": output["metrics"], "curve": output["details"]["curve"], "weights": weights}
    return [attempt["state"] for attempt in lstm["attempts"]], found


class Watched:
    """A machine, looked at until nothing of ours runs there (`join` itself stays and looks)."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._took, self._needed = 0.0, 0.0

    @property
    def slowness(self) -> float:
        """Time over CPU time of the looks: 1 where nothing else keeps this machine busy."""
        return max(1.0, self._took / self._needed)

    def is_free(self) -> bool:
        begun, before = time.monotonic(), cpu_seconds_of_children()
        told = self._host.run(
            "bash", "-c", "pgrep -f '[r]aylet|[g]ridmill.pod|[g]ridmill.jobs|[r]ay.scripts' || true"
        )
        self._took += time.monotonic() - begun
        self._needed += cpu_seconds_of_children() - before
        return not told.strip()


def cpu_seconds_of_children() -> float:
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime
